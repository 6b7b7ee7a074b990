"""The reference: attention step by step, all queries at once or in chunks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from selfattn.dropout import Dropout
from selfattn.kernels import Term
from selfattn.masks import combine, has_pairs, visible
from selfattn.normalisers import Softmax
from selfattn.positions.calls import check_returned
from selfattn.positions.contract import add
from selfattn.terms import Terms
from selfattn.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class AttendCall:
  """One call of `attend`: of any rows of its queries over all keys.

  Attributes:
    terms: of the position method.
    rotated_BMGK: keys after rotation.
    v_BMGK: values.
    key: Tokens of the keys.
    causal, window, softcap, dropout, broadcast_dropout, return_weights: see
      selfattn.backends.attend.
    scale: of the scores.
    normaliser, normaliser_params: from scores to weights, and to the output.
    num_queries: L, of all rows.
  """

  terms: Terms
  rotated_BMGK: jax.Array
  v_BMGK: jax.Array
  key: Tokens
  causal: bool
  window: tuple[int, int] | None
  scale: float
  softcap: float
  normaliser: Softmax
  normaliser_params: dict
  dropout: Dropout | None
  broadcast_dropout: bool
  num_queries: int
  return_weights: bool

  def __call__(self, q_BLHK, rotated_BLHK, query: Tokens, mask, bias, first):
    """Output (B, L, H, K), weights or None, and terms by part.

    Args:
      q_BLHK, rotated_BLHK: rows of queries, before and after rotation.
      query, mask, bias: of these rows.
      first: number of the first of them; may be traced.
    """
    mask = combine(visible(query, self.key, self.causal, self.window), mask)
    content, biases = self.terms(q_BLHK, query, first)
    scores = _scores(rotated_BLHK, self.rotated_BMGK)
    scores = add(content.values(), scores) * self.scale
    if self.softcap:
      scores = self.softcap * jnp.tanh(scores / self.softcap)
    bias = add(biases.values(), bias)
    contextual = self.terms.contextual(q_BLHK, scores, bias, mask, query, first)
    scores = add([bias, *contextual.values()], scores)
    weights_BHLM = self.normaliser(
      self.normaliser_params, scores, mask, query, self.key
    )
    check_returned(self.normaliser, '__call__', weights_BHLM, *scores.shape)
    dropped_BHLM = self._drop(weights_BHLM, first)
    values = self.terms.values(dropped_BHLM, query, first)
    output = add(values, _weighted_sum(dropped_BHLM, self.v_BMGK))
    output = self.normaliser.output(self.normaliser_params, output)
    output = output.astype(q_BLHK.dtype)
    if not self.return_weights:
      return output, None, {}
    scaled = {
      name: term * self.scale
      for name, term in content.items()
      if term is not None
    }
    by_part = self.terms.without_encoding(scaled, biases, contextual)
    return output, weights_BHLM, by_part

  def term(self, q_BLHK, rotated_BLHK, query: Tokens, mask, bias) -> Term:
    """The Term of a kernel, for the scores of all queries."""
    del rotated_BLHK
    content, biases = self.terms(q_BLHK, query, 0)
    by_token = None
    if not has_pairs(query, self.key, self.causal, self.window, mask):
      by_token = query, self.key, self.causal
    return Term(
      add(content.values()),
      add(biases.values(), bias),
      combine(visible(query, self.key, self.causal, self.window), mask),
      self.scale,
      by_token,
    )

  def _drop(self, weights_BHLM, first):
    if self.dropout is None:
      return weights_BHLM
    B, H, *rows_and_keys = weights_BHLM.shape
    leading, stream = (B, H), self.dropout
    if self.broadcast_dropout:
      leading, stream = (1, 1), stream.replace(first_row=0)
    keep = stream.keep(
      (*leading, *rows_and_keys),
      full_shape=(*leading, self.num_queries, rows_and_keys[-1]),
      origin=(0, 0, first, 0),
    )
    return self.dropout(weights_BHLM, keep)


def _scores(q_BLHK, k_BMGK):
  """Matmul of queries and keys, float32 (B, H, L, M)."""
  B, L, H, K = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  # Heads before tokens: plain batched matmuls, several times faster on a CPU.
  # Query heads that share a KV head are one matrix.
  q = q_BLHK.swapaxes(1, 2).reshape(B, G, H // G * L, K)
  scores = jnp.einsum(
    'BGNK,BGMK->BGNM',
    q,
    k_BMGK.swapaxes(1, 2),
    preferred_element_type=jnp.float32,
  )
  return scores.reshape(B, H, L, M)


def _weighted_sum(weights_BHLM, v_BMGK):
  """Weighted sums of values, (B, L, H, K)."""
  B, H, L, M = weights_BHLM.shape
  G, K = v_BMGK.shape[2:]
  weights = weights_BHLM.astype(v_BMGK.dtype).reshape(B, G, H // G * L, M)
  output = jnp.einsum('BGNM,BGMK->BGNK', weights, v_BMGK.swapaxes(1, 2))
  return output.reshape(B, H, L, K).swapaxes(1, 2)


def in_chunks(
  rows, size, num_chunks, q_BLHK, rotated_BLHK, query, mask, bias
) -> Any:
  """`rows` over chunks of `size` queries, each recomputed when derived."""
  L = q_BLHK.shape[1]

  def split(x, axis):
    """Chunks along an axis first; None stays, an axis of one is repeated."""
    if x is None:
      return None
    x = jnp.asarray(x)
    axis %= x.ndim
    if x.shape[axis] == 1:
      return jnp.broadcast_to(x[None], (num_chunks, *x.shape))
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, num_chunks * size - L)
    x = jnp.pad(x, padding)
    x = x.reshape(*x.shape[:axis], num_chunks, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)

  def join(x, axis):
    if x is None:
      return None
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], num_chunks * size, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, L, axis=axis)

  @jax.checkpoint
  def chunk(part):
    return rows(*part)

  parts = (
    split(q_BLHK, 1),
    split(rotated_BLHK, 1),
    jax.tree.map(lambda x: split(x, 1), query),
    split(mask, -2),
    split(bias, -2),
    jnp.arange(num_chunks) * size,
  )
  output, weights, terms = jax.lax.map(chunk, parts)
  terms = jax.tree.map(lambda x: join(x, 2), terms)
  return join(output, 1), join(weights, 2), terms
