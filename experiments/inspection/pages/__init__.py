"""HTML pages: self-contained files, viewable offline.

Styles, scripts, figures (as data URLs) and data (as JSON) are embedded.
Everything from data sets or configs is escaped.
"""

from __future__ import annotations

import base64
import html
import json
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.inspection.head_analysis import AttentionMaps
from experiments.settings.settings import default_values
from experiments.workdir import workdir as workdir_lib
from selfattn import plots

# The name of a page in a folder.
NAME = 'index.html'
_HERE = pathlib.Path(__file__).parent
# Columns of cells with longer texts keep some width on narrow screens.
_LONG_TEXT = 40
_MOST_DECIMALS = 8
# The least width of a column of pictures, in rem of 16 pixels each.
COLUMN = 24
_TAG = re.compile('<[^>]*>')
# Weights are quantized to 16 bits, in steps of 1 / 65,535.
_STEPS = 2**16 - 1


class Html(str):
  """Content of a page that is HTML, and is not escaped."""


class Shaded(NamedTuple):
  """A cell of a table: a value on a colour, deeper where share is greater."""

  value: Any
  share: float


def escape(text: object) -> str:
  """Escapes text for HTML, also inside of quoted attributes; no Html."""
  return text if isinstance(text, Html) else html.escape(str(text))


def write(path: str, title: str, sections: Iterable[str]) -> None:
  """Writes a page of sections, which are HTML; atomically."""
  style = (_HERE / 'page.css').read_text('utf-8')
  script = (_HERE / 'attention.js').read_text('utf-8')
  text = '\n'.join(sections)
  workdir_lib.write_atomic(
    path,
    f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    # An empty icon, so that browsers do not request one.
    '<link rel="icon" href="data:,">\n'
    f'<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n'
    f'<body>\n<h1 dir="auto">{escape(title)}</h1>\n{text}\n'
    f'<script>\n{script}</script>\n</body>\n</html>\n',
  )


def section(title: str, content: str) -> str:
  """A section with heading; `content` is HTML."""
  return f'<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>'


def paragraph(text: str) -> str:
  """A paragraph of text."""
  return f'<p>{escape(text)}</p>'


def table(
  header: Sequence[object],
  rows: Iterable[Sequence[object]],
  marked: Iterable[int] = (),
  caption: str = '',
  kind: str = '',
) -> str:
  """A table of texts, scalars, Html and Shaded ones.

  Args:
    header: headings, which are never broken.
    marked: indices of the rows to highlight.
    kind: a class of page.css: `matrix` has names of rows in its first column,
      and `upright matrix` long headings.
  """
  cells_of = [list(row) for row in rows]
  head, lines, marked, digits = [], [], set(marked), []
  for index, cell in enumerate(header):
    numbers = [*filter(_is_number, (_value(row[index]) for row in cells_of))]
    digits.append(decimals(numbers))
    side = ' class="number"' if numbers else ''
    head.append(f'<th{side} dir="auto">{escape(cell)}</th>')
  shown = [[*map(_cell, row, digits)] for row in cells_of]
  for index, row in enumerate(shown):
    mark = ' class=marked' * (index in marked)
    lines.append(f'<tr{mark}>{"".join(row)}</tr>')
  said = f'<caption>{escape(caption)}</caption>' if caption else ''
  body = '\n'.join([f'{said}<thead><tr>{"".join(head)}</tr></thead>', *lines])
  style = f' class="{kind}"' if kind else ''
  if 'matrix' in kind:
    wide = shown if 'upright' in kind else [head, *shown]
    style += f' style="--characters: {_characters(wide)}"'
  return f'<div class="scroll"><table{style}>\n{body}\n</table></div>'


def _characters(rows: Iterable[Sequence[str]]) -> int:
  """Width of a table in characters, one of them between its columns.

  Args:
    rows: cells, which are HTML; a name that stands on end is two of them wide.
  """
  columns = zip(*rows, strict=True)
  lengths = (
    max(len(html.unescape(_TAG.sub('', cell))) for cell in column)
    for column in columns
  )
  return sum(max(length, 2) + 1 for length in lengths)


def decimals(values: Iterable[float]) -> int:
  """Digits after the point: four, fewer above 1, more if all are small."""
  largest = max(filter(math.isfinite, map(abs, values)), default=0) or 1
  power = math.ceil(math.log10(largest))
  return min(max(0, 3 - power, 4 - max(0, power)), _MOST_DECIMALS)


