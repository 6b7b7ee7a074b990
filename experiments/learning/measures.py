"""Measures of what layers sow, such as the entropy of attention weights.

One class and one line of MEASURES per measure. config.train.measures names
them, and each is then a metric of the run beside those of the task: its mean
over the texts of a split. One with a weight is a loss of training, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from experiments.command.errors import UserError
from selfattn import analysis
from selfattn.contract import Encoder, has_heads
from selfattn.feed_forward import Router


@dataclasses.dataclass(frozen=True)
class Measure:
  """A number for each text, from what the layers of an encoder sowed.

  Fields with a default are options.

  Attributes:
    best: `max` or `min`, the best of several values, for a sweep or a
      checkpoint that is chosen by the measure.
    collection: where layers sow what it reads: `intermediates`, attention
      weights and encodings of positions among it, or `measured`, which costs
      nothing where it is not read.
    label_option: an option whose value, if it is given, is a part of the name
      of the metric, so that the measure may be joined with itself; '': none.
    weight: factor with which training adds the measure to the loss of the task;
      0: it is not trained. A text counts as often as it has predictions, so
      that the loss is a mean over predictions as that of the task is.
  """

  best: ClassVar[Callable] = min
  collection: ClassVar[str] = 'intermediates'
  label_option: ClassVar[str] = ''
  weight: float = dataclasses.field(default=0.0, kw_only=True)

  def check(self, encoder: Encoder) -> None:
    """ValueError if an option is out of range, or the encoder does not fit."""

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    """The measure of each text, float32 (B,); finite. Traced by jax.

    Args:
      sown: the tree of its collection that the encoder sowed, which
        selfattn.analysis.sown reads.
      padding_mask_BL: boolean, True at the tokens that the encoder has read,
        of which [CLS] is the first if the model has it.
    """
    raise NotImplementedError


class OfWeights(Measure):
  """The mean over layers, heads and queries of a number for each query.

  It is 0 for a text without tokens. A subclass defines `of_queries`.
  """

  def check(self, encoder: Encoder) -> None:
    if not has_heads(encoder):
      name = type(encoder).__name__
      raise ValueError(f'it reads attention weights, and {name} has none')

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    """A number for each query, (B, H, L).

    Args:
      shares_BHLM: float32, of each key in the weight of a query.
    """
    raise NotImplementedError

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    count_B = jnp.maximum(padding_mask_BL.sum(axis=-1), 1)
    means_NB = []
    for weights_BHLM in _of_layers(sown, 'weights'):
      x_BHL = self.of_queries(analysis.shares(weights_BHLM))
      x_BHL = jnp.where(padding_mask_BL[:, None], x_BHL, 0.0)
      means_NB.append(x_BHL.mean(axis=1).sum(axis=-1) / count_B)
    return jnp.stack(means_NB).mean(axis=0)


class AttentionEntropy(OfWeights):
  """Entropy of the weights of a query over its keys, in nats."""

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    return analysis.entropy(shares_BHLM)


class AttentionDistance(OfWeights):
  """Distance |key - query| in tokens, weighted by attention."""

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    index = jnp.arange(shares_BHLM.shape[-1], dtype=jnp.float32)
    distance_LM = abs(index[None] - index[:, None])
    return (shares_BHLM * distance_LM[None, None]).sum(axis=-1)


class AttentionToFirst(OfWeights):
  """Share of the first token in the weights: an attention sink (Xiao 2023)."""

  def of_queries(self, shares_BHLM: jax.Array) -> jax.Array:
    return shares_BHLM[..., 0]


@dataclasses.dataclass(frozen=True)
class Sown(Measure):
  """The sum over layers of what they sow under a name in `measured`.

  That is a number for each text (B,), or for each token (B, L), of which the
  mean over the tokens of a text is taken. It is 0 for a text without tokens.

  Attributes:
    name: under which it is sown.
  """

  collection: ClassVar[str] = 'measured'
  label_option: ClassVar[str] = 'name'
  name: str = 'loss'

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    of_tokens, of_texts = padding_mask_BL.shape, padding_mask_BL.shape[:1]
    total = jnp.zeros(of_texts)
    for value in _of_layers(sown, self.name):
      if value.shape not in (of_texts, of_tokens):
        raise ValueError(
          f'name = {self.name!r}: a layer sows shape {value.shape} of '
          f'{of_tokens} tokens, and must sow (B,), a number for each text, or '
          '(B, L), one for each token'
        )
      if value.shape == of_tokens:
        value = _mean_of_tokens(value, padding_mask_BL)
      total += value
    return total


class OfRouters(Measure):
  """The sum over layers of a number of what routers of experts chose.

  A subclass defines `of_router`.
  """

  collection: ClassVar[str] = 'measured'

  def check(self, encoder: Encoder) -> None:
    experts: Any = getattr(encoder, 'experts', None)
    layers = range(getattr(encoder, 'num_layers', 1))
    if experts is None or set(layers) <= set(experts.dense_layers):
      raise ValueError(
        'it reads routers, and config.model.experts gives no layer one'
      )

  def of_router(self, router, padding_mask_BL: jax.Array) -> jax.Array:
    """The number of each text, (B,).

    Args:
      router: as selfattn.feed_forward.Router.
    """
    raise NotImplementedError

  def __call__(self, sown: Mapping, padding_mask_BL: jax.Array) -> jax.Array:
    fields = [_of_layers(sown, name) for name in Router._fields]
    routers = (Router(*of_layer) for of_layer in zip(*fields, strict=True))
    of_texts = [self.of_router(one, padding_mask_BL) for one in routers]
    return jnp.stack(of_texts).sum(axis=0)


class LoadBalance(OfRouters):
  """Balance of the experts of a text (DeepSeek-V3, 2024, equations 17 to 20).

  The sum over experts of the share of choices of each, times its mean score,
  times the number of experts: 1 where both are equal for all experts. Being of
  each text, it is the same in microbatches of any size.
  """

  def of_router(self, router, padding_mask_BL):
    scores_BLE = router.scores / router.scores.sum(axis=-1, keepdims=True)
    score_BE = _mean_of_tokens(scores_BLE, padding_mask_BL)
    count = router.chosen.sum(axis=-1, keepdims=True)
    share_BE = _mean_of_tokens(router.chosen / count, padding_mask_BL)
    return (score_BE * share_BE).sum(axis=-1) * router.scores.shape[-1]


class RouterZ(OfRouters):
  """Squared log of the sum of exponentials of logits (ST-MoE, equation 5).

  Zoph et al. 2022. The mean over the tokens of a text.
  """

  def of_router(self, router, padding_mask_BL):
    z_BL = jax.nn.logsumexp(router.logits, axis=-1)
    return _mean_of_tokens(z_BL**2, padding_mask_BL)


def _of_layers(sown: Mapping, name: str) -> list[jax.Array]:
  """What layers sowed by a name, float32; ValueError if none did."""
  values = [value for *_, value in analysis.sown(sown, name)]
  if not values:
    names = sorted({path[-1] for path in flatten_dict(sown)})
    raise ValueError(
      f'no layer sows {name}; layers sow {", ".join(names) or "nothing"}'
    )
  return [value.astype(jnp.float32) for value in values]


def _mean_of_tokens(values: jax.Array, padding_mask_BL: jax.Array) -> jax.Array:
  """Means over the tokens of each text, (B, ...) of (B, L, ...)."""
  extra = range(2, values.ndim)
  mask = jnp.expand_dims(padding_mask_BL, tuple(extra))
  sums = jnp.where(mask, values, 0.0).sum(axis=1)
  count = jnp.maximum(padding_mask_BL.sum(axis=1), 1)
  return sums / jnp.expand_dims(count, tuple(range(1, sums.ndim)))


MEASURES: dict[str, type[Measure]] = {
  'attention_entropy': AttentionEntropy,
  'attention_distance': AttentionDistance,
  'attention_to_first': AttentionToFirst,
  'load_balance': LoadBalance,
  'router_z': RouterZ,
  'sown': Sown,
}


def collections_of(measures: Sequence[Measure]) -> list[str]:
  """The collections that measures read; [] for none."""
  return sorted({measure.collection for measure in measures})


def measured(
  measures: Sequence[Measure], sown: Mapping, padding_mask_BL, has_cls: bool
) -> list[jax.Array]:
  """The measures of each text, float32 (B,) each.

  Args:
    sown: the collections that the classifier sowed.
    padding_mask_BL: of the tokens of the texts.
    has_cls: whether the encoder has read [CLS] before them.

  Raises:
    UserError: one returns no number for each text.
    ValueError: no layer sows what one reads.
  """
  if has_cls:
    padding_mask_BL = jnp.pad(
      padding_mask_BL, ((0, 0), (1, 0)), constant_values=True
    )
  values = []
  for measure in measures:
    of_encoder = sown.get(measure.collection, {}).get('encoder', {})
    of_texts = measure(of_encoder, padding_mask_BL)
    values.append(jnp.asarray(of_texts, jnp.float32))
    shape, rows = values[-1].shape, padding_mask_BL.shape[:1]
    if shape != rows:
      raise UserError(
        f'config.train.measures: {type(measure).__name__} returns shape '
        f'{shape} for {rows[0]} texts, and must return (B,), a number for each'
      )
  return values
