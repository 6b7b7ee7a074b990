"""Scaled dot-product attention: one pure function with several backends.

Order of operations (Vaswani et al. 2017, equation 1, with later additions):
rotation of queries and keys, their matmul, content term, scale, soft cap, bias,
terms that depend on these scores, mask, normaliser (softmax) in float32,
dropout on the weights, weighted sum of values, value term, what the normaliser
makes of the output. A fully masked row returns exactly zero.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from selfattn.arrays import as_floats
from selfattn.choice import BACKENDS, Choice, choose
from selfattn.dropout import Dropout, check_dropout
from selfattn.kernels import KERNELS, run_kernel, unsupported_reason
from selfattn.layers import narrowed
from selfattn.masks import check_window, has_pairs, mask_and_bias
from selfattn.normalisers import Softmax, check_normaliser
from selfattn.positions.calls import (
  check_params,
  check_position,
  check_returned,
  check_tokens,
  of_part,
  parts_with,
)
from selfattn.positions.contract import NoPosition, Position, require
from selfattn.reference import AttendCall, in_chunks
from selfattn.terms import Terms
from selfattn.tokens import Tokens, sides, without_padding


def attend(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  *,
  query_tokens: Tokens | jax.Array | None = None,
  key_tokens: Tokens | jax.Array | None = None,
  causal: bool = False,
  window: tuple[int, int] | None = None,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  position: Position | None = None,
  position_params=None,
  normaliser: Softmax | None = None,
  normaliser_params=None,
  scale: float | None = None,
  softcap: float = 0.0,
  dropout: Dropout | None = None,
  broadcast_dropout: bool = False,
  backend: str = 'auto',
  platform: str | None = None,
  has_finite_padding: bool = False,
  return_weights: bool = False,
  terms: dict[str, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Attention over H heads.

  Args:
    q_BLHK: queries. Keys share their width K.
    k_BMGK: keys, of G KV heads; G divides H, and query head h attends to KV
      head h // (H/G).
    v_BMGK: values, K wide or not.
    query_tokens, key_tokens: Tokens, or a padding mask, True at tokens (an
      attention_mask). query_tokens alone are those of the keys, too, where
      there are as many keys as queries, as in self-attention; elsewhere, they
      are a ValueError. key_tokens alone leave the queries without padding.
    causal, window: see masks.visible.
    mask: boolean, broadcasting to (B, H, L, M); False: masked. What a mask, a
      bias, segments, `causal` or a window hides has a weight of 0, and must be
      finite, since 0 times NaN is NaN; at padding alone, it may be NaN.
    bias: added to the scaled scores, likewise; -inf, or the lowest number of
      its type: masked.
    position: method whose hooks are called, but for `embed` and `state`, whose
      results are in the vectors and in the `state` of query and key.
    position_params: its parameters.
    normaliser: from scores to weights; None: softmax. Some change the output,
      too.
    normaliser_params: its parameters.
    scale: factor of the scores, before that of the position method; None:
      K^-1/2.
    softcap: c: scaled scores become c tanh(scores / c), before any bias; 0: no
      cap.
    dropout: on the weights.
    broadcast_dropout: drop the same weights in all rows and heads.
    backend: one of BACKENDS.
      'reference' is unfused, and supports everything.
      'chunked' is the reference, a few queries at a time, recomputed in the
        backward pass: supports everything, with memory linear in length.
      'xla', 'cudnn' are `jax.nn.dot_product_attention`.
      'pallas_tpu' is the TPU flash attention of jax.
      'auto' is 'cudnn' for platform 'gpu' and 'pallas_tpu' for 'tpu' where
        they support the call and form no mask or bias of more than 2^26
        elements; else, 'chunked' for more than 2^26 scores, and 'reference'.
        An axis of vmap does not count. See choose.
    platform: 'cpu', 'gpu' ('cuda') of NVIDIA, 'rocm' or 'tpu', that it is
      compiled for; None: any, and 'auto' is no kernel, since kernels do not
      support all transformations of jax: neither has a second derivative,
      'cudnn' needs queries, keys and values that are all batched in a vmap, and
      'pallas_tpu' needs `check_vma=False` in a shard_map.
    has_finite_padding: whether queries, keys and values at padding are finite,
      as projections of finite vectors are. Otherwise they are read as zeros.
    return_weights: whether to return the weights as well.
    terms: a dict to which, with return_weights, what each part of the position
      method without `encoding` added to the scaled scores is added, by the name
      of the part, (B, H, L, M).

  Returns:
    Output (B, L, H, width of values) in the dtype of the queries, and the
    float32 weights before dropout (B, H, L, M), or None.

  Raises:
    ValueError: an argument is out of range or was made for other sizes, a
      parameter of the method is missing, or the backend does not support the
      call.

  Examples:
    >>> q_BLHK = jnp.ones((2, 5, 4, 8))
    >>> k_BMGK, v_BMGK = jnp.ones((2, 7, 2, 8)), jnp.ones((2, 7, 2, 3))
    >>> output, weights_BHLM = selfattn.attend(
    ...   q_BLHK, k_BMGK, v_BMGK, return_weights=True
    ... )
    >>> output.shape, weights_BHLM.shape
    ((2, 5, 4, 3), (2, 4, 5, 7))
  """
  _check_shapes(q_BLHK, k_BMGK, v_BMGK)
  q_BLHK, k_BMGK, v_BMGK = map(as_floats, (q_BLHK, k_BMGK, v_BMGK))
  B, L, H, K = q_BLHK.shape
  M = k_BMGK.shape[1]
  position = NoPosition(H * K, H, causal) if position is None else position
  normaliser = Softmax(H) if normaliser is None else normaliser
  params = narrowed(position_params or {})
  normaliser_params = narrowed(normaliser_params or {})
  check_position(position, H * K, H, causal, K)
  check_params(position, params, has_state=True)
  check_normaliser(normaliser, normaliser_params, H)
  check_dropout(dropout)
  check_window(window)
  require(0 <= softcap < math.inf, 'softcap', softcap, 'finite and at least 0')
  mask, bias = mask_and_bias(mask, bias, (B, H, L, M))
  query, key = _both_sides(query_tokens, key_tokens, (B, L, M))
  _check_hooks(position, query, key)
  facts = _facts(
    position, normaliser, q_BLHK, v_BMGK, dropout is not None, softcap > 0
  )
  _check_backend(backend, platform, facts)
  if not B or not L or not M:
    nothing = jnp.zeros((B, L, H, v_BMGK.shape[-1]), q_BLHK.dtype)
    weights = jnp.zeros((B, H, L, M), jnp.float32)
    return nothing, weights if return_weights else None
  if not has_finite_padding:
    q_BLHK = without_padding(q_BLHK, query)
    k_BMGK, v_BMGK = (without_padding(x, key) for x in (k_BMGK, v_BMGK))
  rotated_BLHK, rotated_BMGK = _rotated(
    position, params, q_BLHK, k_BMGK, query, key
  )
  choice = choose(
    backend,
    platform,
    (B, H, L, M),
    has_pairs=bias is not None or has_pairs(query, key, causal, window, mask),
    has_token_masks=not key.has_lengths_alone() or (causal and L != M),
    returns_weights=return_weights,
    **facts,
  )
  num_rows = -(-L // choice.rows) * choice.rows
  call = AttendCall(
    terms=Terms(position, params, k_BMGK, query, key, num_rows),
    rotated_BMGK=rotated_BMGK,
    v_BMGK=v_BMGK,
    key=key,
    causal=causal,
    window=window,
    scale=position.scale * (K**-0.5 if scale is None else scale),
    softcap=softcap,
    normaliser=normaliser,
    normaliser_params=normaliser_params,
    dropout=dropout,
    broadcast_dropout=broadcast_dropout,
    num_queries=L,
    return_weights=return_weights,
  )
  rows = q_BLHK, rotated_BLHK, query, mask, bias
  output, weights, by_part = _run(choice, call, rows)
  if terms is not None and return_weights:
    terms |= by_part
  return output.astype(q_BLHK.dtype), weights


def _facts(
  position, normaliser, q_BLHK, v_BMGK, has_dropout: bool, has_softcap: bool
) -> dict:
  """The arguments of unsupported_reason that a call determines."""
  return {
    'dtype': position.rotated_dtype(q_BLHK.dtype),
    'head_dim': q_BLHK.shape[-1],
    'has_dropout': has_dropout,
    'has_softcap': has_softcap,
    'hooks': position.hooks,
    'rotated_dim': position.rotated_dim,
    'normaliser': normaliser,
    'value_dim': v_BMGK.shape[-1],
  }


def _both_sides(query_tokens, key_tokens, shape_BLM) -> tuple[Tokens, Tokens]:
  """Tokens of queries and of keys, with defaults; self-attention has one."""
  B, L, M = shape_BLM
  is_one = key_tokens is None or key_tokens is query_tokens
  query, key = sides(query_tokens, key_tokens, L == M and is_one)
  is_self = key is query
  query = query.with_defaults(L, B)
  return query, query if is_self else key.with_defaults(M, B)


def _rotated(position, params, q_BLHK, k_BMGK, query: Tokens, key: Tokens):
  """Queries and keys after the rotation of every part."""
  B, L, H, _ = q_BLHK.shape
  M, G = k_BMGK.shape[1:3]
  for name, part, part_params in parts_with(position, 'rotate', params):
    q_BLHK, k_BMGK = part.rotate(
      part_params, q_BLHK, k_BMGK, *of_part(name, query, key)
    )
    width = part.rotated_dim
    check_returned(part, 'rotate', q_BLHK, B, L, H, width)
    check_returned(part, 'rotate', k_BMGK, B, M, (G, H), width)
  return q_BLHK, k_BMGK


def _run(
  choice: Choice, call: AttendCall, rows: tuple
) -> tuple[jax.Array, jax.Array | None, dict]:
  """Output, weights or None, and terms by part.

  Args:
    rows: the arguments of `call` for all queries.
  """
  L = call.num_queries
  if choice.rows != L:
    num_chunks = -(-L // choice.rows)
    return in_chunks(call, choice.rows, num_chunks, *rows)
  if choice.backend not in KERNELS:
    return call(*rows, first=0)
  weights, by_part = None, {}
  if call.return_weights:
    # A kernel never forms the weights, so the reference computes them. The
    # output is still that of the kernel.
    _, weights, by_part = call(*rows, first=0)
  term, rotated_BLHK = call.term(*rows), rows[1]
  output = run_kernel(
    choice.backend, rotated_BLHK, call.rotated_BMGK, call.v_BMGK, term
  )
  return output, weights, by_part


def _check_shapes(q_BLHK, k_BMGK, v_BMGK) -> None:
  """Raises ValueError for arrays that are no queries, keys and values."""
  shapes = {'q_BLHK': q_BLHK, 'k_BMGK': k_BMGK, 'v_BMGK': v_BMGK}
  for name, x in shapes.items():
    if x.ndim != 4:
      raise ValueError(
        f'{name} of shape {x.shape} must be (batch, length, heads, width)'
      )
  (B, _, H, K), (_, M, G, _) = q_BLHK.shape, k_BMGK.shape
  if k_BMGK.shape != (B, M, G, K) or v_BMGK.shape[:3] != (B, M, G):
    raise ValueError(
      f'queries {q_BLHK.shape}, keys {k_BMGK.shape} and values {v_BMGK.shape} '
      'must be (B, L, H, K), (B, M, G, K) and (B, M, G, any)'
    )
  if not G or H % G:
    raise ValueError(f'{G} KV heads do not divide {H} query heads')


def _check_hooks(position: Position, query: Tokens, key: Tokens) -> None:
  """Raises ValueError for Tokens that the hooks of a method cannot read."""
  check_tokens(position, query, key)
  if 'state' in position.hooks and (query.state is None or key.state is None):
    raise ValueError(
      f'{type(position).__name__} needs the state of query_tokens and '
      'key_tokens; selfattn.positions.calls.with_state makes it'
    )


def _check_backend(backend: str, platform: str | None, facts: dict) -> None:
  """Raises ValueError for a backend that does not exist or support the call.

  Args:
    facts: see unsupported_reason.
  """
  if backend not in BACKENDS:
    raise ValueError(f'backend {backend!r} is not one of {BACKENDS}')
  reason = unsupported_reason(backend, platform=platform, **facts)
  if reason:
    raise ValueError(f'backend {backend!r} is unsupported: {reason}')
