"""Figures of attention and of heads, and the numbers that they show."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping

import numpy as np

from experiments.command.log import log
from experiments.inspection.head_analysis import AttentionMaps
from experiments.workdir import workdir as workdir_lib
from selfattn import plots

NUMBERS = 'numbers.json'
# Names of more tokens do not fit below a figure.
_MOST_NAMES = 64
# Numbers of a larger array are not written as text.
_MOST_NUMBERS = 2**20


class Figures:
  """Figures of a folder: each is NAME.png, and numbers.json has their numbers.

  Attributes:
    pngs: content of each file, by NAME.
    numbers: content of numbers.json: arrays and `labels` of each figure.
  """

  def __init__(self, folder: str):
    self.pngs: dict[str, bytes] = {}
    self._folder = folder
    self.numbers: dict[str, dict] = {}

  def add(
    self,
    name: str,
    figure,
    arrays: Mapping[str, np.ndarray],
    labels: Mapping,
  ) -> None:
    """Adds a matplotlib figure.

    Args:
      arrays: what is drawn or was sown, unrounded.
      labels: names of the axes of each array, and of its tokens, among others.
    """
    self.pngs[name] = png(figure)
    kept = {}
    for key, values in arrays.items():
      if np.size(values) > _MOST_NUMBERS:
        log(f'{name}: {key} is too large for {NUMBERS}')
      else:
        kept[key] = np.asarray(values).tolist()
    self.numbers[name] = kept | {'labels': labels}

  def write(self) -> list[str]:
    """Writes the files; returns their names."""
    os.makedirs(self._folder, exist_ok=True)
    files: dict[str, str | bytes] = {
      f'{name}.png': content for name, content in self.pngs.items()
    }
    files[NUMBERS] = json.dumps(self.numbers, ensure_ascii=False)
    for name, content in files.items():
      workdir_lib.write_atomic(os.path.join(self._folder, name), content)
    return list(files)


def png(figure) -> bytes:
  """A matplotlib figure as the content of a PNG file."""
  drawn = io.BytesIO()
  figure.savefig(drawn, format='png', dpi=plots.DPI)
  return drawn.getvalue()


def attention(drawn: Figures, name: str, maps: AttentionMaps) -> None:
  """Attention weights of all layers and heads."""
  drawn.add(
    name,
    plots.attention_maps(maps.weights, maps.tokens),
    {'weights': maps.weights},
    {'weights': ['layer', 'head', 'query', 'key'], 'tokens': maps.tokens},
  )


def rollout(drawn: Figures, name: str, maps: AttentionMaps) -> None:
  """Attention rollout: the share of each input token in each output token."""
  tokens, flow = maps.tokens, maps.rollout()
  drawn.add(
    name,
    plots.attention_maps(flow[None, None], tokens, ['rollout'], ['all layers']),
    {'rollout': flow},
    {'rollout': ['output token', 'input token'], 'tokens': tokens},
  )


def pooling(
  drawn: Figures, name: str, weights: np.ndarray, tokens: list[str]
) -> None:
  """Weights (hops, tokens) of the tokens in the pooled vector."""
  hops, count = weights.shape
  has_names = count <= _MOST_NAMES
  figure = plots.show_heatmaps(
    weights[None, None],
    xlabel='token',
    ylabel='hop',
    figsize=(max(3.0, 0.19 * count) if has_names else 8.0, 1.6 + 0.3 * hops),
    yticks=range(hops),
    limits=(0.0, float(weights.max())),
  )
  if has_names:
    style = plots.TOKEN_STYLE
    figure.axes[0].set_xticks(range(count), tokens, rotation=90, **style)
  drawn.add(
    name,
    figure,
    {'weights': weights},
    {'weights': ['hop', 'token'], 'tokens': tokens},
  )


def attended(scores: np.ndarray) -> np.ndarray:
  """Scores (..., queries, keys) of a causal encoder: NaN at later keys."""
  is_attended = np.tri(*scores.shape[-2:], dtype=bool)
  return np.where(is_attended, scores, np.nan)


def term(
  drawn: Figures,
  name: str,
  P: np.ndarray,
  tokens: list[str],
  is_causal: bool,
) -> None:
  """What a position method has done in a text, with its tokens.

  Args:
    P: added to scores, (heads, queries, keys), or to vectors, (tokens, width).
    is_causal: whether later keys, which no query attends to, are left out.
  """
  is_score = P.ndim == 3
  count = len(tokens)
  maps = P if is_score else P[None]
  if is_score and is_causal:
    maps = attended(P)
  limit = float(np.nanmax(abs(maps))) or 1.0
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
    style = plots.TOKEN_STYLE
    for axis in figure.axes[: len(maps)]:
      axis.set_yticks(range(count), tokens, **style)
      if is_score:
        axis.set_xticks(range(count), tokens, rotation=90, **style)
  axes = ['head', 'query', 'key'] if is_score else ['token', 'channel']
  drawn.add(name, figure, {'P': P}, {'P': axes, 'tokens': tokens})
