"""Scaled dot-product attention: one pure function, several ways to compute it.

Order of operations (Vaswani et al. 2017, equation 1, with what was added
since): queries and keys rotated, their matmul, content term, scale, soft cap,
bias, what depends on these scores, mask, normaliser (softmax) in float32,
dropout on the weights, values, value term. A fully masked row returns exactly
zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.dropout import Dropout
from selfattn.kernels import KERNELS, Term, call, unsupported_reason
from selfattn.masks import Tokens, combine, mask_and_bias, visible
from selfattn.normalisers import Softmax
from selfattn.positions.contract import NoPosition, Position, add, filling
from selfattn.positions.relative import skew

# What each one is for stands in `attend`.
BACKENDS = ('auto', 'reference', 'chunked', *KERNELS)
# Scores that 'chunked' holds at once, and from which on 'auto' takes it.
_CHUNK_SCORES = 2**19
_MANY_SCORES = 2**26


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  query: Tokens | jax.Array | None = None,
  key: Tokens | jax.Array | None = None,
  causal: bool = False,
  window: tuple[int, int] | None = None,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  position: Position | None = None,
  position_params=None,
  normaliser: Softmax | None = None,
  normaliser_params=None,
  softcap: float = 0.0,
  dropout: Dropout | None = None,
  broadcast_dropout: bool = False,
  backend: str = 'auto',
  return_weights: bool = False,
  terms: dict[str, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Attention over H heads.

  Args:
    q_BLHK: queries. Keys share their width K.
    k_BMGK: keys, of G heads; G divides H, and head h reads number h // (H/G).
    v_BMGK: values, K wide or not.
    query: Tokens, or where they are none (boolean); None: all are.
    key: likewise; None: the queries', of a sequence that attends to itself.
    causal, window: see masks.visible.
    mask: boolean, broadcasting to (B, H, L, M); True: may look.
    bias: added to the scaled scores, likewise; -inf, or the lowest float32:
      may not look.
    position: method whose hooks are called; `embed` and `state` are not: they
      stand in the vectors, and in the `state` of query and key, already.
    position_params: its parameters.
    normaliser: from scores to weights; None: softmax.
    normaliser_params: its parameters.
    softcap: c: scores of content become c tanh(scores / c), before any bias;
      0: they stay as they are.
    dropout: on the weights.
    broadcast_dropout: drop the same weights in all rows and heads.
    backend: one of BACKENDS.
      'reference' spells out every step, and serves everything.
      'chunked' is the reference, a few queries at a time, recomputed in the
        backward pass: serves everything with memory linear in length.
      'xla', 'cudnn' are `jax.nn.dot_product_attention`.
      'pallas_tpu' is the flash attention of jax's own kernels.
      'auto' is 'chunked' for more than 2^26 scores, else 'reference'.
    return_weights: whether to return the weights as well.
    terms: filled, with the weights, by the name of each part of the position
      method that has no `encoding`: what it added to the scaled scores,
      (B, H, L, M).

  Returns:
    Output (B, L, H, width of values) in the dtype of the queries, and the
    float32 weights before dropout (B, H, L, M), or None.

  Raises:
    ValueError: the backend is unknown, or cannot do what is asked; a mask or
      bias does not broadcast, a mask is not boolean, or Tokens have other
      rows.
  """
  B, L, H, K = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  position = position or NoPosition(H * K, H, causal)
  params = position_params or {}
  normaliser = normaliser or Softmax(H)
  is_self = key is None and L == M
  if key is None and L != M:
    if query is not None:
      raise ValueError(
        f'key must be given, since there are {M} keys and {L} queries'
      )
    key = Tokens()
  query = Tokens.of(query).filled(L, B)
  key = query if is_self else Tokens.of(key).filled(M, B)

  if backend not in BACKENDS:
    raise ValueError(f'backend {backend!r} is not one of {BACKENDS}')
  if H % G:
    raise ValueError(f'{G} heads of keys do not divide {H} heads of queries')
  reason = unsupported_reason(
    backend,
    # Which machine a trace is compiled for is not known here; jax will say.
    platform=None,
    dtype=q_BLHK.dtype,
    head_dim=K,
    has_dropout=dropout is not None,
    has_softcap=softcap > 0,
    hooks=position.hooks,
    normaliser=normaliser,
    value_dim=v_BMGK.shape[-1],
  )
  if reason:
    raise ValueError(f'backend {backend!r} is unsupported: {reason}')
  if 'state' in position.hooks and (query.state is None or key.state is None):
    raise ValueError(
      f'{type(position).__name__} needs the state of query and key; '
      'selfattn.positions.contract.with_state makes it'
    )
  mask, bias = mask_and_bias(mask, bias, (B, H, L, M))
  if not L or not M:
    nothing = jnp.zeros((B, L, H, v_BMGK.shape[-1]), q_BLHK.dtype)
    return nothing, jnp.zeros((B, H, L, M)) if return_weights else None
  if backend == 'auto':
    many = B * H * L * M > _MANY_SCORES and not return_weights
    backend = 'chunked' if many else 'reference'

  size = L
  if backend == 'chunked':
    size = min(L, max(1, _CHUNK_SCORES // (B * H * M)))
  num_chunks = -(-L // size)
  scale = position.scale * K**-0.5
  added = _Terms(
    position, params, k_BMGK, query, key, is_self, num_chunks * size
  )
  rotated_BLHK, rotated_BMGK = q_BLHK, k_BMGK
  for _, part, its in filling(position, 'rotate', params):
    rotated_BLHK, rotated_BMGK = part.rotate(
      its, rotated_BLHK, rotated_BMGK, query, key
    )

  def rows(q, rotated, tokens, mask, bias, first):
    """Output, weights and terms of some queries, the first of them `first`."""
    seen = combine(visible(tokens, key, causal, window), mask)
    content, biases = added(q, tokens, first)
    scores = _products(rotated, rotated_BMGK)
    scores = add([scores, *content.values()]) * scale
    if softcap:
      scores = softcap * jnp.tanh(scores / softcap)
    total = add([bias, *biases.values()])
    contextual = added.contextual(q, scores, total, seen, tokens, first)
    scores = add([scores, total, *contextual.values()])
    weights = normaliser(normaliser_params or {}, scores, seen, tokens, key)
    dropped = weights
    if dropout is not None:
      shape = (1, 1) if broadcast_dropout else (B, H)
      stream = dropout.replace(first_row=0) if broadcast_dropout else dropout
      part = {'full_shape': (*shape, L, M), 'origin': (0, 0, first, 0)}
      dropped = dropout(
        weights, stream.keep((*shape, *weights.shape[2:]), **part)
      )
    values = [_values(dropped, v_BMGK), *added.values(dropped, tokens, first)]
    output = add(values).astype(q.dtype)
    if not return_weights:
      return output, None, {}
    scaled = {
      n: term * scale for n, term in content.items() if term is not None
    }
    return output, weights, _of_text(position, scaled, biases, contextual)

  everything = (q_BLHK, rotated_BLHK, query, mask, bias)
  if backend == 'chunked' and num_chunks > 1:
    output, weights, found = _in_chunks(rows, size, num_chunks, *everything)
  elif backend in ('reference', 'chunked') or return_weights:
    output, weights, found = rows(*everything, 0)
  if terms is not None and return_weights:
    terms |= found
  if backend in ('reference', 'chunked'):
    return output, weights
  # A kernel never forms the weights; asked for, they are computed beside it,
  # so that asking changes no output.
  content, biases = added(q_BLHK, query, 0)
  output = call(
    backend,
    rotated_BLHK,
    rotated_BMGK,
    v_BMGK,
    Term(
      add(content.values()),
      add([bias, *biases.values()]),
      combine(visible(query, key, causal, window), mask),
      scale,
    ),
  )
  return output, weights if return_weights else None


class _Terms:
  """What the parts of a position method add for some queries, by their names.

  Terms of a relative method depend on distances alone. Where a sequence looks
  at itself, these are counted from 0: positions are then known while tracing,
  and a bias is computed once for a distance instead of once for a pair.
  """

  def __init__(
    self,
    position,
    params,
    k_BMGK,
    query: Tokens,
    key: Tokens,
    is_self,
    num_rows,
  ):
    """num_rows: of queries, those that fill up the last chunk included."""
    self._position, self._params = position, params
    self._k_BMGK, self._key, self._num_rows = k_BMGK, key, num_rows
    self._counts = is_self and query.counts()
    M = k_BMGK.shape[1]
    self._counted_key = key.replace(positions=np.arange(M)[None])
    self._strips = {}
    if self._counts:
      one, spread = np.zeros((1, 1), int), np.arange(1 - num_rows, M)[None]
      self._strips = {
        name: part.bias(its, Tokens(positions=one), Tokens(positions=spread))
        for name, part, its in filling(position, 'bias', params)
        if part.is_relative and 'state' not in part.hooks
      }

  def __call__(self, q_BLHK, tokens: Tokens, first):
    """Content terms, unscaled, and biases."""
    H, G = q_BLHK.shape[2], self._k_BMGK.shape[2]
    k_BMHK = self._k_BMGK if G == H else jnp.repeat(self._k_BMGK, H // G, 2)
    content = {
      name: part.content(its, q_BLHK, k_BMHK, *sides)
      for name, part, its, sides in self._calls('content', tokens, first)
    }
    biases = {
      name: self._skewed(self._strips[name], tokens, first)
      if name in self._strips
      else part.bias(its, *sides)
      for name, part, its, sides in self._calls('bias', tokens, first)
    }
    return content, biases

  def contextual(self, q_BLHK, scores, bias, mask, tokens: Tokens, first):
    """What depends on the scores."""
    return {
      name: part.scores(its, q_BLHK, scores, bias, mask, *sides)
      for name, part, its, sides in self._calls('scores', tokens, first)
    }

  def values(self, weights, tokens: Tokens, first):
    """What is added to the output."""
    return [
      part.value(its, weights, *sides)
      for _, part, its, sides in self._calls('value', tokens, first)
    ]

  def _calls(self, hook: str, tokens: Tokens, first):
    """(name, part, its parameters, its view of query and key)."""
    # All queries at once begin at 0, which is known; a chunk begins somewhere.
    where = np.arange(tokens.positions.shape[1])[None] + first
    for name, part, its in filling(self._position, hook, self._params):
      sides = tokens, self._key
      if self._counts and part.is_relative:
        sides = tokens.replace(positions=where), self._counted_key
      yield (
        name,
        part,
        its,
        [side.replace(state=(side.state or {}).get(name)) for side in sides],
      )

  def _skewed(self, strip, tokens: Tokens, first):
    if strip is None:
      return None
    L, M = tokens.positions.shape[1], self._k_BMGK.shape[1]
    begin = self._num_rows - L - first
    near = jax.lax.dynamic_slice_in_dim(strip, begin, L + M - 1, axis=-1)
    shape = (*near.shape[:2], L, near.shape[-1])
    return skew(jnp.broadcast_to(near, shape))


def _of_text(position, *terms: dict) -> dict[str, jax.Array]:
  """Sums by part, of the parts whose encoding is no function of positions."""
  return {
    name: add(by_part.get(name) for by_part in terms)
    for name, part in position.parts
    if not part.has_encoding and any(name in by_part for by_part in terms)
  }


def _products(q_BLHK, k_BMGK):
  """Products of queries and keys, float32 (B, H, L, M)."""
  B, L, H, K = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  # Heads before positions: plain batched matrix products, several times faster
  # on a CPU than with heads inside. Heads that share keys are one matrix.
  q = q_BLHK.swapaxes(1, 2).reshape(B, G, H // G * L, K)
  scores = jnp.einsum(
    'BGNK,BGMK->BGNM',
    q,
    k_BMGK.swapaxes(1, 2),
    preferred_element_type=jnp.float32,
  )
  return scores.reshape(B, H, L, M)


def _values(weights_BHLM, v_BMGK):
  """Sums of values, (B, L, H, K)."""
  B, H, L, M = weights_BHLM.shape
  G, K = v_BMGK.shape[2:]
  weights = weights_BHLM.astype(v_BMGK.dtype).reshape(B, G, H // G * L, M)
  output = jnp.einsum('BGNM,BGMK->BGNK', weights, v_BMGK.swapaxes(1, 2))
  return output.reshape(B, H, L, K).swapaxes(1, 2)


def _in_chunks(rows, size, num_chunks, q_BLHK, rotated_BLHK, query, mask, bias):
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
