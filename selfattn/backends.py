"""Scaled dot-product attention: one pure function with several backends.

Order of operations (Vaswani et al. 2017, equation 1, with later additions):
rotation of queries and keys, their matmul, content term, scale, soft cap, bias,
terms that depend on these scores, mask, normaliser (softmax) in float32,
dropout on the weights, weighted sum of values, value term, what the normaliser
makes of the output. A fully masked row returns exactly zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from selfattn.choice import BACKENDS, Choice, choose
from selfattn.dropout import Dropout
from selfattn.kernels import KERNELS, call, unsupported_reason
from selfattn.masks import Tokens, has_pairs, mask_and_bias
from selfattn.normalisers import Softmax
from selfattn.positions.contract import NoPosition, Position, parts_with
from selfattn.reference import Reference, in_chunks
from selfattn.terms import Terms


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
  platform: str | None = None,
  return_weights: bool = False,
  terms: dict[str, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array | None]:
  """Attention over H heads.

  Args:
    q_BLHK: queries. Keys share their width K.
    k_BMGK: keys, of G KV heads; G divides H, and query head h attends to KV
      head h // (H/G).
    v_BMGK: values, K wide or not.
    query: Tokens, or a padding mask; None: no padding.
    key: likewise; None: those of the queries, in self-attention.
    causal, window: see masks.visible.
    mask: boolean, broadcasting to (B, H, L, M); False: masked.
    bias: added to the scaled scores, likewise; -inf, or the lowest float32:
      masked.
    position: method whose hooks are called, but for `embed` and `state`, whose
      results are in the vectors and in the `state` of query and key.
    position_params: its parameters.
    normaliser: from scores to weights; None: softmax. Some change the output,
      too.
    normaliser_params: its parameters.
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
    return_weights: whether to return the weights as well.
    terms: a dict to which, with return_weights, what each part of the position
      method without `encoding` added to the scaled scores is added, by the name
      of the part, (B, H, L, M).

  Returns:
    Output (B, L, H, width of values) in the dtype of the queries, and the
    float32 weights before dropout (B, H, L, M), or None.

  Raises:
    ValueError: the backend or the platform is unknown, or the backend does not
      support the call; a mask or bias does not broadcast, a mask is not
      boolean, or Tokens have another number of rows.
  """
  B, L, H, K = q_BLHK.shape
  M = k_BMGK.shape[1]
  position = position or NoPosition(H * K, H, causal)
  normaliser = normaliser or Softmax(H)
  query, key = _sides(query, key, B, L, M)
  facts = {
    'dtype': q_BLHK.dtype,
    'head_dim': K,
    'has_dropout': dropout is not None,
    'has_softcap': softcap > 0,
    'hooks': position.hooks,
    'rotated_dim': position.rotated_dim,
    'normaliser': normaliser,
    'value_dim': v_BMGK.shape[-1],
  }
  _check(backend, platform, H, k_BMGK.shape[2], normaliser, facts)
  if 'state' in position.hooks and (query.state is None or key.state is None):
    raise ValueError(
      f'{type(position).__name__} needs the state of query and key; '
      'selfattn.positions.contract.with_state makes it'
    )
  mask, bias = mask_and_bias(mask, bias, (B, H, L, M))
  if not L or not M:
    nothing = jnp.zeros((B, L, H, v_BMGK.shape[-1]), q_BLHK.dtype)
    return nothing, jnp.zeros((B, H, L, M)) if return_weights else None

  params = position_params or {}
  rotated_BLHK, rotated_BMGK = q_BLHK, k_BMGK
  for _, part, part_params in parts_with(position, 'rotate', params):
    rotated_BLHK, rotated_BMGK = part.rotate(
      part_params, rotated_BLHK, rotated_BMGK, query, key
    )
  choice = choose(
    backend,
    platform,
    (B, H, L, M),
    has_pairs=bias is not None or has_pairs(query, key, causal, window, mask),
    has_token_masks=key.padding_mask is not None or key.segments is not None,
    returns_weights=return_weights,
    **facts,
  )
  num_rows = -(-L // choice.rows) * choice.rows
  reference = Reference(
    terms=Terms(position, params, k_BMGK, query, key, num_rows),
    rotated_BMGK=rotated_BMGK,
    v_BMGK=v_BMGK,
    key=key,
    causal=causal,
    window=window,
    scale=position.scale * K**-0.5,
    softcap=softcap,
    normaliser=normaliser,
    normaliser_params=normaliser_params or {},
    dropout=dropout,
    broadcast_dropout=broadcast_dropout,
    num_queries=L,
    return_weights=return_weights,
  )

  output, weights, found = _run(
    choice, reference, (q_BLHK, rotated_BLHK, query, mask, bias)
  )
  if terms is not None and return_weights:
    terms |= found
  return output, weights


def _run(choice: Choice, reference: Reference, rows: tuple):
  """Output, weights or None, and terms by part.

  Args:
    rows: those of all queries, as `reference` takes them.
  """
  L = reference.num_queries
  weights, found = None, {}
  if choice.rows < L:
    num_chunks = -(-L // choice.rows)
    return in_chunks(reference, choice.rows, num_chunks, *rows)
  is_kernel = choice.backend in KERNELS
  if not is_kernel or reference.return_weights:
    output, weights, found = reference(*rows, 0)
  if is_kernel:
    # A kernel never forms the weights. Where they are returned, the reference
    # computes them, and the output is that of the kernel all the same.
    output = call(
      choice.backend,
      rows[1],
      reference.rotated_BMGK,
      reference.v_BMGK,
      reference.term(*rows),
    )
  return output, weights, found


def _sides(query, key, B: int, L: int, M: int) -> tuple[Tokens, Tokens]:
  """Tokens of both sides; the same object in self-attention."""
  is_self = key is None and L == M
  if key is None and L != M:
    if query is not None:
      raise ValueError(
        f'key must be given, since there are {M} keys and {L} queries'
      )
    key = Tokens()
  query = Tokens.of(query).with_defaults(L, B)
  return query, query if is_self else Tokens.of(key).with_defaults(M, B)


def _check(backend, platform, H: int, G: int, normaliser, facts: dict) -> None:
  """Raises ValueError for what the backend does not support."""
  if backend not in BACKENDS:
    raise ValueError(f'backend {backend!r} is not one of {BACKENDS}')
  if H % G:
    raise ValueError(f'{G} KV heads do not divide {H} query heads')
  if normaliser.pairs_heads and H % 2:
    raise ValueError(
      f'{type(normaliser).__name__} needs an even number of heads, not {H}'
    )
  reason = unsupported_reason(backend, platform=platform, **facts)
  if reason:
    raise ValueError(f'backend {backend!r} is unsupported: {reason}')
