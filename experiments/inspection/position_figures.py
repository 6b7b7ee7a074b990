"""Figures of position methods, trained or at initialisation.

P, as sown by a forward pass, is either a term of the scores, or has one row per
position or per distance. Biases are drawn over distance, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError
from experiments.inspection import figures
from experiments.inspection.figures import Figures
from selfattn import analysis, plots
from selfattn.classifier import embed
from selfattn.masks import Tokens
from selfattn.positions import Position

# Columns of P that are drawn as curves, as in Dive into Deep Learning.
_COLUMNS = (6, 7, 8, 9)


def num_positions(length: int, settings, classifier) -> int:
  """Number of positions to draw.

  Args:
    length: --length; 0: config.data.max_length, or the most of the method.

  Raises:
    UserError: the method does not support so many.
  """
  position = getattr(classifier.encoder, 'position', None)
  most = position and position.max_length()
  if length and most is not None and length > most:
    raise UserError(
      f'--length={length} is more than the {most} positions that the method '
      'supports'
    )
  if length == 1:
    raise UserError('--length=1 must be at least 2')
  length = length or settings.data.max_length
  return length if most is None else min(length, most)


def draw(
  drawn: Figures,
  classifier,
  params: Mapping,
  length: int,
  max_length: int,
  trained: int | None = None,
) -> None:
  """Draws the position method of a model, if its encoder has one.

  The figures of a method that depends on the text are those of one token,
  repeated, so that only positions differ.

  Args:
    length: number of positions.
    max_length: largest number of tokens of a text; biases are drawn over
      distances up to twice that.
    trained: number of positions that texts of train have, which is marked;
      None: unknown.
  """
  encoder = classifier.encoder
  if not hasattr(encoder, 'position'):
    return
  ids_BL = np.full((1, length), classifier.vocab_size // 2)
  _, sown = encoder.apply(
    {'params': params['encoder']},
    embed(params, jnp.asarray(ids_BL)).astype(classifier.dtype),
    Tokens(jnp.ones((1, length), bool), ids=ids_BL),
    mutable='intermediates',
  )
  methods = list(_methods(encoder, params['encoder']))
  parts = dict(encoder.position.parts)
  for part, layer, P in analysis.encodings(sown['intermediates']):
    P = np.asarray(P, np.float32)
    # The first head of a method that acts on some of them.
    head = getattr(parts[part], 'first', 0)
    suffix, is_causal = file_suffix(part, layer), encoder.causal
    _encoding(drawn, suffix, P, length, trained, head, is_causal)
  for name, method, params in methods:
    _curves(drawn, name, method, params, max_length)


def file_suffix(part: str, layer: int | None) -> str:
  """What names of files end with, for a part of a method in a layer."""
  of_layer = '' if layer is None else f'-layer{layer}'
  return (f'-{part}' if part else '') + of_layer


def _methods(encoder, params) -> Iterator[tuple[str, Position, Mapping]]:
  """(suffix of file names, method, its parameters), per part and layer."""
  layers = analysis.attention_layers(params)
  for part, method in encoder.position.parts:
    paths = [(file_suffix(part, None), ())]
    if method.per_layer:
      paths = [
        (file_suffix(part, layer), path)
        for layer, path in enumerate(layers)
        if part in dict(encoder.position.of_layer(layer).parts)
      ]
    for name, path in paths:
      tree = functools.reduce(operator.getitem, path, params)
      tree = tree.get('position', {})
      yield name, method, tree.get(part, {}) if part else tree


def _mark(trained: int | None, is_table: bool, figure, axes: str) -> None:
  """Lines where positions or distances begin that no text of train has.

  Args:
    axes: that have positions or distances: 'x', 'y' or 'xy'.
  """
  if trained is None:
    return
  edges = (0.5 - trained, trained - 0.5) if is_table else (trained - 0.5,)
  is_marked = False
  # A bar of colours has no label of x.
  for axis in (axis for axis in figure.axes if axis.get_xlabel()):
    for edge in edges:
      for name in axes:
        low, high = sorted(getattr(axis, f'get_{name}lim')())
        if low < edge < high:
          line = axis.axvline if name == 'x' else axis.axhline
          line(edge, color='0.3', linestyle='--', linewidth=1)
          is_marked = True
  if is_marked:
    text = f'texts of train have positions up to the line ({trained})'
    figure.suptitle(text, fontsize=8)


def _encoding(
  drawn, name, P, length, trained, head: int, is_causal: bool
) -> None:
  """Heat maps of P; if it has rows, also some columns and cosines of rows.

  Args:
    head: number of the first head that tables are of.
    is_causal: whether later keys, which no query attends to, are left out.
  """
  is_table = P.ndim == 3 and P.shape[1] != length
  if is_table and is_causal:
    P = P[:, :length]
  mark = functools.partial(_mark, trained, is_table)
  shown = figures.attended(P) if P.ndim == 4 and is_causal else P
  limit = float(np.nanmax(abs(shown))) or 1.0
  signed = {'cmap': 'RdBu', 'limits': (-limit, limit)}
  if P.ndim == 4:  # a term of the scores, (1, H, L, M)
    figure = plots.show_heatmaps(
      shown,
      xlabel='key position',
      ylabel='query position',
      titles=[f'head {n}' for n in range(P.shape[1])],
      figsize=(2.6 * P.shape[1] + 0.8, 3.0),
      **signed,
    )
    axes = ['1', 'head', 'query position', 'key position']
    mark(figure, 'xy')
    drawn.add(f'bias{name}', figure, {'P': P}, {'P': axes})
    return
  # One row per position, or a table per head with one row per distance.
  what = 'distance, key - query' if is_table else 'position'
  first = 1 - length if is_table else 0
  rows = np.arange(first, first + P.shape[1])
  titles = ['P']
  if len(P) > 1:
    titles = [f'head {head + n}' for n in range(len(P))]
  labels = {'P': ['head' if is_table else '1', what, 'column'], 'first': first}
  if is_table:
    labels['first head'] = head
  extent = {'xlabel': 'column of P', 'ylabel': what, 'titles': titles}
  figure = plots.show_heatmaps(
    P[None],
    figsize=(2.8 * len(P) + 1.2, 4.0),
    first_row=first,
    **extent,
    **signed,
  )
  mark(figure, 'y')
  drawn.add(f'encoding{name}', figure, {'P': P}, labels)

  _gram(drawn, name, P, titles, what, first, mark)
  shown = [c for c in _COLUMNS if c < P.shape[2]] or [0]
  figure = plots.plot(
    rows,
    P[0][:, shown].T,
    xlabel=what,
    ylabel='P',
    legend=[f'column {c}' for c in shown],
    figsize=(6.0, 2.8),
    title=titles[0] if is_table else '',
  )
  mark(figure, 'x')
  labels = {'P': [what, 'column'], 'columns': shown, 'first': first}
  drawn.add(f'columns{name}', figure, {'P': P[0][:, shown]}, labels)


def _gram(drawn, name, P, titles: list[str], what, first, mark) -> None:
  """Cosines between the rows of P."""
  cosines = np.stack([analysis.gram(table) for table in P])
  figure = plots.show_heatmaps(
    cosines[None],
    xlabel=what,
    ylabel=what,
    titles=[f'cosines between rows of {title}' for title in titles],
    figsize=(3.6 * len(P) + 1.0, 3.2),
    cmap='RdBu',
    limits=(-1.0, 1.0),
    first_row=first,
    first_column=first,
  )
  mark(figure, 'xy')
  labels = {'cosine': ['head', what, what], 'first': first}
  drawn.add(f'gram{name}', figure, {'cosine': cosines}, labels)


def _curves(drawn, name, method, params, max_length) -> None:
  """The bias of each head over distances up to twice max_length.

  Fewer if the method has no such positions. Nothing if it is a function of the
  text.
  """
  if 'bias' not in method.hooks or 'state' in method.hooks:
    return
  reach = 2 * max_length
  if most := method.max_length():
    # Keys stand on both sides of the query, or before it.
    reach = min(reach, (most - 1) // (1 if method.causal else 2))
  last = 0 if method.causal else reach
  keys = np.arange(reach + last + 1)[None]
  at = np.full((1, 1), reach)
  query = Tokens(positions=at, index=at)
  bias = method.bias(params, query, Tokens(positions=keys, index=keys))
  values = np.asarray(bias)[0, :, 0]
  distances = keys[0] - reach
  figure = plots.distance_curves(
    distances, values, 'bias added to the score', max_length
  )
  if not method.is_relative:
    figure.axes[0].set_xlabel(
      f'distance, key - query (tokens), of the query at position {reach}'
    )
  drawn.add(
    f'distance{name}',
    figure,
    {'distance': distances, 'bias': values},
    {'distance': ['key'], 'bias': ['head', 'key'], 'query position': reach},
  )
