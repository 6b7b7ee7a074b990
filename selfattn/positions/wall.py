"""Keys whose channels fade, each at its own pace: Wall attention."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.order import columns_back, extended, ordered, prefix_sums, ranks
from selfattn.positions.contract import Position

# Keys of a block; within one, pairs are computed channel by channel.
_BLOCK = 16


@dataclasses.dataclass(frozen=True)
class Wall(Position):
  """Wall attention (Averbuch and Pai 2026; no paper, their code in fla).

  A score is the sum over channels n of q_in k_jn exp(g_{j+1,n} + ... + g_in),
  with g = log sigmoid(w x + b) of each token, head and channel: a forget gate
  for each channel of a key. Defined for causal encoders alone.

  Of a block of keys and the queries after it, both sides fade from the last
  key of the block, so that no factor is above 1, however much a text forgets.

  Attributes:
    bias_init: b at initialisation; a larger one forgets less.
  """

  bias_init: float = 8.0

  per_layer = True
  is_relative = True
  causal_only = True
  supports_real_positions = True
  uses_positions = False

  def init(self, key):
    """`kernel` (D, HK) and `bias` (HK,)."""
    width = self.num_heads * self.head_dim
    shape = (self.embed_dim, width)
    return {
      'kernel': jax.nn.initializers.lecun_normal()(key, shape),
      'bias': jnp.full(width, self.bias_init),
    }

  def state(self, params, x_BLD, tokens):
    """g, float32 (B, L, HK), 0 at padding."""
    logits = x_BLD.astype(jnp.float32) @ params['kernel']
    g_BLN = jax.nn.log_sigmoid(logits + params['bias'][None, None])
    if tokens.padding_mask is None:
      return g_BLN
    return jnp.where(jnp.asarray(tokens.padding_mask)[..., None], g_BLN, 0.0)

  def content(self, params, q_BLHK, k_BMHK, query, key):
    """What fading changes of q k."""
    B, M, H, K = k_BMHK.shape
    sums_q, sums_k = prefix_sums(key.state, query, key)
    q, k = (x.astype(jnp.float32) for x in (q_BLHK, k_BMHK))
    sums_q = sums_q.reshape(B, -1, H, K)
    order_BM, until_BL = ranks(query, key, B)
    # One block more than keys fill, at least, so that each query has one.
    count = M // _BLOCK + 1
    k, sums_k = (
      self._blocks(ordered(x, order_BM), count)
      for x in (k, sums_k.reshape(B, M, H, K))
    )
    far = self._far(q, sums_q, k, sums_k)
    own_BL = jnp.minimum(until_BL // _BLOCK, count - 1)
    near = self._near(q, sums_q, k, sums_k, own_BL)
    is_own = own_BL[..., None] == jnp.arange(count)[None, None]
    total = jnp.where(is_own[:, None, ..., None], near[..., None, :], far)
    total = total.reshape(*total.shape[:3], -1)[..., :M]
    return columns_back(total, order_BM) - jnp.einsum(
      'BLHK,BMHK->BHLM', q, k_BMHK.astype(jnp.float32)
    )

  def _blocks(self, x_BMHK, count: int):
    """(B, blocks, keys of a block, H, K); the last key fills the last block."""
    B, M, H, K = x_BMHK.shape
    x_BMHK = extended(x_BMHK, count * _BLOCK - M)
    return x_BMHK.reshape(B, count, _BLOCK, H, K)

  def _far(self, q_BLHK, sums_BLHK, k_BCNHK, sums_BCNHK):
    """Scores of the queries after each block: (B, H, L, C, N)."""

    def block(_, now):
      k_BNHK, sums_BNHK = now
      last = sums_BNHK[:, -1:]
      fading_q = q_BLHK * jnp.exp(jnp.minimum(sums_BLHK - last, 0.0))
      fading_k = k_BNHK * jnp.exp(last - sums_BNHK)
      return None, jnp.einsum('BLHK,BNHK->BHLN', fading_q, fading_k)

    by_block = tuple(jnp.moveaxis(x, 1, 0) for x in (k_BCNHK, sums_BCNHK))
    _, far_CBHLN = jax.lax.scan(jax.checkpoint(block), None, by_block)
    return jnp.moveaxis(far_CBHLN, 0, 3)

  def _near(self, q_BLHK, sums_BLHK, k_BCNHK, sums_BCNHK, own_BL):
    """Scores of each query and the keys of its own block: (B, H, L, N)."""
    block = own_BL[..., None, None, None]
    k, sums = (
      jnp.take_along_axis(x, block, axis=1) for x in (k_BCNHK, sums_BCNHK)
    )
    faded = jnp.exp(jnp.minimum(sums_BLHK[:, :, None] - sums, 0.0))
    return jnp.einsum('BLHK,BLNHK,BLNHK->BHLN', q_BLHK, k, faded)
