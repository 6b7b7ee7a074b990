"""Draws docs/measured.png from docs/results/: methods by length and by task.

bash scripts/run.sh python scripts/draw_results.py
"""

import pathlib

import numpy as np
import results
from matplotlib.figure import Figure

from selfattn import plots, positions
from selfattn.positions import POSITIONS

ROOT = pathlib.Path(__file__).parent.parent
# Files of the table on docs/language_models.md.
LENGTHS = ('lengths_basic',)
# Chance of each task on long strings.
TASKS = {
  'a_before_b': 0.5,
  'even_pairs': 0.51,
  'flip_flop': 0.5,
  'cycle_navigation': 0.2,
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
  causal = POSITIONS[name].causal_only
  hooks = positions.make({name: {}}, 64, 4, causal, 1000).hooks
  # What reads the text may also rotate or have a bias.
  kinds = [of for of, any_of in KINDS.items() if hooks & set(any_of)]
  return kinds[-1] if kinds else 'no positions'


def by_length(axis) -> None:
  """Bits per byte of language models against the length of their windows."""
  rows = [row for file in LENGTHS for row in results.rows(file)]
  ends = []
  for row in rows:
    name = row['model.position']
    lengths = [int(length) for length in row['by_length']]
    bits = [of_length['mean'] for of_length in row['by_length'].values()]
    colour = plots.COLOURS[list(KINDS).index(kind(name.partition('(')[0]))]
    axis.plot(lengths, bits, 'o-', color=colour, markersize=3)
    ends.append((bits[-1], lengths[-1], name, colour))
  # Names beside the ends of the lines, where they do not overlap.
  below = -np.inf
  for bits, length, name, colour in sorted(ends):
    below = max(bits, below + 0.16)
    axis.annotate(
      name,
      (length, bits),
      (1.12 * length, below),
      color=colour,
      fontsize=8,
      va='center',
    )
  axis.set_ylim(top=below + 0.16)
  axis.set_xscale('log', base=2)
  axis.set_xticks(lengths, [f'{length:,}' for length in lengths])
  axis.set_xlim(right=lengths[-1] * 3.2)
  axis.set_xlabel('length of the window; trained on 128')
  axis.set_ylabel('bits per byte, IMDB test')
  drawn = {colour for *_, colour in ends}
  for of, colour in zip(KINDS, plots.COLOURS, strict=True):
    if colour in drawn:
      axis.plot([], [], color=colour, label=of)
  axis.legend(fontsize=7, frameon=False, loc='upper left')


def by_task(axis) -> None:
  """Accuracy on strings of 21 to 100 tokens; trained on up to 20."""
  scores = {
    task: {row['model.position.name']: row['test']['mean'] for row in rows}
    for task in TASKS
    if (rows := results.rows(task))
  }
  names = sorted(
    set.intersection(*(set(of_task) for of_task in scores.values())),
    key=lambda name: -sum(of_task[name] for of_task in scores.values()),
  )
  table = np.array(
    [[of_task[name] for of_task in scores.values()] for name in names]
  )
  # From chance to all right, so that columns can be compared.
  chance = np.array(list(TASKS.values()))
  axis.imshow(
    (table - chance) / (1 - chance),
    cmap='Blues',
    vmin=0,
    vmax=1.4,
    aspect='auto',
  )
  for (row, column), score in np.ndenumerate(table):
    axis.text(column, row, f'{score:.2f}', ha='center', va='center', fontsize=7)
  axis.set_xticks(range(len(TASKS)), list(TASKS), rotation=20, ha='right')
  axis.set_yticks(range(len(names)), names, fontsize=8)
  axis.set_title('accuracy on strings up to five times as long', fontsize=9)


def main():
  figure = Figure(figsize=(11, 5.5), layout='constrained')
  left, right = figure.subplots(1, 2, width_ratios=(3, 2))
  by_length(left)
  by_task(right)
  path = ROOT / 'docs/measured.png'
  figure.savefig(path, dpi=plots.DPI)
  print(path)


if __name__ == '__main__':
  main()
