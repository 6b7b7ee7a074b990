"""Draws docs/longer_contexts.png from docs/results/: a model read further.

    bash scripts/run.sh python scripts/draw_longer_contexts.py

Above, bits per byte, entropy of attention and its share on the first token, by
length of the window; below, the accuracy of retrieval by depth and length.
"""

import pathlib
import re
from typing import Any

import numpy as np
import results
from matplotlib.figure import Figure

from selfattn import plots

ROOT = pathlib.Path(__file__).parent.parent
TRAINED = 128
# Of each curve: its title, and its column in the file of ways.
CURVES = {
  'bits per byte': 'by_length',
  'entropy of attention, nats': 'attention_entropy',
  'share of attention on the first token': 'attention_to_first',
}


def short(name: str) -> str:
  """A way, as the figure names it: its scaling and factor."""
  if 'window' in name:
    return f'window of {TRAINED}'
  scaling = re.search(r'scaling=(\w+)', name)
  factor = re.search(r'factor=(\d+)', name)
  parts = [found[1] for found in (scaling, factor) if found]
  return ', '.join(parts) or name.rpartition('=')[2]


def curves(axes) -> None:
  """Each way by length, one axis for each column."""
  for row in results.rows('longer_contexts'):
    dashed = '--' if '4' in short(row['setting']).split(', ') else '-'
    for axis, column in zip(axes, CURVES.values(), strict=True):
      by_length = row.get(column) or row['measures_by_length'][column]
      lengths = [int(length) for length in by_length]
      means = [summary['mean'] for summary in by_length.values()]
      axis.plot(lengths, means, dashed, label=short(row['setting']))
  for axis, title in zip(axes, CURVES, strict=True):
    axis.set_xscale('log', base=2)
    axis.set_xticks(lengths, [f'{length:,}' for length in lengths])
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=7)
  axes[0].set_xlabel(f'tokens of a window; {TRAINED} in training', fontsize=8)
  axes[-1].legend(fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5))


def heat_maps(figure) -> None:
  """Retrieval by depth and length, one map for each way."""
  rows = results.rows('longer_passkeys')
  settings = list(dict.fromkeys(row['setting'] for row in rows))
  lengths = sorted({row['length'] for row in rows})
  depths = sorted({row['depth'] for row in rows})
  axes = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
  for axis, setting in zip(axes, settings, strict=True):
    table = np.full((len(depths), len(lengths)), np.nan)
    for row in rows:
      if row['setting'] == setting:
        place = depths.index(row['depth']), lengths.index(row['length'])
        table[place] = row['accuracy']['mean']
    image = axis.imshow(table, cmap='viridis', vmin=0, vmax=1, aspect='auto')
    axis.set_xticks(range(len(lengths)), [f'{n:,}' for n in lengths])
    axis.set_yticks(range(len(depths)), depths)
    axis.tick_params(labelsize=7)
    axis.set_title(short(setting), fontsize=9)
  axes[0].set_ylabel('depth of the keys, from the start', fontsize=8)
  axes[0].set_xlabel('tokens of a text', fontsize=8)
  bar = figure.colorbar(image, ax=axes, label='accuracy', pad=0.01)
  bar.ax.tick_params(labelsize=7)


def main():
  figure = Figure(figsize=(13, 6.5), layout='constrained')
  halves: Any = figure.subfigures(2, 1)
  above, below = halves
  curves(above.subplots(1, len(CURVES)))
  heat_maps(below)
  path = ROOT / 'docs/longer_contexts.png'
  figure.savefig(path, dpi=plots.DPI)
  print(path)


if __name__ == '__main__':
  main()
