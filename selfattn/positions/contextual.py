"""Contextual positions, from the text itself: CoPE and forget gates."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from selfattn.order import cumulative_sum, prefix_sums
from selfattn.positions.contract import Position, require


@dataclasses.dataclass(frozen=True)
class Cope(Position):
  """Contextual positions (Golovneva et al. 2024, equations 3 to 5).

  The position of a key is the sum of sigmoid(scaled score) over the keys from
  it to the query, both included. The vector at this position, linearly
  interpolated between two rows of a table, is multiplied with the query, as a
  key is.

  In causal encoders, this is the method of the paper. Our extension to keys on
  both sides: later keys are counted likewise, with a table of their own.

  Attributes:
    max_position: last row of the table; positions beyond it are clipped.
    init_std: standard deviation at initialisation.
  """

  max_position: int = 64
  init_std: float = 1.0

  per_layer = True
  is_relative = True
  supports_real_positions = True
  uses_positions = False

  def __post_init__(self):
    require(
      self.max_position >= 1, 'max_position', self.max_position, 'at least 1'
    )
    require(self.init_std >= 0, 'init_std', self.init_std, 'at least 0')

  def init(self, key):
    """`table`: (1 or 2 sides, N, K), shared by the heads."""
    sides = 1 if self.causal else 2
    shape = (sides, self.max_position + 1, self.head_dim)
    return {'table': self.init_std * jax.random.normal(key, shape)}

  def scores(self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key):
    del bias_BHLM
    ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    ahead = jnp.asarray(ahead_BLM)[:, None]
    gates = jax.nn.sigmoid(content_BHLM)
    gates = gates if mask is None else jnp.where(mask, gates, 0.0)
    before = jnp.where(ahead <= 0, gates, 0.0)
    in_order = cumulative_sum(before, key.index)
    total = before.sum(axis=-1, keepdims=True)
    term = self._read(params['table'][0], q_BLHK, total - in_order + before)
    if self.causal:
      return term
    after = cumulative_sum(jnp.where(ahead >= 0, gates, 0.0), key.index)
    return jnp.where(
      ahead <= 0, term, self._read(params['table'][1], q_BLHK, after)
    )

  def _read(self, table_NK, q_BLHK, position_BHLM):
    """Scaled scores of queries and the vectors at fractional positions."""
    table_NK = table_NK.astype(q_BLHK.dtype)
    scores = jnp.einsum(
      'BLHK,NK->BHLN', q_BLHK, table_NK, preferred_element_type=jnp.float32
    )
    position = jnp.minimum(position_BHLM, self.max_position)
    below = jnp.floor(position).astype(jnp.int32)
    above = jnp.minimum(below + 1, self.max_position)
    at_below, at_above = (
      jnp.take_along_axis(scores, index, axis=-1) for index in (below, above)
    )
    mixed = at_below + (position - below) * (at_above - at_below)
    return mixed * self.head_dim**-0.5


@dataclasses.dataclass(frozen=True)
class Forgetting(Position):
  """Forget gates (Lin et al. 2025, FoX, equations 6 and 7).

  Token l has a gate f_l = sigmoid(w x_l + b) in each head, from the input of
  the layer. The bias of an earlier key is the sum of log f_l over the tokens
  after the key, up to the query: a data-dependent ALiBi.

  In a bidirectional encoder, the bias of a later key sums over other gates, of
  the tokens after the query, up to the key (as the data-dependent ALiBi of
  x-transformers).

  Biases are differences of prefix sums in float32, with an error of 1e-7 of the
  sum over the text, or over all texts of a packed row: 5e-4 at 8,192 tokens.

  Attributes:
    bias_init: bias of the gates at initialisation; a larger one forgets less.
  """

  bias_init: float = 0.0

  per_layer = True
  is_relative = True
  supports_real_positions = True
  uses_positions = False

  def init(self, key):
    """`kernel` (D, H or 2H) and `bias`: gates of earlier, then later keys."""
    count = self.num_heads if self.causal else 2 * self.num_heads
    kernel = jax.nn.initializers.lecun_normal()(key, (self.embed_dim, count))
    return {'kernel': kernel, 'bias': jnp.full(count, self.bias_init)}

  def state(self, params, x_BLD, tokens):
    """Logarithms of the gates, float32 (B, L, H or 2H); 0 at padding."""
    x_BLD = x_BLD.astype(jnp.float32)
    gates = jax.nn.log_sigmoid(
      x_BLD @ params['kernel'] + params['bias'][None, None]
    )
    if tokens.padding_mask is None:
      return gates
    return jnp.where(tokens.padding_mask[..., None], gates, 0.0)

  def bias(self, params, query, key):
    sums_BLH, sums_BMH = prefix_sums(key.state, query, key)
    bias = sums_BLH[:, :, None] - sums_BMH[:, None]
    bias = jnp.moveaxis(bias, -1, 1)
    ahead = jnp.asarray(key.index[:, None, :] - query.index[:, :, None])[
      :, None
    ]
    if self.causal:
      return jnp.where(ahead <= 0, bias, 0.0)
    before, after = jnp.split(bias, 2, axis=1)
    return jnp.where(ahead <= 0, before, -after)


@dataclasses.dataclass(frozen=True)
class Dape(Position):
  """Positions that the scores adapt (Zheng et al. 2024, equation 3).

  Adds f(S, B) to the scores S and biases B of every pair, where f is a network
  of one hidden layer over the heads of both. B is what joined methods add, as
  in `kerple+dape`; alone, it is 0.

  The paper's for causal encoders; nothing in it depends on that.

  Attributes:
    hidden_dim: width of the hidden layer of f, with leaky relu.
  """

  hidden_dim: int = 32

  per_layer = True
  is_relative = True
  supports_real_positions = True
  uses_positions = False

  def __post_init__(self):
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')

  def init(self, key):
    """`in_kernel` (2H, F), `in_bias`, `out_kernel` (F, H), `out_bias`."""
    keys = jax.random.split(key)
    kernel = jax.nn.initializers.lecun_normal()
    return {
      'in_kernel': kernel(keys[0], (2 * self.num_heads, self.hidden_dim)),
      'in_bias': jnp.zeros(self.hidden_dim),
      'out_kernel': kernel(keys[1], (self.hidden_dim, self.num_heads)),
      'out_bias': jnp.zeros(self.num_heads),
    }

  def scores(self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key):
    del q_BLHK, mask, query, key
    of_content, of_bias = jnp.split(params['in_kernel'], 2)
    hidden = jnp.einsum('BHLM,HF->BFLM', content_BHLM, of_content)
    if bias_BHLM is not None:
      bias_BHLM = jnp.broadcast_to(bias_BHLM, content_BHLM.shape)
      hidden += jnp.einsum('BHLM,HF->BFLM', bias_BHLM, of_bias)
    hidden += params['in_bias'][None, :, None, None]
    out = jnp.einsum(
      'BFLM,FH->BHLM', jax.nn.leaky_relu(hidden), params['out_kernel']
    )
    return out + params['out_bias'][None, :, None, None]
