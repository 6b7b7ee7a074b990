"""Figures of arrays. matplotlib is imported only for drawing.

The global state of matplotlib is not used: each function makes and returns a
figure, without a window. `figure.savefig(path)` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The palette of Okabe and Ito, distinguishable by colour-blind readers.
COLOURS = ('#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00')
DPI = 130  # of bitmap figures
# The style of tokens on an axis. A dollar sign in a token is no formula.
TOKEN_STYLE = {'parse_math': False, 'fontsize': 7}
_PADDING = '0.85'
# A map has room for the names of so many tokens, and pixels for the cells of
# so many.
_MOST_NAMES, _MOST_CELLS = 64, 160
# Maps with names are together at most so wide and high, in inches.
_MOST_INCHES = 80.0


def _figure(num_rows, num_columns, figsize) -> tuple[Any, np.ndarray]:
  """A figure, and its axes, (rows, columns)."""
  from matplotlib.figure import Figure  # about 0.5 s, so only when drawing

  figure = Figure(figsize=figsize, layout='constrained')
  return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def plot(
  X, Y=None, xlabel='', ylabel='', legend=(), figsize=(3.5, 2.5), title=''
):
  """Curves over X; returns the matplotlib figure.

  Args:
    X: (n,).
    Y: (n,), or (curves, n).
    legend: one name per curve.

  Examples:
    >>> x, curves = jnp.arange(5), jnp.ones((2, 5))
    >>> figure = selfattn.plot(x, curves, legend=['a', 'b'])
    >>> len(figure.axes[0].lines)
    2
  """
  if Y is None:
    X, Y = np.arange(np.shape(X)[-1]), X
  figure, axes = _figure(1, 1, figsize)
  axis = axes[0, 0]
  for index, curve in enumerate(np.atleast_2d(np.asarray(Y))):
    axis.plot(np.asarray(X), curve, **style(index))
  axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
  axis.grid(alpha=0.3)
  if len(legend):
    # Beside the curves, not over them.
    axis.legend(list(legend), loc='upper left', bbox_to_anchor=(1, 1))
  return figure


def show_heatmaps(
  matrices,
  xlabel,
  ylabel,
  titles=None,
  figsize=(2.5, 2.5),
  cmap='Blues',
  xticks=None,
  yticks=None,
  limits=None,
  first_row=0,
  first_column=0,
):
  """A grid of heat maps on one colour scale; returns the matplotlib figure.

  Args:
    matrices: (rows, columns, height, width): one map for each row and column;
      NaN is drawn grey.
    titles: one for each column.
    xticks: names of the width, `yticks` of the height.
    limits: of the colour scale; None: the least and the greatest value.
    first_row, first_column: index of the first cell of each axis.

  Examples:
    >>> weights_BHLM = jnp.ones((2, 3, 5, 7))
    >>> figure = selfattn.show_heatmaps(weights_BHLM, 'key', 'query')
    >>> len(figure.axes)  # of the maps, and of the scale of colours
    7
  """
  matrices = np.asarray(matrices)
  figure, axes = _figure(matrices.shape[0], matrices.shape[1], figsize)
  low, high = limits or (float(np.nanmin(matrices)), float(np.nanmax(matrices)))
  for axis, matrix in zip(
    axes.flat, matrices.reshape(-1, *matrices.shape[2:]), strict=True
  ):
    axis.set_facecolor(_PADDING)
    height, width = matrix.shape
    left, top = first_column - 0.5, first_row - 0.5
    image = axis.imshow(
      matrix,
      cmap=cmap,
      vmin=low,
      vmax=high,
      aspect='auto',
      extent=(left, left + width, top + height, top),
    )
    if xticks is not None:
      axis.set_xticks(range(len(xticks)), xticks, rotation=90)
    if yticks is not None:
      axis.set_yticks(range(len(yticks)), yticks)
  for axis in axes[-1]:
    axis.set_xlabel(xlabel)
  for axis in axes[:, 0]:
    axis.set_ylabel(ylabel)
  if titles is not None:
    for axis, title in zip(axes[0], titles, strict=True):
      axis.set_title(title)
  figure.colorbar(image, ax=axes, shrink=0.6)
  return figure


def attention_maps(
  weights_NHLM: np.ndarray,
  tokens: Sequence[str],
  rows: Sequence[str] = (),
  columns: Sequence[str] = (),
):
  """A map for each layer (row) and head (column); returns the figure.

  All maps share one scale from 0; with negative weights, 0 is in its middle.
  Queries are on the left and keys below, with the tokens as names where there
  are few enough. With more tokens than pixels, a cell shows the largest weight
  of a block, and the title says so.

  Args:
    weights_NHLM: layers, heads, queries, keys; L = M.
    tokens: names of the first len(tokens) tokens; the others are padding, which
      is drawn grey.
    rows, columns: titles; none: 'layer 0', 'head 0' and so on.
  """
  weights_NHLM = np.asarray(weights_NHLM, float)
  num_layers, num_heads, length, _ = weights_NHLM.shape
  rows = rows or [f'layer {n}' for n in range(num_layers)]
  columns = columns or [f'head {n}' for n in range(num_heads)]
  is_padding = np.arange(length) >= len(tokens)
  hidden = is_padding[:, None] | is_padding
  shown = np.where(hidden, np.nan, weights_NHLM)
  block = -(-length // _MOST_CELLS)
  shown = block_maximum(shown, block)
  high = float(np.nanmax(abs(shown), initial=0.0)) or 1.0

  is_signed = bool((weights_NHLM < 0).any())
  side, most = max(2.4, 0.19 * length), max(num_layers, num_heads)
  has_names = length <= _MOST_NAMES and side * most <= _MOST_INCHES
  if not has_names:
    side = max(2.4, min(5.0, _MOST_INCHES / most))
  figure, axes = _figure(
    num_layers, num_heads, (side * num_heads + 0.8, side * num_layers + 0.4)
  )
  for layer, head in np.ndindex(num_layers, num_heads):
    axis: Any = axes[layer, head]
    axis.set_facecolor(_PADDING)
    image = axis.imshow(
      shown[layer, head],
      cmap='RdBu' if is_signed else 'Blues',
      vmin=-high if is_signed else 0.0,
      vmax=high,
      interpolation='nearest',
      extent=(-0.5, length - 0.5, length - 0.5, -0.5),
    )
    title = f'{rows[layer]}, {columns[head]}'
    if block > 1:
      title += f'\nlargest of each {block} x {block}'
    axis.set_title(title, fontsize='small')
    if has_names:
      axis.set_xticks(range(len(tokens)), tokens, rotation=90, **TOKEN_STYLE)
      axis.set_yticks(range(len(tokens)), tokens, **TOKEN_STYLE)
  for axis in axes[-1]:
    axis.set_xlabel('key')
  for axis in axes[:, 0]:
    axis.set_ylabel('query')
  figure.colorbar(image, ax=axes, shrink=0.6, label='weight')
  return figure


def block_maximum(x: np.ndarray, size: int) -> np.ndarray:
  """The maximum of each size x size block of the last two axes.

  NaN where a block has only NaN; the last blocks of an axis may be smaller.
  """
  height, width = x.shape[-2:]
  fill = [(0, 0)] * (x.ndim - 2) + [(0, -height % size), (0, -width % size)]
  x = np.pad(x, fill, constant_values=np.nan)
  shape = (*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1] // size, size)
  return np.fmax.reduce(np.fmax.reduce(x.reshape(shape), axis=-1), axis=-2)


def distance_curves(
  distances: np.ndarray, values_HN: np.ndarray, ylabel: str, max_length: int
):
  """A curve over distance for each head; returns the figure.

  Args:
    distances: key - query, (N,).
    values_HN: a scalar per head and distance.
    max_length: largest number of tokens of a text; its distances are marked.
  """
  heads = [f'head {n}' for n in range(len(values_HN))]
  figure = plot(
    distances,
    values_HN,
    xlabel='distance, key - query (tokens)',
    ylabel=ylabel,
    legend=heads,
    figsize=(6.4, 3.2),
  )
  (axis,) = figure.axes
  # Of a causal encoder there are none after 0.
  ends = np.clip((-max_length, max_length), distances.min(), distances.max())
  axis.axvspan(*ends, color='0.93', zorder=0)
  axis.set_title(f'grey: up to max_length = {max_length}', fontsize=9)
  return figure


def panels(parts: Sequence[tuple]):
  """Curves in panels side by side; returns the matplotlib figure.

  Values are on logarithmic axes; a value of zero is left out.

  Args:
    parts: of each panel (xlabel, ylabel, scale of x, x, curves by name). Curves
      whose names are equal up to a comma have the same colour.
  """
  figure, axes = _figure(1, len(parts), (4.0 * len(parts), 3.2))
  colours: dict[str, int] = {}
  for axis, (xlabel, ylabel, scale, x, curves) in zip(
    axes[0], parts, strict=True
  ):
    for name, values in curves.items():
      index = colours.setdefault(name.partition(',')[0], len(colours))
      values = np.asarray(values, float)
      shown = np.where(values > 0, values, np.nan)
      axis.plot(x, shown, label=name, marker='.', **style(index))
    axis.set(xlabel=xlabel, ylabel=ylabel, xscale=scale, yscale='log')
    if scale == 'log':
      axis.set_xticks(x, [str(value) for value in x])
      axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize='small')
  return figure


def style(index: int) -> dict:
  """Colour and line style of a curve; each pair occurs once in 24."""
  lines = ('-', '--', ':', '-.')
  return {
    'color': COLOURS[index % len(COLOURS)],
    'linestyle': lines[index // len(COLOURS) % len(lines)],
  }
