"""What a position method adds to scores and outputs, part by part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.masks import Tokens
from selfattn.positions.contract import add, parts_with
from selfattn.positions.distances import skew


class Terms:
  """What the parts of a position method add for rows of queries, by part.

  A relative method depends on distances alone. Where a sequence with
  consecutive positions attends to itself, positions are counted from 0: they
  are then known while tracing, and a bias is computed once per distance
  instead of once per pair.
  """

  def __init__(
    self, position, params, k_BMGK, query: Tokens, key: Tokens, num_rows: int
  ):
    """Biases by distance.

    Args:
      position, params: the method and its parameters.
      k_BMGK: keys before rotation.
      query, key: Tokens of all rows; the same object in self-attention.
      num_rows: of queries, with those that pad the last chunk.
    """
    self._position, self._params = position, params
    self._k_BMGK, self._key, self._num_rows = k_BMGK, key, num_rows
    self._from_0 = query is key and query.has_consecutive_positions()
    M = k_BMGK.shape[1]
    self._key_from_0 = key.replace(positions=np.arange(M)[None])
    self._by_distance = {}
    if self._from_0:
      one, others = np.zeros((1, 1), int), np.arange(1 - num_rows, M)[None]
      self._by_distance = {
        name: part.bias(
          part_params, Tokens(positions=one), Tokens(positions=others)
        )
        for name, part, part_params in parts_with(position, 'bias', params)
        if part.is_relative and 'state' not in part.hooks
      }

  def __call__(self, q_BLHK, tokens: Tokens, first):
    """Content terms, unscaled, and biases."""
    H, G = q_BLHK.shape[2], self._k_BMGK.shape[2]
    k_BMHK = self._k_BMGK if G == H else jnp.repeat(self._k_BMGK, H // G, 2)
    content = {
      name: part.content(part_params, q_BLHK, k_BMHK, *sides)
      for name, part, part_params, sides in self._calls(
        'content', tokens, first
      )
    }
    biases = {
      name: self._by_pair(self._by_distance[name], tokens, first)
      if name in self._by_distance
      else part.bias(part_params, *sides)
      for name, part, part_params, sides in self._calls('bias', tokens, first)
    }
    return content, biases

  def contextual(self, q_BLHK, scores, bias, mask, tokens: Tokens, first):
    """What `scores` hooks add: a function of the scores of all keys."""
    return {
      name: part.scores(part_params, q_BLHK, scores, bias, mask, *sides)
      for name, part, part_params, sides in self._calls('scores', tokens, first)
    }

  def values(self, weights, tokens: Tokens, first):
    """What `value` hooks add to the output."""
    return [
      part.value(part_params, weights, *sides)
      for _, part, part_params, sides in self._calls('value', tokens, first)
    ]

  def without_encoding(self, *terms: dict) -> dict[str, jax.Array]:
    """Sums by part, of parts whose encoding is no function of positions."""
    return {
      name: add(by_part.get(name) for by_part in terms)
      for name, part in self._position.parts
      if not part.has_encoding and any(name in by_part for by_part in terms)
    }

  def _calls(self, hook: str, tokens: Tokens, first):
    """(name, part, its parameters, (query, key) as it gets them)."""
    # Known while tracing, but for a chunk, whose `first` is traced.
    where = np.arange(tokens.positions.shape[1])[None] + first
    for name, part, part_params in parts_with(
      self._position, hook, self._params
    ):
      sides = tokens, self._key
      if self._from_0 and part.is_relative:
        sides = tokens.replace(positions=where), self._key_from_0
      yield (
        name,
        part,
        part_params,
        [side.replace(state=(side.state or {}).get(name)) for side in sides],
      )

  def _by_pair(self, by_distance, tokens: Tokens, first):
    if by_distance is None:
      return None
    L, M = tokens.positions.shape[1], self._k_BMGK.shape[1]
    begin = self._num_rows - L - first
    near = jax.lax.dynamic_slice_in_dim(by_distance, begin, L + M - 1, axis=-1)
    shape = (*near.shape[:2], L, near.shape[-1])
    return skew(jnp.broadcast_to(near, shape))
