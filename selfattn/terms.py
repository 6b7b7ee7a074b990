"""The terms that a position method adds to scores and outputs, by part."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.positions.calls import check_returned, of_part, parts_with
from selfattn.positions.contract import add
from selfattn.positions.distances import skew
from selfattn.tokens import Tokens


class Terms:
  """The terms of a position method for rows of queries, by part.

  A relative method depends on distances alone. Where a sequence with
  consecutive positions attends to itself, positions are counted from 0: they
  are then known while tracing, and a bias is computed once per distance
  instead of once per pair.
  """

  def __init__(
    self, position, params, k_BMGK, query: Tokens, key: Tokens, num_rows: int
  ):
    """Computes the biases by distance.

    Args:
      position, params: the method and its parameters.
      k_BMGK: keys before rotation.
      query, key: Tokens of all rows; the same object in self-attention.
      num_rows: of queries, with those that pad the last chunk.
    """
    self._position, self._params = position, params
    self._k_BMGK, self._key, self._num_rows = k_BMGK, key, num_rows
    M = k_BMGK.shape[1]
    # A symbolic length, as of jax.export, has no known distances.
    is_known = isinstance(M, int)
    self._from_0 = (
      is_known and query is key and query.has_consecutive_positions()
    )
    self._by_distance = {}
    if self._from_0:
      self._key_from_0 = key.replace(positions=np.arange(M)[None])
      at, ahead = np.zeros((1, 1), int), np.arange(1 - num_rows, M)[None]
      one = Tokens(positions=at, index=at)
      others = Tokens(positions=ahead, index=ahead)
      for name, part, part_params in parts_with(position, 'bias', params):
        if part.is_relative and 'state' not in part.hooks:
          bias_1H1N = part.bias(part_params, one, others)
          shape = 1, part.num_heads, 1, num_rows + M - 1
          check_returned(part, 'bias', bias_1H1N, *shape)
          self._by_distance[name] = bias_1H1N

  def __call__(self, q_BLHK, tokens: Tokens, first):
    """Content terms, unscaled, and biases."""
    H, G = q_BLHK.shape[2], self._k_BMGK.shape[2]
    k_BMHK = self._k_BMGK if G == H else jnp.repeat(self._k_BMGK, H // G, 2)
    content = self._terms('content', tokens, first, q_BLHK, k_BMHK)
    return content, self._terms('bias', tokens, first)

  def contextual(self, q_BLHK, scores, bias, mask, tokens: Tokens, first):
    """Terms of `scores` hooks, which read the scores of all keys."""
    return self._terms('scores', tokens, first, q_BLHK, scores, bias, mask)

  def values(self, weights_BHLM, tokens: Tokens, first) -> list[jax.Array]:
    """Terms of `value` hooks, added to the output, (B, L, H, K)."""
    B, H, L, _ = weights_BHLM.shape
    terms = []
    for _, part, part_params, *sides in self._calls('value', tokens, first):
      term_BLHK = part.value(part_params, weights_BHLM, *sides)
      check_returned(part, 'value', term_BLHK, B, L, H, part.head_dim)
      terms.append(term_BLHK)
    return terms

  def without_encoding(self, *terms: dict) -> dict:
    """Sums by part, of parts whose encoding is no function of positions."""
    return {
      name: add(by_part.get(name) for by_part in terms)
      for name, part in self._position.parts
      if not part.has_encoding and any(name in by_part for by_part in terms)
    }

  def _terms(self, hook: str, tokens: Tokens, first, *arrays) -> dict:
    """Terms of a hook, (1 or B, H, L, M) or None, by part."""
    B, M = self._k_BMGK.shape[0], self._k_BMGK.shape[1]
    L = tokens.positions.shape[1]
    terms = {}
    for name, part, part_params, *sides in self._calls(hook, tokens, first):
      if hook == 'bias' and name in self._by_distance:
        terms[name] = self._by_pair(self._by_distance[name], tokens, first)
        continue
      terms[name] = getattr(part, hook)(part_params, *arrays, *sides)
      check_returned(part, hook, terms[name], (1, B), part.num_heads, L, M)
    return terms

  def _calls(self, hook: str, tokens: Tokens, first):
    """(name, part, its parameters, query, key) of each part with a hook.

    Positions of a relative method are counted from 0 where that is the same.
    """
    sides = from_0 = tokens, self._key
    if self._from_0:
      # Positions are known while tracing, except in a chunk (traced `first`).
      where = np.arange(tokens.positions.shape[1])[None] + first
      from_0 = tokens.replace(positions=where), self._key_from_0
    for name, part, part_params in parts_with(
      self._position, hook, self._params
    ):
      query, key = from_0 if part.is_relative else sides
      yield name, part, part_params, *of_part(name, query, key)

  def _by_pair(self, by_distance, tokens: Tokens, first):
    if by_distance is None:
      return None
    L, M = tokens.positions.shape[1], self._k_BMGK.shape[1]
    begin = self._num_rows - L - first
    near = jax.lax.dynamic_slice_in_dim(by_distance, begin, L + M - 1, axis=-1)
    shape = (*near.shape[:2], L, near.shape[-1])
    return skew(jnp.broadcast_to(near, shape))
