"""The gradient of a task's loss on a batch, from all its microbatches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from experiments.data.batches import Batch
from experiments.data.vocabularies import UNK
from experiments.learning.classify import CLASSIFY
from experiments.learning.hparams import HParams
from experiments.learning.measures import Measure, collections_of, measured
from experiments.learning.tasks import (
  Targets,
  Task,
  padding_mask,
  targets_of,
)
from selfattn.classifier import embed
from selfattn.dropout import Dropout

# fold_in(key of the seed, purpose): 0 is initialisation, see build.
_DROPOUT = 1


def dropout_of(hparams: HParams, step, first_row) -> Dropout:
  """The dropout of a step; `at(site)` tells its uses from each other.

  Sites: 0 words, 1 and 2 inside of the model, 3 position sampling, 4 targets.

  Args:
    step: steps applied before this one.
    first_row: index in the batch of the first row of its part.
  """
  key = jax.random.fold_in(jax.random.fold_in(hparams.key, _DROPOUT), step)
  return Dropout.create(key, 0.0, first_row)


def _site(dropout: Dropout, index: int, rate) -> Dropout | None:
  return None if rate is None else dropout.at(index).replace(rate=rate)


def weighted_sums(
  params,
  embedded,
  targets: Targets,
  first_row,
  *,
  classifier,
  hparams: HParams,
  step,
  task: Task,
  measures: Mapping[str, Measure],
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """What is minimised for a part of a batch, and the sums that are logged.

  It is the sum of the loss and of the measures, times their weights. Logged are
  the summed loss of the task, the number of correct predictions and the sum of
  each measure over predictions.

  Args:
    params: of the classifier; those of its embedding table are not read.
    embedded: token embeddings, (batch, length, width).
    targets: of the task for the part.
    first_row: index in the batch of the first row of the part.
    step: steps applied before this one.
    measures: that are added to the loss of the task, by name.
  """
  dropout = dropout_of(hparams, step, first_row)
  mask_BL, trained = padding_mask(targets), tuple(measures.values())
  logits, sown = classifier.apply(
    {'params': params},
    targets.tokens,
    mask_BL,
    _site(dropout, 1, hparams.dropout_rate),
    _site(dropout, 2, hparams.attention_dropout_rate),
    dropout.at(3),
    is_right_padded=True,
    embedded_BLD=embedded,
    label_index_BN=targets.label_index,
    mutable=collections_of(trained),
  )
  losses, correct = task.losses(logits, targets, hparams.label_smoothing)
  loss = (losses * targets.weights).sum()
  weight_B = targets.weights.reshape(len(targets.tokens), -1).sum(axis=1)
  of_measures = [
    (value_B * weight_B).sum()
    for value_B in measured(trained, sown, mask_BL, classifier.has_cls)
  ]
  total = loss
  for name, value in zip(measures, of_measures, strict=True):
    total += hparams.measure_weights[name] * value
  return total, (loss, (correct * targets.weights).sum(), *of_measures)


_differentiate = jax.grad(weighted_sums, (0, 1), has_aux=True)


def gradients(
  params,
  batch: Batch,
  hparams: HParams,
  step,
  first_row=0,
  *,
  classifier,
  num_microbatches: Callable[[tuple[int, int]], int],
  task: Task = CLASSIFY,
  measures: Mapping[str, Measure] | None = None,
):
  """(sums, gradient) of weighted_sums of the whole batch.

  Sums are loss, correct, the number of predictions, and those of measures.
  Tokens are embedded before the batch is split, so that the gradient of the
  embedding table is made once rather than for each microbatch; where the head
  is tied to the table, both are needed.

  Args:
    step: steps applied before this one.
    first_row: index in the batch of the first row of this device.
    num_microbatches: from the shape of the tokens to the number of parts that
      are computed one by one, a divisor of the rows.
    measures: that are added to the loss of the task, by name; None: none.
  """
  dropout = dropout_of(hparams, step, first_row)
  targets = targets_of(task, batch, classifier.vocab_size, dropout.at(4))
  word_dropout = _site(dropout, 0, hparams.word_dropout_rate)
  if word_dropout is not None:
    keep = word_dropout.keep(targets.tokens.shape)
    if classifier.separator is not None:
      # It says where the second text of a pair begins.
      keep |= targets.tokens == classifier.separator
    targets = targets._replace(tokens=jnp.where(keep, targets.tokens, UNK))
  table = {'embed': params['embed']}
  others = params
  if not task.tied:
    others = {name: tree for name, tree in params.items() if name not in table}
  embedded, pull_back = jax.vjp(
    lambda table: embed(table, jnp.asarray(targets.tokens)), table
  )
  of_part = functools.partial(
    _differentiate,
    others,
    classifier=classifier,
    hparams=hparams,
    step=step,
    task=task,
    measures=measures or {},
  )
  parts = num_microbatches(batch.tokens.shape)
  if parts == 1:
    (grads, of_embedded), sums = of_part(embedded, targets, first_row)
  else:
    (grads, of_embedded), sums = _accumulated(
      of_part, others, parts, embedded, targets, first_row
    )
  of_table = pull_back(of_embedded)[0]
  if task.tied:
    of_table = jax.tree.map(jnp.add, of_table, {'embed': grads['embed']})
  loss, correct, *of_measures = sums
  sums = loss, correct, targets.weights.sum(), *of_measures
  return sums, grads | of_table


def _accumulated(
  of_part: Callable, params, count: int, embedded, targets: Targets, first_row
):
  """of_part(embedded, targets, first_row) in `count` parts, one by one.

  Sums and the gradient of `params` are added up; the gradient of the embeddings
  has the rows of all parts.
  """
  size = embedded.shape[0] // count
  parts = jax.tree.map(
    lambda x: x.reshape(count, size, *x.shape[1:]), (embedded, targets)
  )
  first_rows = first_row + size * jnp.arange(count)

  def add(total, part):
    (grads, of_embedded), sums = of_part(*part)
    return jax.tree.map(jnp.add, total, (sums, grads)), of_embedded

  def first():
    return of_part(*jax.tree.map(lambda x: x[0], parts), first_row)

  _, sums = jax.eval_shape(first)
  zeros = jax.tree.map(jnp.zeros_like, (sums, params))
  (sums, grads), of_embedded = jax.lax.scan(add, zeros, (*parts, first_rows))
  return (grads, of_embedded.reshape(embedded.shape)), sums
