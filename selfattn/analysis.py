"""Analysis of heads: statistics of attention weights, rollout, and gates.

Functions take weights as a model sows them, (B, H, L, M), of self-attention, so
that M = L. Rows that do not sum to one are divided by their sums. Negative
weights, as in differential attention, count by their absolute values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

STATISTICS = (
  'entropy',
  'distance',
  'self',
  'previous',
  'next',
  'first',
  'separators',
)


def entropy(weights_BHLM: jax.Array) -> jax.Array:
  """-sum w log w in nats, (B, H, L), of weights that are not negative."""
  # The slope of w log w at a weight of 0 is infinite, and that of a key that is
  # hidden has to be 0.
  log = jnp.log(jnp.where(weights_BHLM > 0, weights_BHLM, 1.0))
  return -(weights_BHLM * log).sum(axis=-1)


def shares(weights: jax.Array) -> jax.Array:
  """|w| divided by the sums of their rows; 0 in a row of zeros."""
  weights = abs(weights)
  total = weights.sum(axis=-1, keepdims=True)
  return weights / jnp.where(total > 0, total, 1.0)


def head_statistics(
  weights_BHLM: jax.Array,
  is_visible_BLM: jax.Array,
  is_separator_BL: jax.Array,
) -> dict[str, jax.Array]:
  """Statistics of what each head attends to, as means over queries of a text.

  Args:
    is_visible_BLM: boolean, visible keys of each query; a query without any, as
      at padding, is left out.
    is_separator_BL: boolean, tokens that count as separators.

  Returns:
    float32 (B, H) by name, NaN for a text without such a query. `entropy`: of
    a row, over the logarithm of its number of visible keys, for queries with at
    least two. `distance`: |key - query| in tokens. `self`, `previous`, `next`,
    `first`, `separators`: the share of the weight on these keys (Clark et al.
    2019, section 3).
  """
  weights_BHLM = shares(weights_BHLM)
  index = jnp.arange(weights_BHLM.shape[-1])
  ahead_BLM = (index[None, :] - index[:, None])[None]
  is_query_BL = is_visible_BLM.any(axis=-1)
  num_keys_BL = is_visible_BLM.sum(axis=-1)
  most_BL = jnp.log(jnp.maximum(num_keys_BL, 2).astype(jnp.float32))
  by_name = {
    'entropy': _mean_over_queries(
      entropy(weights_BHLM) / most_BL[:, None], num_keys_BL > 1
    )
  }
  for name, of_BLM in {
    'distance': abs(ahead_BLM),
    'self': ahead_BLM == 0,
    'previous': ahead_BLM == -1,
    'next': ahead_BLM == 1,
    'first': (index == 0)[None, None],
    'separators': is_separator_BL[:, None],
  }.items():
    shares_BHL = (weights_BHLM * of_BLM[:, None]).sum(axis=-1)
    by_name[name] = _mean_over_queries(shares_BHL, is_query_BL)
  return by_name


def _mean_over_queries(x_BHL, is_query_BL):
  total_BH = jnp.where(is_query_BL[:, None], x_BHL, 0.0).sum(axis=-1)
  return total_BH / is_query_BL.sum(axis=-1)[:, None]


def rollout(weights_NBHLM: jax.Array) -> jax.Array:
  """The share of each input token in each output token, (B, L, L).

  Attention rollout: in each layer, half of a token is itself, by the residual
  connection, and half the mean over heads of the attention to all tokens (Abnar
  and Zuidema 2020, section 3).

  Args:
    weights_NBHLM: of all layers, from the first.
  """
  length = weights_NBHLM.shape[-1]
  flow_BLM = jnp.eye(length)[None]
  for weights_BHLM in shares(weights_NBHLM):
    flow_BLM = (flow_BLM + weights_BHLM.mean(axis=1) @ flow_BLM) / 2
  return flow_BLM


def sown(
  intermediates: Mapping, name: str
) -> list[tuple[tuple[str, ...], tuple[str, ...], jax.Array]]:
  """(path of the module, keys within, value) of all that was sown by a name.

  The order is that of layers: numbers in paths count as numbers. Keys lead to
  the leaves of a tree that was sown as one value.
  """
  values = []
  for path, value in jax.tree_util.tree_leaves_with_path(intermediates):
    keys = tuple(str(entry.key) for entry in path if hasattr(entry, 'key'))
    if name in keys:
      index = keys.index(name)
      values.append((keys[:index], keys[index + 1 :], value))
  return sorted(values, key=lambda entry: _natural(entry[0]))


def encodings(
  intermediates: Mapping,
) -> Iterator[tuple[str, int | None, jax.Array]]:
  """(name of the part, layer, P) of every `P` that a forward pass has sown.

  Returns:
    The part is '' for a method that is not joined, the layer None for what the
    encoder sows once.
  """
  # Not every layer of a pattern sows an encoding.
  layers = [path for path, *_ in sown(intermediates, 'weights')]
  for path, keys, P in sown(intermediates, 'P'):
    part = keys[0] if keys and not keys[0].isdecimal() else ''
    if not path:
      yield part, None, P
    else:
      yield part, layers.index(path), P


def _natural(path: tuple[str, ...]) -> list:
  return [
    [
      int(part) if part.isdecimal() else part
      for part in re.split(r'(\d+)', key)
    ]
    for key in path
  ]


def attention_layers(encoder_params: Mapping) -> list[tuple[str, ...]]:
  """Paths of the parameters of all selfattn.Attention, in order of layers."""
  paths = []

  def walk(tree, path):
    if not isinstance(tree, Mapping):
      return
    if {'query', 'key', 'value', 'out'} <= tree.keys():
      paths.append(path)
    for name, branch in tree.items():
      walk(branch, (*path, name))

  walk(encoder_params, ())
  return sorted(paths, key=_natural)


def gate_heads(encoder_params: Mapping, gates_NH: jax.Array) -> dict:
  """Parameters of an encoder whose heads are multiplied by gates.

  A gate on the output of a head is the same as one on its rows of the output
  projection, so that models need no gates. A gate of zero ablates the head
  (Michel et al. 2019, section 2.1).

  Args:
    encoder_params: of an encoder whose layers have a selfattn.Attention each.
    gates_NH: a scalar for each head of each layer.

  Raises:
    ValueError: there are more or fewer such layers than rows of gates.
  """
  flat = dict(traverse_util.flatten_dict(dict(encoder_params)))
  layers = attention_layers(encoder_params)
  for path, gates_H in zip(layers, gates_NH, strict=True):
    kernel = jnp.asarray(flat[(*path, 'out', 'kernel')])
    scale_D1 = jnp.repeat(gates_H, len(kernel) // len(gates_H))[:, None]
    flat[(*path, 'out', 'kernel')] = kernel * scale_D1
  return traverse_util.unflatten_dict(flat)


def rotation_error(
  P_LD: np.ndarray, offset: int, base: float = 10_000.0
) -> np.ndarray:
  """Largest |R(offset) p_i - p_(i + offset)| for each i, (L - offset,).

  R rotates each pair of columns 2j, 2j + 1 by offset / base^(2j/D); it depends
  on the offset alone (Dive into Deep Learning, section 11.6.3.2). The error is
  the largest over columns, in float64.

  Args:
    P_LD: rows of an encoding, interleaved sines and cosines; D is even.
  """
  P_LD = np.asarray(P_LD, np.float64)
  width = P_LD.shape[1]
  angles = offset / base ** (np.arange(0, width, 2) / width)
  sine, cosine = P_LD[:, 0::2], P_LD[:, 1::2]
  turned = np.empty_like(P_LD)
  turned[:, 0::2] = np.cos(angles) * sine + np.sin(angles) * cosine
  turned[:, 1::2] = -np.sin(angles) * sine + np.cos(angles) * cosine
  last = len(P_LD) - offset
  return abs(turned[:last] - P_LD[offset:]).max(axis=1)


def gram(rows_ND: np.ndarray) -> np.ndarray:
  """Cosines between all pairs of rows, (N, N); 0 for a row of zeros."""
  rows_ND = np.asarray(rows_ND, np.float64)
  norms = np.linalg.norm(rows_ND, axis=1, keepdims=True)
  units = rows_ND / np.maximum(norms, np.finfo(float).tiny)
  return units @ units.T
