"""The comparison of a sweep as a table, for Markdown, pages and terminals."""

from __future__ import annotations

from experiments.sweeps.comparison import FOLD, ROUNDING, SPLITS, Comparison

_UNKNOWN = '± ?'
# Columns of the table beside the keys that a setting changes.
_COLUMNS = ('setting', 'n', 'missing', *SPLITS, 'pooled', 'difference')


def conclusion(found: Comparison) -> str | None:
  """Whether the best setting differs significantly from the baseline, or None.

  If the baseline is the best setting, the second best is compared with it.
  """
  first = next((e for e in found.table if e['setting'] != found.baseline), {})
  if 'difference' not in first:
    return None
  entry = first
  difference = entry['difference']
  mean, half_width = difference['mean'], difference['half_width']
  seeds = _repetitions(found.units, difference['n'])
  verdict = 'better' if found.sign * mean > 0 else 'worse'
  if difference['n'] == 1:
    return f'{_against(entry, found)}, not tested with {seeds}'
  if half_width and abs(mean) <= half_width:
    verdict = 'no significant difference'
  elif half_width is None and abs(mean) <= ROUNDING:
    return f'{_against(entry, found)}, equal in {seeds}'
  elif half_width is None:
    verdict = 'no interval from the same difference in'
    return f'{_against(entry, found)}, {verdict} {seeds}'
  return f'{_against(entry, found)}, {verdict} with {seeds}'


def _against(entry: dict, found: Comparison) -> str:
  shown = _plus_minus(entry['difference'], '+')
  return (
    f'{entry["setting"]} against {found.baseline}: {found.metric} on test '
    f'{shown}'
  )


# Keys that distinguish repetitions, as words.
_WORDS = {'seed': 'seed', FOLD: 'fold'}


def _repetitions(over: tuple[str, ...], count: int | None = None) -> str:
  """What they are called, and how many there are."""
  number = '' if count is None else f'{count} '
  plural = 's' * (count != 1)
  if len(over) > 1:
    return f'{number}repetition{plural} ({" and ".join(over)})'
  if over[0] in _WORDS:
    return f'{number}{_WORDS[over[0]]}{plural}'
  return f'{number}value{plural} of {over[0]}'


def cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the table, as text."""
  header = ['setting', 'n', *SPLITS]
  is_pooled = any('pooled' in entry for entry in found.table)
  if is_pooled:
    header.append('test, pooled')
  if found.baseline is not None:
    header.append('test - baseline')
  body = []
  for entry in found.table:
    of = f' of {entry["n"] + entry["missing"]}' if entry['missing'] else ''
    row = [entry['setting'], f'{entry["n"]}{of}']
    row += [_plus_minus(entry.get(split)) for split in SPLITS]
    if is_pooled:
      row.append(f'{entry["pooled"]:.4f}' if 'pooled' in entry else '')
    if entry['setting'] == found.baseline:
      row.append('baseline')
    elif found.baseline is not None:
      row.append(_plus_minus(entry.get('difference'), '+'))
    body.append(row)
  return header, body


def _plus_minus(found: dict | None, sign: str = '') -> str:
  if found is None:
    return ''
  shown = f'{found["mean"]:{sign}.4f}'
  if found['half_width'] is not None:
    return f'{shown} ± {found["half_width"]:.4f}'
  return shown if found['std'] is None else f'{shown} {_UNKNOWN}'


def caption(found: Comparison) -> str:
  """A caption of the table."""
  over = _repetitions(found.units)
  of = 'of the same data' if FOLD in found.over else 'on the same data'
  text = (
    f'{found.metric} of the checkpoint that is best on validation, mean over '
    f'{over} ± half-width of its 95% interval (Student), over other {over} '
    f'{of}; the best setting on validation first.'
  )
  if any(_UNKNOWN in cell for row in cells(found)[1] for cell in row):
    text += f' {_UNKNOWN}: equal in all {over}, so without interval.'
  return text


def markdown(found: Comparison) -> str:
  """The table, its caption and the conclusion, as Markdown."""
  header, body = cells(found)
  lines = [header, ['---'] * len(header), *body]
  text = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  parts = [text, caption(found), conclusion(found)]
  return '\n\n'.join(filter(None, parts)) + '\n'


def terminal(found: Comparison):
  """The table for rich to print, with a column per key."""
  from rich import box
  from rich.table import Column, Table

  (first, *header), body = cells(found)
  keys = dict.fromkeys(k for e in found.table for k in e if k not in _COLUMNS)
  shown = Table(
    *[Column(name, overflow='fold') for name in keys or [first]],
    *[Column(name, no_wrap=True) for name in header],
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    caption=caption(found),
    caption_justify='left',
  )
  for entry, (name, *scores) in zip(found.table, body, strict=True):
    values = [str(entry.get(key, '')) for key in keys] or [name]
    shown.add_row(*values, *scores)
  return shown
