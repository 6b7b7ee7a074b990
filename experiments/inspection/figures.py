"""Figures of attention and of heads, each with its numbers.

Each is NAME.png with NAME.json: `arrays`, what is drawn or sown, to six digits,
and `labels`, the names of their axes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping

import numpy as np

from experiments.command.errors import writing
from experiments.inspection.head_analysis import AttentionMaps
from experiments.workdir import workdir as workdir_lib
from selfattn import plots

KINDS = ('png', 'json')
# Names of more tokens do not fit below a figure.
_MOST_NAMES = 64
SHARES = ('entropy', 'self', 'previous', 'next', 'first', 'separators')


def save(
  folder: str,
  name: str,
  figure,
  arrays: Mapping[str, np.ndarray],
  labels: Mapping,
) -> list[str]:
  """Writes both files; returns their names."""
  with writing(folder):
    os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, name)
  workdir_lib.write_figure(f'{path}.png', figure, dpi=plots.DPI)
  numbers = {
    name: _rounded(np.asarray(array)) for name, array in arrays.items()
  }
  text = json.dumps({'labels': labels, 'arrays': numbers}, ensure_ascii=False)
  workdir_lib.write_atomic(f'{path}.json', text)
  return [f'{name}.{kind}' for kind in KINDS]


def _rounded(array: np.ndarray) -> list:
  """As nested lists; JSON has no NaN, so that is None."""
  if array.dtype.kind != 'f':
    return array.tolist()
  flat = [float(f'{x:.6g}') if math.isfinite(x) else None for x in array.flat]
  return np.array(flat, object).reshape(array.shape).tolist()


def attention(folder: str, name: str, maps: AttentionMaps) -> list[str]:
  """Attention weights of all layers and heads."""
  return save(
    folder,
    name,
    plots.attention_maps(maps.weights, maps.tokens),
    {'weights': maps.weights},
    {'weights': ['layer', 'head', 'query', 'key'], 'tokens': maps.tokens},
  )


def rollout(folder: str, name: str, maps: AttentionMaps) -> list[str]:
  """Attention rollout: the share of each input token in each output token."""
  tokens, flow = maps.tokens, maps.rollout()
  return save(
    folder,
    name,
    plots.attention_maps(flow[None, None], tokens, ['rollout'], ['all layers']),
    {'rollout': flow},
    {'rollout': ['output token', 'input token'], 'tokens': tokens},
  )


def pooling(folder: str, name: str, maps: AttentionMaps) -> list[str]:
  """Weights of the tokens in the pooled vector, one row per hop."""
  hops, count = maps.pool_weights.shape
  has_names = count <= _MOST_NAMES
  figure = plots.show_heatmaps(
    maps.pool_weights[None, None],
    xlabel='token',
    ylabel='hop',
    figsize=(max(3.0, 0.19 * count) if has_names else 8.0, 1.6 + 0.3 * hops),
    yticks=range(hops),
    limits=(0.0, float(maps.pool_weights.max())),
  )
  if has_names:
    figure.axes[0].set_xticks(
      range(count), maps.tokens, rotation=90, **plots.TOKEN_STYLE
    )
  return save(
    folder,
    name,
    figure,
    {'weights': maps.pool_weights},
    {'weights': ['hop', 'token'], 'tokens': maps.tokens},
  )


def term(folder: str, name: str, P: np.ndarray, tokens: list[str]) -> list[str]:
  """What a position method has done in a text, with its tokens.

  Args:
    P: added to scores, (heads, queries, keys), or to vectors, (tokens, width).
  """
  limit = float(abs(P).max()) or 1.0
  is_score = P.ndim == 3
  count = len(tokens)
  maps = P if is_score else P[None]
  has_names = count <= _MOST_NAMES
  side = max(2.4, 0.16 * count) if has_names else 5.0
  figure = plots.show_heatmaps(
    maps[None],
    xlabel='key' if is_score else 'channel',
    ylabel='query' if is_score else 'token',
    titles=[f'head {n}' for n in range(len(P))] if is_score else None,
    figsize=(side * len(maps) + 1.6, side + 0.8),
    cmap='RdBu',
    limits=(-limit, limit),
  )
  if has_names:
    for axis in figure.axes[: len(maps)]:
      axis.set_yticks(range(count), tokens, **plots.TOKEN_STYLE)
      if is_score:
        axis.set_xticks(range(count), tokens, rotation=90, **plots.TOKEN_STYLE)
  axes = ['head', 'query', 'key'] if is_score else ['token', 'channel']
  return save(folder, name, figure, {'P': P}, {'P': axes, 'tokens': tokens})


def most_attended(maps: AttentionMaps) -> str:
  """One line per token: the key with the greatest weight, for each head."""
  names = maps.tokens
  layers, num_heads, _, _ = maps.weights.shape
  width = max(map(len, names))
  header = [f'{n}.{h}' for n in range(layers) for h in range(num_heads)]
  cell = max(width + 5, 8)
  lines = [
    'most attended token, by layer.head',
    ' ' * width + ''.join(f'  {text:<{cell}}' for text in header),
  ]
  for query, name in enumerate(names):
    line = f'{name:>{width}}'
    for weights in maps.weights[:, :, query].reshape(-1, len(names)):
      key = int(weights.argmax())
      line += f'  {names[key] + f" {weights[key]:.2f}":<{cell}}'
    lines.append(line.rstrip())
  return '\n'.join(lines)


def heads_table(rows: list[dict]) -> str:
  """One line per head: statistics and, if ablated, importance and accuracy."""

  def cell(name, value):
    text = '' if value is None else f'{value:.3g}'
    return f'{text:>{max(len(name), 8)}}'

  lines = ['  '.join(f'{name:>{max(len(name), 8)}}' for name in rows[0])]
  for row in rows:
    lines.append('  '.join(cell(name, value) for name, value in row.items()))
  return '\n'.join(lines)


def heads(folder: str, rows: list[dict]) -> list[str]:
  """Statistics of each head."""
  names = list(rows[0])
  values = np.array([[row[name] for name in names] for row in rows], float)
  shares = values[:, [names.index(name) for name in SHARES]]
  figure = plots.show_heatmaps(
    shares[None, None],
    xlabel='',
    ylabel='layer.head (mean distance in tokens)',
    figsize=(5.2, 1.6 + 0.3 * len(rows)),
    xticks=SHARES,
    yticks=[
      f'{row["layer"]}.{row["head"]} ({row["distance"]:.1f})' for row in rows
    ],
    limits=(0.0, 1.0),
  )
  texts = ['' if np.isnan(s) else f'{s:.2f}' for s in shares.ravel()]
  plots.write_cells(figure.axes[0], np.reshape(texts, shares.shape))
  labels = {'table': ['head', 'column'], 'columns': names}
  return save(folder, 'heads', figure, {'table': values}, labels)


def ablation(folder: str, accuracies: Mapping) -> list[str]:
  """Accuracy as heads are ablated.

  Args:
    accuracies: returned by ablation.ablate.
  """
  orders = ('least_important_first', 'most_important_first')
  names = [order.replace('_', ' ') for order in orders]
  curves = [accuracies[order] for order in orders]
  figure = plots.plot(
    np.arange(len(curves[0])),
    curves,
    xlabel='heads ablated',
    ylabel=f'accuracy on {accuracies["examples"]} texts',
    legend=names,
    figsize=(5.2, 3.2),
  )
  return save(
    folder,
    'ablation',
    figure,
    {'accuracy': np.array(curves)},
    {'accuracy': ['order', 'heads ablated'], 'order': names},
  )
