"""Scaled dot-product attention: one pure function, several ways to compute it.

Order of operations (Vaswani et al. 2017, equation 1, with what was added
since): queries and keys turned, their products, content term, scale by K^-1/2,
soft cap, bias, mask, softmax in float32, dropout on the weights, values, value
term. A query that sees no key returns exactly zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from selfattn.dropout import Dropout
from selfattn.kernels import KERNELS, Term, call, why_not
from selfattn.masks import Tokens, combine, mask_and_bias, visible
from selfattn.positions.contract import NoPosition, Position
from selfattn.positions.relative import skew

# What each one is for stands in `attend`.
BACKENDS = ('auto', 'reference', 'chunked', *KERNELS)
# Scores that 'chunked' holds at once, and from which on 'auto' takes it.
_CHUNK_SCORES = 2**19
_MANY_SCORES = 2**26


def masked_softmax(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
  """Softmax over the last axis, float32; a row without keys is all zero."""
  scores = scores.astype(jnp.float32)
  if mask is None:
    return jax.nn.softmax(scores, axis=-1)
  return _masked_softmax(scores, mask)


@jax.custom_jvp
def _masked_softmax(scores, mask):
  scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
  peak = scores.max(axis=-1, keepdims=True)
  # The second where also keeps a row without keys, whose scores are all equal,
  # from becoming uniform.
  unnormalised = jnp.where(mask, jnp.exp(scores - peak), 0.0)
  total = unnormalised.sum(axis=-1, keepdims=True)
  return unnormalised / jnp.where(total > 0, total, 1.0)


@_masked_softmax.defjvp
def _masked_softmax_jvp(primals, tangents):
  # Of the weights alone: differentiating the steps above would keep more, and
  # read it again.
  weights = _masked_softmax(*primals)
  weighted = weights * tangents[0]
  return weights, weighted - weights * weighted.sum(axis=-1, keepdims=True)


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
  softcap: float = 0.0,
  dropout: Dropout | None = None,
  broadcast_dropout: bool = False,
  backend: str = 'auto',
  return_weights: bool = False,
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
    position: method that turns queries and keys for their products, and whose
      bias, content and value terms are added.
    position_params: its parameters.
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
  position_params = position_params or {}
  is_self = key is None
  query = Tokens.of(query).filled(L, B)
  key = query if is_self else Tokens.of(key).filled(M, B)

  if backend not in BACKENDS:
    raise ValueError(f'backend {backend!r} is not one of {BACKENDS}')
  if H % G:
    raise ValueError(f'{G} heads of keys do not divide {H} heads of queries')
  reason = why_not(
    backend,
    # Which machine a trace is compiled for is not known here; jax will say.
    platform=None,
    dtype=q_BLHK.dtype,
    head_dim=K,
    has_dropout=dropout is not None,
    has_softcap=softcap > 0,
    has_value=position.has_value,
    value_dim=v_BMGK.shape[-1],
  )
  if reason:
    raise ValueError(f'backend {backend!r} cannot serve: {reason}')
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
  terms = _make_terms(
    position, position_params, query, key, is_self, num_chunks * size, M
  )
  turned_BLHK = position.rotate(position_params, q_BLHK, query.positions)
  k_BMGK = position.rotate(position_params, k_BMGK, key.positions)

  def rows(q, turned, tokens, mask, bias, first):
    """Output and weights of some queries, of which number `first` is one."""
    term = terms(q, tokens, first, bias, mask, causal, window)
    weights = _weights(turned, k_BMGK, term, softcap)
    dropped = weights
    if dropout is not None:
      shape = (1, 1) if broadcast_dropout else (B, H)
      stream = dropout.replace(first_row=0) if broadcast_dropout else dropout
      part = {'full_shape': (*shape, L, M), 'origin': (0, 0, first, 0)}
      dropped = dropout(
        weights, stream.keep((*shape, *weights.shape[2:]), **part)
      )
    output = _values(dropped, v_BMGK)
    more = position.value(position_params, dropped, *term.positions)
    if more is not None:
      output = output + more
    return output.astype(q.dtype), weights if return_weights else None

  everything = (q_BLHK, turned_BLHK, query, mask, bias)
  if backend == 'chunked' and num_chunks > 1:
    return _in_chunks(rows, size, num_chunks, *everything)
  if backend in ('reference', 'chunked'):
    return rows(*everything, 0)
  # A kernel never forms the weights; asked for, they are computed beside it,
  # so that asking changes no output.
  term = terms(q_BLHK, query, 0, bias, mask, causal, window)
  output = call(backend, turned_BLHK, k_BMGK, v_BMGK, term)
  weights = _weights(turned_BLHK, k_BMGK, term, 0.0) if return_weights else None
  return output, weights


def _make_terms(position, params, query, key, is_self, num_rows, M):
  """Returns terms(q, tokens, first, bias, mask, causal, window) -> Term.

  Terms of a relative method depend on distances alone. Where a sequence looks
  at itself, these are counted from 0: positions are then known while tracing,
  and a bias is computed once for a distance instead of once for a pair.

  Args:
    num_rows: number of queries, those that fill up the last chunk included.
  """
  counts = is_self and query.counts() and position.is_relative
  key_positions = np.arange(M)[None] if counts else key.positions
  strip = None
  if counts:
    spread = np.arange(1 - num_rows, M)[None]
    strip = position.bias(params, np.zeros((1, 1), int), spread)

  def terms(q, tokens, first, bias, mask, causal, window):
    L = q.shape[1]
    # All queries at once begin at 0, which is known; a chunk begins somewhere.
    where = np.arange(L)[None] + first if counts else tokens.positions
    positions = (where, key_positions)
    if strip is None:
      added = position.bias(params, *positions)
    else:
      begin = num_rows - L - first
      near = jax.lax.dynamic_slice_in_dim(strip, begin, L + M - 1, axis=-1)
      shape = (*near.shape[:2], L, near.shape[-1])
      added = skew(jnp.broadcast_to(near, shape))
    if bias is not None:
      added = bias if added is None else added + bias
    return Term(
      position.content(params, q, *positions),
      added,
      combine(visible(tokens, key, causal, window), mask),
      positions,
    )

  return terms


def _weights(q_BLHK, k_BMGK, term, softcap):
  """Float32 (B, H, L, M)."""
  scores = _products(q_BLHK, k_BMGK)
  if term.content is not None:
    scores = scores + term.content
  scores = scores * q_BLHK.shape[-1] ** -0.5
  if softcap:
    scores = softcap * jnp.tanh(scores / softcap)
  if term.bias is not None:
    scores = scores + term.bias
  return masked_softmax(scores, term.mask)


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


def _in_chunks(rows, size, num_chunks, q_BLHK, turned_BLHK, query, mask, bias):
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
    return rows(*part)[:2]

  parts = (
    split(q_BLHK, 1),
    split(turned_BLHK, 1),
    jax.tree.map(lambda x: split(x, 1), query),
    split(mask, -2),
    split(bias, -2),
    jnp.arange(num_chunks) * size,
  )
  output, weights = jax.lax.map(chunk, parts)
  return join(output, 1), join(weights, 2)
