"""Normalisers that mix heads."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from selfattn.normalisers.contract import Softmax
from selfattn.positions.contract import require
from selfattn.simplex import masked_softmax


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
