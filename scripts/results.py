"""Tables of the pages from docs/results/, the files of sweeps and benchmarks.

A comment in the page says what is shown; the table follows it:

    <!-- results
    | encoder | TREC | sentences |
    trec by model.encoder: | `{model.encoder}` | {test:.3f} | |
    | attention | {trec_one/test.mean:.3f} | {mr/test@seed=1:.3f} |
    -->
    <!-- end -->

The first line is the header. A line that begins with `FILE by KEY, KEY:` is a
row for each combination of these keys in docs/results/FILE.json, in the order
of the file; with `sorted by`, in that of the values. Any other line is one row.

A field is {FILE/COLUMN@KEY=VALUE@KEY=VALUE:FORMAT}: the column of the row with
these values, and with those of the keys of the line. The file may be left out
where it is that of the line, and so may conditions and the format. A summary of
seeds is shown as mean ± half-width of its 95% interval; COLUMN.mean and
COLUMN.std are single numbers. A row that is not there is an empty cell.
"""

import functools
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
_BLOCK = re.compile(
  r'(<!-- results\n(.*?)\n-->\n).*?(<!-- end -->)', flags=re.DOTALL
)
_LINE = re.compile(r'(?:(\w+) (sorted )?by ([^:|]+): )?(\|.*\|)')
_FIELD = re.compile(r'\{([^{}]+)\}')


def filled(text: str) -> str:
  """A page with its tables as their files are now."""
  return _BLOCK.sub(lambda block: block[1] + table(block[2]) + block[3], text)


def table(template: str) -> str:
  """A table of Markdown, of what is between `results` and `-->`."""
  header, *lines = template.splitlines()
  rule = '| --- ' * (header.count('|') - 1) + '|'
  rows = [row for line in lines for row in _rows_of(line)]
  return ''.join(f'{row}\n' for row in (header, rule, *rows))


def rows(file: str) -> list[dict]:
  """The rows of a results file: settings of a sweep, or of a benchmark."""
  content = _content(file)
  return content['table' if 'table' in content else 'rows']


@functools.cache
def _content(file: str) -> dict:
  return json.loads((ROOT / f'docs/results/{file}.json').read_text())


def _rows_of(line: str):
  matched = _LINE.fullmatch(line)
  if matched is None:
    raise ValueError(f'{line!r} is not a row of a table')
  file, is_sorted, by, cells = matched.groups('')
  groups = [{}]
  if file:
    keys = by.split(', ')
    values = [tuple(row.get(key, '') for key in keys) for row in rows(file)]
    values = list(dict.fromkeys(values))
    values = sorted(values) if is_sorted else values
    groups = [dict(zip(keys, row, strict=True)) for row in values]
  for group in groups:
    yield _FIELD.sub(lambda field, g=group: _field(field[1], file, g), cells)


def _field(text: str, file: str, group: dict) -> str:
  place, _, form = text.partition(':')
  if place in group:
    return _shown(group[place], form)
  name, *conditions = place.split('@')
  *others, column = name.split('/')
  file = others[0] if others else file
  conditions = group | dict(text.split('=', 1) for text in conditions)
  if all(_value(row, column) is None for row in rows(file)):
    raise ValueError(f'{{{text}}}: {file} has no column {column}')
  for key in conditions:
    if not any(key in row for row in rows(file)):
      raise ValueError(f'{{{text}}}: {file} has no column {key}')
  values = [
    _value(row, column)
    for row in rows(file)
    if all(str(row.get(k, '')) == str(v) for k, v in conditions.items())
  ]
  if len(values) > 1:
    raise ValueError(f'{{{text}}}: {len(values)} rows of {file} are like this')
  return _shown(values[0], form) if values else ''


def _value(row: dict, column: str):
  if column in row:
    return row[column]
  summary, _, part = column.rpartition('.')
  return (_value(row, summary) or {}).get(part) if summary else None


def _shown(value, form: str) -> str:
  if value is None:
    return ''
  if isinstance(value, str):
    return value.replace('|', '\\|').replace('<', '&lt;')
  if isinstance(value, dict):
    width = value['half_width']
    mean = _shown(value['mean'], form)
    return mean if width is None else f'{mean} ± {width:{form.lstrip("+")}}'
  return format(value, form)
