"""Pictures of arrays. Importing this costs nothing; drawing needs matplotlib.

Nothing here touches global state of matplotlib: each function makes its own
figure, without a window, and returns it. `figure.savefig(path)` writes it.
"""

from __future__ import annotations

import numpy as np


def _figure(num_rows, num_columns, figsize):
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
    legend: one name a curve.
  """
  if Y is None:
    X, Y = np.arange(np.shape(X)[-1]), X
  figure, axes = _figure(1, 1, figsize)
  axis = axes[0, 0]
  for curve in np.atleast_2d(np.asarray(Y)):
    axis.plot(np.asarray(X), curve)
  axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
  axis.grid(alpha=0.3)
  if len(legend):
    axis.legend(list(legend))
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
):
  """A grid of heat maps on one colour scale; returns the matplotlib figure.

  Args:
    matrices: (rows, columns, height, width): one map for each row and column.
    titles: one for each column.
    xticks: names of the width, `yticks` of the height.
  """
  matrices = np.asarray(matrices)
  figure, axes = _figure(*matrices.shape[:2], figsize)
  low, high = float(matrices.min()), float(matrices.max())
  for axis, matrix in zip(
    axes.flat, matrices.reshape(-1, *matrices.shape[2:]), strict=True
  ):
    image = axis.imshow(matrix, cmap=cmap, vmin=low, vmax=high, aspect='auto')
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
