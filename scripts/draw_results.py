"""Draws docs/measured.png from docs/results/: methods by length and by task.

bash scripts/run.sh python scripts/draw_results.py
"""

import pathlib
from typing import Any

import numpy as np
import results
from matplotlib.figure import Figure

from selfattn import plots, positions
from selfattn.positions import POSITIONS

ROOT = pathlib.Path(__file__).parent.parent
# Files of the table on docs/language_models.md.
LENGTHS = ('lengths_methods', 'lengths_more', 'lengths_variants')
# Of each task, chance on long strings, and the files of its scores.
TASKS = {
  'a_before_b': (0.5, ['a_before_b', 'a_before_b_newest']),
  'even_pairs': (0.51, ['even_pairs', 'even_pairs_newest']),
  'flip_flop': (0.5, ['flip_flop', 'flip_flop_newest']),
  'cycle_navigation': (0.2, ['cycle_navigation', 'cycle_navigation_newest']),
  'mqar': (0.125, ['mqar']),
}
KINDS = {
  'no positions': (),
  'added to embeddings': ('embed',),
  'rotation': ('rotate',),
  'bias': ('bias',),
  'term of queries and keys': ('content',),
  'read from the text': ('state', 'scores'),
}


def kind(name: str) -> str:
  """What a method does, as the headings of docs/positions.md say it."""
  names = [part.partition('(')[0] for part in name.split('+')]
  causal = any(POSITIONS[part].causal_only for part in names)
  options: dict[str, dict] = {part: {} for part in names}
  hooks = positions.make(options, 64, 4, causal, 1000).hooks
  # What reads the text may also rotate or have a bias.
  kinds = [of for of, any_of in KINDS.items() if hooks & set(any_of)]
  return kinds[-1] if kinds else 'no positions'


def by_length(axes) -> None:
  """Bits per byte of language models against the length of their windows.

  One axis for each kind of methods, with those of other kinds in grey.
  """
  rows = [row for file in LENGTHS for row in results.rows(file)]
  for axis, of in zip(axes, KINDS, strict=True):
    ends = []
    for row in rows:
      name = row['model.position']
      lengths = [int(length) for length in row['by_length']]
      bits = [at_length['mean'] for at_length in row['by_length'].values()]
      if kind(name) == of:
        axis.plot(lengths, bits, 'o-', markersize=2.5, linewidth=1.2, zorder=3)
        ends.append((bits[-1], lengths[-1], name, axis.lines[-1].get_color()))
      else:
        axis.plot(lengths, bits, color='0.85', linewidth=0.7)
    _write_names(axis, ends)
    axis.set_xscale('log', base=2)
    axis.set_yscale('log')
    axis.set_yticks([2, 3, 4, 5, 6], list('23456'))
    axis.yaxis.set_minor_formatter('')
    axis.set_xticks([128, 512, 2048], ['128', '512', '2,048'])
    axis.set_xlim(right=2048 * 30)
    axis.set_title(of, fontsize=9)


def _write_names(axis, ends) -> None:
  """Names right of the lines, joined to their ends; none overlap."""
  below = 1.83
  for bits, length, name, colour in sorted(ends):
    below = max(bits, 1.07 * below)
    axis.annotate(
      name.replace('(max_len=128)', ''),
      (length, bits),
      (1.6 * 2048, below),
      color=colour,
      fontsize=7,
      va='center',
      arrowprops={
        'arrowstyle': '-',
        'color': colour,
        'linewidth': 0.5,
        'linestyle': ':',
        'relpos': (0, 0.5),
      },
    )


def by_task(axis) -> None:
  """Accuracy on strings longer than in training."""
  scores = [
    {_method(row): row['test'] for file in files for row in results.rows(file)}
    for _, files in TASKS.values()
  ]
  names = sorted(
    set.union(*map(set, scores)),
    key=lambda name: -np.mean([x[name]['mean'] for x in scores if name in x]),
  )
  table = np.array(
    [
      [x[name]['mean'] if name in x else np.nan for x in scores]
      for name in names
    ]
  )
  # From chance to all right, so that columns can be compared.
  chance = np.array([chance for chance, _ in TASKS.values()])
  axis.imshow(
    (table - chance) / (1 - chance),
    cmap='Blues',
    vmin=0,
    vmax=1.4,
    aspect='auto',
  )
  for (row, column), score in np.ndenumerate(table):
    text = '' if np.isnan(score) else f'{score:.2f}'
    axis.text(column, row, text, ha='center', va='center', fontsize=7)
  axis.set_xticks(range(len(TASKS)), list(TASKS), rotation=20, ha='right')
  axis.set_yticks(range(len(names)), names, fontsize=8)
  axis.set_title('accuracy on strings longer than in training', fontsize=9)


def _method(row: dict) -> str:
  name = row.get('model.position.name') or row['model.position']
  return name.partition('(')[0]


def main():
  figure = Figure(figsize=(13, 6), layout='constrained')
  halves: Any = figure.subfigures(1, 2, width_ratios=(3, 1.3))
  left, right = halves
  axes = left.subplots(2, 3, sharex=True, sharey=True)
  by_length(axes.flat)
  left.supxlabel('length of the window in bytes; trained on 128', fontsize=9)
  left.supylabel('bits per byte of IMDB test, logarithmic', fontsize=9)
  by_task(right.subplots())
  path = ROOT / 'docs/measured.png'
  figure.savefig(path, dpi=plots.DPI)
  print(path)


if __name__ == '__main__':
  main()
