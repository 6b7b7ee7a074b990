"""From scores to attention weights, chosen by name.

A normaliser is a frozen dataclass with its options as fields. All of them
return exactly zero, with finite gradients, in a fully masked row.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from selfattn.layers import InLayers
from selfattn.masks import Tokens
from selfattn.order import later_sum
from selfattn.positions.contract import require
from selfattn.simplex import entmax, masked_softmax


@dataclasses.dataclass(frozen=True)
class Softmax(InLayers):
  """exp(s) / sum exp(s) (Vaswani et al. 2017, equation 1).

  Normalisers may read `self.layer`, the Layer that they are called in, but in
  `init`.

  Attributes:
    num_heads: H.
    head_dim: K, for normalisers with parameters of that width; None: unknown.
    causal_only: whether keys after their query have to be masked.
    pairs_heads: whether num_heads has to be even.
    Further fields are the normaliser's options; each needs a default, and
    becomes a key of the config.
  """

  num_heads: int
  head_dim: int | None = dataclasses.field(default=None, kw_only=True)

  causal_only: ClassVar[bool] = False
  pairs_heads: ClassVar[bool] = False

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """Parameters of one layer by name; {} if it has none."""
    del key
    return {}

  def __call__(
    self,
    params,
    scores_BHLM: jax.Array,
    mask: jax.Array | None,
    query: Tokens,
    key: Tokens,
  ) -> jax.Array:
    """Weights, float32 (B, H, L, M).

    Args:
      params: from `init`.
      scores_BHLM: float32, of all keys, and of all queries or a chunk.
      mask: boolean, broadcasting to them, False where masked; None: no mask.
      query, key: Tokens of both sides.
    """
    del params, query, key
    return masked_softmax(scores_BHLM, mask)

  def output(self, params, output_BLHK: jax.Array) -> jax.Array:
    """Outputs of the heads, from their weighted sums of values, `output_BLHK`.

    Each query by itself; zero where all heads are. `params` are from `init`.
    """
    del params
    return output_BLHK


def check_normaliser(normaliser: Softmax, params, num_heads: int) -> None:
  """Raises ValueError unless it suits a layer.

  Args:
    normaliser: one of NORMALISERS, as an object.
    params: its parameters.
    num_heads: H.
  """
  if not isinstance(normaliser, Softmax):
    raise ValueError(
      f'normaliser = {normaliser!r} must be an object of Softmax or of a '
      f'subclass, such as Softmax(num_heads={num_heads})'
    )
  kind = type(normaliser).__name__
  if normaliser.num_heads != num_heads:
    raise ValueError(
      f'{kind} was made with num_heads = {normaliser.num_heads}, and its '
      f'attention has num_heads = {num_heads}; make them the same'
    )
  if normaliser.pairs_heads and num_heads % 2:
    raise ValueError(f'{kind} needs an even number of heads, not {num_heads}')
  if params or type(normaliser) is Softmax:
    return
  missing = jax.eval_shape(normaliser.init, jax.random.key(0))
  if missing:
    raise ValueError(
      f'normaliser_params of {kind} have no {", ".join(map(repr, missing))}: '
      'give what its init returns'
    )


@dataclasses.dataclass(frozen=True)
class Sinks(Softmax):
  """exp(s) / (exp(sink) + sum exp(s)): weights may sum to less than one.

  With `learned`, one sink per head and layer, 0 at initialisation (as in
  gpt-oss); without, all are 0: softmax-off-by-one (Miller 2023).

  Attributes:
    learned: whether sinks are parameters.
  """

  learned: bool = True

  def init(self, key):
    return {'sink': self._zeros()} if self.learned else {}

  def _zeros(self):
    return jnp.zeros(self.num_heads, jnp.float32)

  def __call__(self, params, scores_BHLM, mask, query, key):
    B, _, L, _ = scores_BHLM.shape
    sink_H = params['sink'] if self.learned else self._zeros()
    sink_BHL1 = jnp.broadcast_to(
      sink_H[None, :, None, None], (B, self.num_heads, L, 1)
    )
    # One more key, without a value.
    scores = jnp.concatenate([scores_BHLM, sink_BHL1], axis=-1)
    if mask is None:
      return masked_softmax(scores, None)[..., :-1]
    mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores_BHLM.shape[-1]))
    mask = jnp.pad(mask, [(0, 0)] * 3 + [(0, 1)], constant_values=True)
    return masked_softmax(scores, mask)[..., :-1]


@dataclasses.dataclass(frozen=True)
class Sigmoid(Softmax):
  """sigmoid(s - log n), elementwise (Ramapuram et al. 2024, section 2).

  n is the number of visible keys of the query, so that a row sums to about one
  at initialisation; without `by_length`, it is 1.

  Attributes:
    by_length: whether log n, of n visible keys, is subtracted.
  """

  by_length: bool = True

  def __call__(self, params, scores_BHLM, mask, query, key):
    scores = scores_BHLM.astype(jnp.float32)
    if mask is None:
      mask = jnp.ones((1, 1, 1, 1), bool)
    mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores.shape[-1]))
    if self.by_length:
      count = jnp.maximum(mask.sum(axis=-1, keepdims=True), 1)
      scores = scores - jnp.log(count.astype(jnp.float32))
    return jnp.where(mask, jax.nn.sigmoid(jnp.where(mask, scores, 0.0)), 0.0)


# Nearer to 1, the exponent 1 / (alpha - 1) loses the digits of float32.
_LOWEST_ALPHA = 1.01


@dataclasses.dataclass(frozen=True)
class Entmax(Softmax):
  """alpha-entmax: weights that can be exactly zero (Peters et al. 2019).

  relu((alpha - 1) s - tau)^(1 / (alpha - 1)), with tau such that a row sums to
  one: softmax as alpha tends to 1, sparsemax at 2. With `learned`, alpha is
  1 + sigmoid(a), from 1.01 to 2, of each head and layer (Correia et al. 2019,
  section 4.1), and begins at `alpha`.

  tau is found by bisection; gradients are those of the solution (equations 12
  and 13 of Correia et al.).

  Attributes:
    alpha: the exponent's alpha; below 2 where learned.
    learned: whether each head learns its own, from alpha on.
  """

  alpha: float = 1.5
  learned: bool = False

  def __post_init__(self):
    highest = 1.99 if self.learned else 2.0
    require(
      _LOWEST_ALPHA <= self.alpha <= highest,
      'alpha',
      self.alpha,
      f'from {_LOWEST_ALPHA} to {highest}',
    )

  def init(self, key):
    """`alpha_logit`, a: (H,), where it is learned."""
    if not self.learned:
      return {}
    share = self.alpha - 1
    logit = math.log(share / (1 - share))
    return {'alpha_logit': jnp.full(self.num_heads, logit, jnp.float32)}

  def __call__(self, params, scores_BHLM, mask, query, key):
    alpha_H = jnp.full(self.num_heads, self.alpha, jnp.float32)
    if self.learned:
      alpha_H = 1 + jax.nn.sigmoid(params['alpha_logit'])
      alpha_H = jnp.maximum(alpha_H, _LOWEST_ALPHA)
    if mask is None:
      mask = jnp.ones((1, 1, 1, 1), bool)
    scores = scores_BHLM.astype(jnp.float32)
    return entmax(scores, mask, alpha_H[None, :, None, None])


@dataclasses.dataclass(frozen=True)
class Sparsemax(Softmax):
  """The nearest point of the simplex (Martins and Astudillo 2016).

  relu(s - tau), with tau such that a row sums to one.
  """

  def __call__(self, params, scores_BHLM, mask, query, key):
    return Entmax(self.num_heads, alpha=2.0)({}, scores_BHLM, mask, query, key)


@dataclasses.dataclass(frozen=True)
class StickBreaking(Softmax):
  """Nearest keys first (Tan et al. 2024, equation 2); causal encoders alone.

  sigmoid(s_ij) prod_l (1 - sigmoid(s_il)) over the keys l from j to the query:
  each key takes its share of what nearer ones have left, so that order needs no
  further position method. A row may sum to less than one.

  Attributes:
    attend_current: whether a token attends to itself.
  """

  attend_current: bool = True

  causal_only = True

  def __call__(self, params, scores_BHLM, mask, query, key):
    scores = scores_BHLM.astype(jnp.float32)
    ahead_BLM = key.index[:, None, :] - query.index[:, :, None]
    seen = ahead_BLM <= 0 if self.attend_current else ahead_BLM < 0
    mask = jnp.asarray(seen)[:, None] if mask is None else mask & seen[:, None]
    left = jnp.where(mask, jax.nn.log_sigmoid(-scores), 0.0)
    nearer = later_sum(left, key.index)
    weights = jnp.exp(jax.nn.log_sigmoid(scores) + nearer)
    return jnp.where(mask, weights, 0.0)


@dataclasses.dataclass(frozen=True)
class TalkingHeads(Softmax):
  """Softmax between two maps over heads (Shazeer et al. 2020, section 4).

  Both maps begin as the identity. With a mask for each head, a key that is
  hidden from a head has no weight in it, whatever other heads see.
  """

  def init(self, key):
    """`before` and `after`: (H, H), from heads to heads."""
    del key
    eye = jnp.eye(self.num_heads, dtype=jnp.float32)
    return {'before': eye, 'after': eye}

  def __call__(self, params, scores_BHLM, mask, query, key):
    mixed = jnp.einsum('BHLM,HN->BNLM', scores_BHLM, params['before'])
    weights = masked_softmax(mixed, mask)
    weights = jnp.einsum('BHLM,HN->BNLM', weights, params['after'])
    return _hidden_of_heads(weights, mask)


@dataclasses.dataclass(frozen=True)
class Differential(Softmax):
  """softmax(s_1) - lambda softmax(s_2) (Ye et al. 2024, equations 1 to 3).

  Heads h and h + H/2 are a pair: both have these weights, each its own values.
  Their outputs are divided by the root mean square of the 2K channels of both,
  and multiplied by 1 - lambda_init. Weights may be negative.

  lambda is exp(q1 . k1) - exp(q2 . k2) + lambda_init, with four vectors of each
  layer, and lambda_init = highest - drop exp(-0.3 l) in layer l, from 0. With a
  mask for each head, a key that is hidden from a head has no weight in it,
  whatever the other head of its pair sees.

  Attributes:
    highest: share of the second softmax at initialisation, in deep layers.
    drop: how much less it is in the first layer; 0: the same in all layers.
  """

  highest: float = 0.8
  drop: float = 0.6

  pairs_heads = True

  def __post_init__(self):
    require(
      0 <= self.highest < 1, 'highest', self.highest, 'at least 0 and below 1'
    )
    require(
      0 <= self.drop <= self.highest,
      'drop',
      self.drop,
      f'from 0 to highest = {self.highest}',
    )

  def lambda_init(self) -> jax.Array:
    """The share of the second softmax at initialisation, in its layer."""
    return self.layer.value(
      lambda index: self.highest - self.drop * math.exp(-0.3 * index)
    )

  def init(self, key):
    """`lambda_q1`, `lambda_k1`, `lambda_q2` and `lambda_k2`: (K,).

    ValueError without head_dim.
    """
    if self.head_dim is None:
      raise ValueError('differential needs head_dim')
    names = ('lambda_q1', 'lambda_k1', 'lambda_q2', 'lambda_k2')
    shape = (len(names), self.head_dim)
    vectors = 0.1 * jax.random.normal(key, shape, jnp.float32)
    return dict(zip(names, vectors, strict=True))

  def __call__(self, params, scores_BHLM, mask, query, key):
    of_pairs = [
      jnp.exp((params[f'lambda_q{n}'] * params[f'lambda_k{n}']).sum())
      for n in (1, 2)
    ]
    scale = of_pairs[0] - of_pairs[1] + self.lambda_init()
    first, second = jnp.split(masked_softmax(scores_BHLM, mask), 2, axis=1)
    weights = jnp.tile(first - scale * second, (1, 2, 1, 1))
    return _hidden_of_heads(weights, mask)

  def output(self, params, output_BLHK):
    B, L, H, K = output_BLHK.shape
    x = output_BLHK.astype(jnp.float32).reshape(B, L, 2, H // 2, K)
    mean = (x**2).mean(axis=(2, 4), keepdims=True)
    x *= (1 - self.lambda_init()) * jax.lax.rsqrt(mean + 1e-5)
    return x.reshape(output_BLHK.shape)


def _hidden_of_heads(weights_BHLM, mask):
  """Weights of mixed heads, zero where a mask of single heads hides a key."""
  if mask is None or mask.shape[1] == 1:
    return weights_BHLM
  return jnp.where(mask, weights_BHLM, 0.0)


NORMALISERS: dict[str, type[Softmax]] = {
  'softmax': Softmax,
  'sinks': Sinks,
  'sigmoid': Sigmoid,
  'sparsemax': Sparsemax,
  'entmax': Entmax,
  'stick_breaking': StickBreaking,
  'talking_heads': TalkingHeads,
  'differential': Differential,
}