def _value(cell) -> Any:
  return cell.value if isinstance(cell, Shaded) else cell


def _is_number(value) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(cell, digits: int) -> str:
  value, style = _value(cell), ''
  if isinstance(cell, Shaded):
    style = f' style="background: rgb(0 114 178 / {0.6 * cell.share:.3f})"'
  if _is_number(value):
    # Of a column of tiny values, all would be 0.
    form = '.2e' if digits >= _MOST_DECIMALS else f'.{digits}f'
    shown = f'{value:,}' if isinstance(value, int) else f'{value:{form}}'
    return f'<td class="number"{style}>{shown}</td>'
  text = '' if value is None else escape(value)
  is_long = len(text) > _LONG_TEXT and not isinstance(value, Html)
  kind = ' class="text"' if is_long else ''
  return f'<td{kind}{style} dir="auto">{text}</td>'


def config(flat: dict) -> str:
  """A table of all keys; those that differ from their defaults marked."""
  usual = default_values()
  rows, changed = [], []
  for key, value in sorted(flat.items()):
    before = usual[key]
    if value != before:
      changed.append(len(rows))
    rows.append([f'config.{key}', json.dumps(value), json.dumps(before)])
  note = '<p>Highlighted keys differ from their defaults.</p>'
  return note + table(['key', 'value', 'default'], rows, changed)


def picture(content: bytes, description: str) -> str:
  """The content of a PNG file of figures.png, embedded.

  A figure whose letters would be less than 8 pixels high in a column of
  `COLUMN` has a row of its own. It scrolls where the page is too narrow for it.
  """
  data = base64.b64encode(content).decode()
  # Letters of 10 points are 8 pixels high at 57 pixels per inch.
  least = int.from_bytes(content[16:20]) * 57 // plots.DPI
  kind = 'wide picture' if least > 16 * COLUMN else 'picture'
  return (
    f'<div class="{kind}"><img style="--least-width: {least}px" '
    f'src="data:image/png;base64,{data}" alt="{escape(description)}"></div>'
  )


def figures(drawn: Iterable[str], least_rem: int) -> str:
  """Figures side by side, as many in a row as the page has room for.

  Args:
    drawn: each as `picture` returns it, or a chart.
    least_rem: width below which there are fewer in a row, in rem.
  """
  content = '\n'.join(drawn)
  return (
    f'<div class="figures" style="--least: {least_rem}rem">\n{content}\n</div>'
  )


def beside(tables: Iterable[str]) -> str:
  """Tables side by side, as far as the page has room; HTML."""
  content = '\n'.join(tables)
  return f'<div class="beside">\n{content}\n</div>'


def attention(texts: Sequence[tuple[str, str, AttentionMaps]]) -> str:
  """Interactive attention maps: selects text, layer and head, shows values.

  Args:
    texts: (title, note, attention maps) of each.
  """
  entries = []
  for title, note, maps in texts:
    entries.append(
      {
        'title': title,
        'note': note,
        'tokens': maps.tokens,
        'layers': maps.weights.shape[0],
        'heads': maps.weights.shape[1],
        'weights': _packed(maps.weights),
        'rollout': _packed(maps.rollout()),
      }
    )
  # So that '</script>' in a text does not end the element.
  data = json.dumps(entries).replace('<', '\\u003c')
  return (
    '<div class="attention">\n'
    f'<script type="application/json">{data}</script>\n</div>'
  )


def _packed(weights: np.ndarray) -> dict[str, Any]:
  """Weights as `unit` times 16-bit numbers, of which `zero` is 0.

  They are from 0 to 1, or of some normalisers negative or above 1.
  """
  weights = np.nan_to_num(weights, posinf=0.0, neginf=0.0)
  low = min(0.0, float(weights.min(initial=0.0)))
  high = max(1.0, float(weights.max(initial=1.0)))
  # One less, since both ends are rounded away from 0.
  unit = (high - low) / (_STEPS - 1)
  zero = math.ceil(-low / unit)
  numbers = (np.rint(weights / unit) + zero).astype('<u2')
  text = base64.b64encode(numbers.tobytes()).decode()
  return {'unit': unit, 'zero': zero, 'numbers': text}
