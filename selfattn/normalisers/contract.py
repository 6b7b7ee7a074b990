"""The contract of a normaliser, and softmax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax

from selfattn.layers import InLayers
from selfattn.simplex import masked_softmax
from selfattn.tokens import Tokens


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
    Further fields are the normaliser's options; each needs a default.

  Examples:
    >>> scores_BHLM, tokens = jnp.zeros((2, 3, 5, 4)), selfattn.Tokens()
    >>> softmax = selfattn.normalisers.Softmax(num_heads=3)
    >>> weights_BHLM = softmax({}, scores_BHLM, None, tokens, tokens)
    >>> weights_BHLM.shape, weights_BHLM[0, 0, 0].tolist()
    ((2, 3, 5, 4), [0.25, 0.25, 0.25, 0.25])
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

  Examples:
    >>> softmax = selfattn.normalisers.Softmax(num_heads=3)
    >>> selfattn.normalisers.check_normaliser(softmax, {}, num_heads=3)
    >>> selfattn.normalisers.check_normaliser(softmax, {}, num_heads=4)
    Traceback (most recent call last):
    ValueError: Softmax was made with num_heads = 3, and its attention has ...
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
