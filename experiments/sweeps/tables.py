"""The comparison of a sweep as a table, for Markdown, pages and terminals."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence

from experiments.learning import reports
from experiments.learning.reports import Table
from experiments.sweeps.comparison import LEAST, ROUNDING, SPLITS, Comparison
from experiments.sweeps.names import FOLD

_UNKNOWN = '± ?'
# Of a terminal.
_COLUMNS = 80


def conclusion(compared: Comparison) -> str | None:
  """Whether the best setting differs significantly from the baseline, or None.

  If the baseline is the best setting, the second best is compared with it.
  """
  others = [e for e in compared.table if e['setting'] != compared.baseline]
  if not others or 'difference' not in others[0]:
    return None
  difference = others[0]['difference']
  mean, half_width = difference['mean'], difference['half_width']
  seeds = _repetitions(compared.units, difference['n'])
  if difference['n'] < LEAST:
    verdict = f'no interval with {seeds} ({LEAST} are needed)'
  elif half_width is None and abs(mean) <= ROUNDING:
    verdict = f'equal in {seeds}'
  elif half_width is None:
    verdict = f'no interval from the same difference in {seeds}'
  elif abs(mean) <= half_width:
    verdict = f'no significant difference with {seeds}'
  else:
    is_better = compared.sign * mean > 0
    verdict = f'{"better" if is_better else "worse"} with {seeds}'
  return (
    f'{others[0]["setting"]} against {compared.baseline}: {compared.metric} on '
    f'test {_plus_minus(difference, "+")}, {verdict}'
  )


# Keys that distinguish repetitions, as words.
_WORDS = {'seed': 'seed', 'data.seed': 'data seed', FOLD: 'fold'}


def _repetitions(over: Sequence[str], count: int | None = None) -> str:
  """What they are called, and how many there are."""
  number = '' if count is None else f'{count} '
  plural = 's' * (count != 1)
  if len(over) > 1:
    return f'{number}repetition{plural} ({" and ".join(over)})'
  return f'{number}{_WORDS[over[0]]}{plural}'


def cells(compared: Comparison) -> tuple[list[str], list[list[str]]]:
  """Header and rows of the table, as text."""
  header = ['setting', 'n', *SPLITS]
  if compared.baseline is not None:
    header.append('test - baseline')
  lengths = lengths_of(compared)
  header += [f'{length} tokens' for length in lengths]
  body = []
  for entry in compared.table:
    of = f' of {entry["n"] + entry["missing"]}' if entry['missing'] else ''
    row = [entry['setting'], f'{entry["n"]}{of}']
    row += [_plus_minus(entry.get(split)) for split in SPLITS]
    if entry['setting'] == compared.baseline:
      row.append('baseline')
    elif compared.baseline is not None:
      row.append(_plus_minus(entry.get('difference'), '+'))
    by_length = entry.get('by_length', {})
    row += [_plus_minus(by_length.get(length)) for length in lengths]
    body.append(row)
  return header, body


def lengths_of(compared: Comparison) -> list[str]:
  """The lengths of windows in which some setting was evaluated, ascending."""
  lengths = {n for entry in compared.table for n in entry.get('by_length', {})}
  return sorted(lengths, key=int)


def _plus_minus(score: dict | None, sign: str = '') -> str:
  if score is None:
    return ''
  if score['n'] < LEAST and 'values' in score:
    means = map(statistics.fmean, score['values'].values())
    return ', '.join(f'{mean:.4f}' for mean in means)
  shown = f'{score["mean"]:{sign}.4f}'
  if score['half_width'] is not None:
    return f'{shown} ± {score["half_width"]:.4f}'
  return shown if score['n'] < LEAST else f'{shown} {_UNKNOWN}'


def caption(compared: Comparison) -> str:
  """A caption of the table."""
  over = _repetitions(compared.units)
  of = 'on the same data' if compared.units == ('seed',) else 'of the same data'
  text = (
    f'{compared.metric} of the checkpoint that is best on validation; the best '
    'setting on validation first.'
  )
  counts = [
    score['n'] for entry in compared.table if (score := entry.get('test'))
  ]
  if max(counts, default=0) >= LEAST:
    text += (
      f' Mean over {over} ± half-width of its 95% interval (Student), over '
      f'other {over} {of}.'
    )
  if min(counts, default=LEAST) < LEAST:
    text += f' With fewer than {LEAST} {over}, the value of each.'
  if any(not entry['n'] | entry['missing'] for entry in compared.table):
    text += f' n is 0 where models are trained, and have no {compared.metric}.'
  if lengths_of(compared):
    text += ' N tokens: bits per byte on test in windows of so many.'
  if any(_UNKNOWN in cell for row in cells(compared)[1] for cell in row):
    text += f' {_UNKNOWN}: equal in all {over}, so without interval.'
  return text


def markdown(compared: Comparison) -> str:
  """The table, its caption and the conclusion, as Markdown."""
  header, body = cells(compared)
  lines = [header, ['---'] * len(header), *body]
  escaped = [[cell.replace('|', r'\|') for cell in line] for line in lines]
  text = '\n'.join(f'| {" | ".join(line)} |' for line in escaped)
  parts = [text, caption(compared), conclusion(compared)]
  return '\n\n'.join(filter(None, parts)) + '\n'


def text(compared: Comparison) -> str:
  """The table and its caption, in aligned columns for a terminal.

  In a table that is wider than most terminals, names have lines of their own.
  """
  header, body = cells(compared)
  lines = reports.text(Table(header, body)).splitlines()
  if max(map(len, lines)) > _COLUMNS:
    named = [['', *row[1:]] for row in (header, *body)]
    lines = reports.text(Table(named[0], named[1:])).splitlines()
    for number, row in enumerate(body, 1):
      lines[number] = f'{row[0]}\n{lines[number]}'
  return '\n'.join([*lines, textwrap.fill(caption(compared), _COLUMNS)])
