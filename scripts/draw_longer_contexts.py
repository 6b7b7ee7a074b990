"""Draws docs/longer_contexts.png from docs/results/: a model read further.

    bash scripts/run.sh python scripts/draw_longer_contexts.py

Above, bits per byte, entropy of attention and its share on the first token, by
length of the window; below, the accuracy of retrieval by depth and length, and
that of MQAR by the place of the question.
"""

import pathlib
import re
from typing import Any

import numpy as np
import results
from matplotlib.figure import Figure

from configs import longer_contexts, passkey
from selfattn import plots

ROOT = pathlib.Path(__file__).parent.parent
TRAINED = 128
# Each has a colour.
WAYS = (
  'rotary',
  'none',
  'window',
  'dynamic',
  'linear',
  'ntk',
  'yarn',
  'llama3',
)
# What the layers of a way read.
ENCODERS = {
  'attention(causal=True)': '{}',
  longer_contexts.WINDOW: 'window',
  passkey.LOCAL: 'window of 112',
  passkey.FIRST_LOCAL: '{}\nfirst layer: 112',
}
# Measures of attention in the file of attention.
MEASURES = {
  'attention_entropy': 'entropy of attention, nats',
  'attention_to_first': 'share of attention on the first token',
}


def short(setting: str) -> str:
  """A way, as the figure names it: what it is, its factor, and its window."""
  position, _, encoder = setting.partition(', encoder=')
  parts = re.findall(r'(?:scaling|factor)=(\w+)', position)
  way = ', '.join(parts) or re.findall(r'position=(\w+)', position)[0]
  return ENCODERS[encoder].format(way)


def curve(axis, by_length: dict, setting: str) -> None:
  """A way by length; factor 4 is dashed."""
  lengths = [int(length) for length in by_length]
  means = [summary['mean'] for summary in by_length.values()]
  way, _, factor = short(setting).partition(', ')
  style = f'C{WAYS.index(way)}' + ('--' if factor == '4' else '-')
  axis.plot(lengths, means, style, label=short(setting))
  axis.set_xscale('log', base=2)
  axis.set_xticks(lengths, [f'{length:,}' for length in lengths])
  axis.tick_params(labelsize=7)


def curves(axes) -> None:
  """Loss by length, and measures of attention by length."""
  loss, *of_attention = axes
  for row in results.rows('longer_contexts'):
    curve(loss, row['by_length'], row['setting'])
  loss.set_title('bits per byte', fontsize=9)
  loss.set_xlabel(f'bytes of a window; {TRAINED} in training', fontsize=8)
  rows = {row['setting']: row for row in results.rows('longer_attention')}
  for axis, (measure, title) in zip(
    of_attention, MEASURES.items(), strict=True
  ):
    for row in results.rows('longer_contexts'):
      setting = row['setting']
      curve(axis, rows[setting]['measures_by_length'][measure], setting)
    axis.set_title(title, fontsize=9)
  axes[-1].legend(fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5))


def heat_maps(figure, file: str, depth: str) -> None:
  """Accuracy by depth and length, one map for each way.

  Args:
    file: of results.
    depth: what it is of.
  """
  rows = results.rows(file)
  settings = list(dict.fromkeys(row['setting'] for row in rows))
  lengths = sorted({row['length'] for row in rows})
  depths = sorted({row['depth'] for row in rows})
  axes = figure.subplots(2, len(settings) // 2, sharex=True, sharey=True)
  for axis, setting in zip(axes.flat, settings, strict=True):
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
  axes[1, 0].set_ylabel(depth, fontsize=8)
  axes[1, 0].set_xlabel('tokens of a text', fontsize=8)
  bar = figure.colorbar(image, ax=axes, pad=0.01)
  bar.set_label('accuracy', fontsize=8)
  bar.ax.tick_params(labelsize=7)


def main():
  figure = Figure(figsize=(13, 14), layout='constrained')
  parts: Any = figure.subfigures(3, 1, height_ratios=(2, 3, 3))
  curves(parts[0].subplots(1, 1 + len(MEASURES)))
  heat_maps(parts[1], 'longer_passkeys', 'passkeys: depth of the keys')
  heat_maps(parts[2], 'longer_recall', 'MQAR: tenth with the question')
  path = ROOT / 'docs/longer_contexts.png'
  figure.savefig(path, dpi=plots.DPI)
  print(path)


if __name__ == '__main__':
  main()
