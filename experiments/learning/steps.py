"""A training step and an evaluation step, as pure functions without jit.

`train_step(state, batch, hparams)`: hyperparameters that do not change the
program are in `hparams`, so one compiled program serves every learning rate,
weight decay, warm-up, dropout rate and seed, and `vmap` over `hparams` and
`state` trains many models at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, PartitionSpec

from experiments.command.calls import Call
from experiments.data.batches import Batch
from experiments.learning.classify import CLASSIFY
from experiments.learning.gradients import gradients
from experiments.learning.hparams import HParams
from experiments.learning.measures import Measure, collections_of, measured
from experiments.learning.tasks import (
  Targets,
  Task,
  padding_mask,
  targets_of,
)
from selfattn.dropout import Bits

# The name of the subtree of parameters with the token embeddings.
TOKEN_TABLE = 'embed'
# What State.sums adds up since the last line of the log.
SUMS = ('loss', 'correct', 'predictions', 'gradient norm', 'steps')
# The key of random numbers in evaluation, the same for all runs.
_EVALUATION = 0


class State(struct.PyTreeNode):
  """What a checkpoint holds.

  Attributes:
    step: int32, steps applied.
    params: tree of float32.
    optimizer: optax state.
    sums: float32, one for each of SUMS and of the measures with a weight, from
      which the metrics of the log are computed; 0 before the first step.
    average: moving average of params, a tree like them; None: there is none.
  """

  step: chex.Array
  params: optax.Params
  optimizer: optax.OptState
  sums: chex.Array
  average: optax.Params | None = None

  @property
  def eval_params(self) -> optax.Params:
    """The parameters to evaluate and to predict with."""
    return self.params if self.average is None else self.average


def make_train_step(
  classifier,
  make_optimizer: Callable,
  *,
  clip_norm: float,
  num_microbatches: Callable,
  log_every: int,
  mesh: Mesh | None = None,
  task: Task = CLASSIFY,
  measures: Mapping[str, Measure] | None = None,
  freezes_tokens: bool = False,
) -> Callable:
  """Returns train_step(state, batch, hparams) -> (state, metrics).

  The metrics, each a float32 scalar, are means since the last line of the log:
  those of the task over all predictions, each before the update with its batch,
  and the norm of the gradient before clipping over the steps.

  Args:
    classifier: a TextClassifier.
    make_optimizer: from (hparams, step) to an optax transformation.
    clip_norm: largest norm of the gradient; 0: any.
    num_microbatches: from the shape of the tokens to their number, a divisor of
      the rows; the update is that of the whole batch.
    log_every: steps between lines of the log.
    mesh: spreads the rows of a batch over its axis `data`; the parameters are
      replicated, and each device splits its own rows into microbatches.
    task: what is trained.
    measures: that are added to its loss, by name, times their weights.
    freezes_tokens: whether the token embeddings have no gradient.
  """
  measures = measures or {}
  summed_gradients = functools.partial(
    gradients,
    measures=measures,
    classifier=classifier,
    num_microbatches=num_microbatches,
    task=task,
  )
  if mesh is not None:
    summed_gradients = _summed_over(summed_gradients, mesh)

  def train_step(state: State, batch: Batch, hparams: HParams):
    (loss, correct, count, *of_measures), grads = summed_gradients(
      state.params, batch, hparams, state.step
    )
    if freezes_tokens:
      zeros = jax.tree.map(jnp.zeros_like, grads[TOKEN_TABLE])
      grads |= {TOKEN_TABLE: zeros}
    grads, norm = _clipped_mean(grads, _or_1(count), clip_norm)
    transform = make_optimizer(hparams, state.step)
    updates, optimizer = transform.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    is_logged = jnp.mod(state.step, log_every) == 0
    sums = jnp.where(is_logged, 0.0, state.sums)
    of_step = [loss, correct, count, norm, jnp.ones(()), *of_measures]
    sums += jnp.stack(of_step)
    step, average = state.step + 1, state.average
    if average is not None:
      average = averaged(average, params, step, hparams.ema_decay)
    state = State(step, params, optimizer, sums, average)
    return state, _metrics(task, measures, sums)

  return train_step


def _clipped_mean(sums, count, clip_norm: float):
  """(mean gradient, its norm before clipping) from sums over predictions."""
  # The norm of the sums, so that they are not written once more.
  norm = optax.tree.norm(sums) / count
  scale = 1 / count
  if clip_norm:
    scale *= clip_norm / jnp.maximum(norm, clip_norm)
  return jax.tree.map(lambda g: g * scale, sums), norm


def _or_1(count):
  """A sum of weights to divide by: 1 if there are none."""
  return jnp.where(count > 0, count, 1)


def averaged(average, params, step, decay):
  """The average after `step` steps, `params` included.

  It starts at zero and is divided by 1 - decay^step, the bias correction of
  Kingma and Ba 2015, section 3. The corrected average is stored, so that it can
  be used without the decay. After the first step it equals the parameters.

  Args:
    average: tree of float32, before this step; it has no effect at step 1.
    step: at least 1; may be traced.
    decay: greater than 0 and less than 1; may be traced.
  """
  log = jnp.log(jnp.asarray(decay, jnp.float32))
  # (1 - decay) / (1 - decay^step), exact for a decay near 1.
  weight = jnp.expm1(log) / jnp.expm1(step * log)
  return jax.tree.map(
    lambda a, p: (1 - weight) * a + weight * p, average, params
  )


def _summed_over(gradients_of: Callable, mesh: Mesh) -> Callable:
  """`gradients_of` the whole batch, whose rows are spread over a mesh."""

  def of_rows(params, batch, hparams, step):
    first_row = jax.lax.axis_index('data') * batch.tokens.shape[0]
    sums = gradients_of(params, batch, hparams, step, first_row)
    # Over one device, a psum would still be a synchronisation.
    return sums if mesh.shape['data'] == 1 else jax.lax.psum(sums, 'data')

  return _by_rows(of_rows, mesh, _SAME)


def _metrics(task: Task, measures, sums) -> dict[str, jax.Array]:
  """The metrics of training from State.sums."""
  loss, correct, count, norm, num_steps, *of_measures = sums
  count = _or_1(count)
  metrics = task.mean_metrics(loss / count, correct / count)
  means = (value / count for value in of_measures)
  metrics |= dict(zip(measures, means, strict=True))
  return metrics | {'gradient_norm': norm / num_steps}


def make_eval_step(
  classifier,
  mesh: Mesh | None = None,
  task: Task = CLASSIFY,
  measures: Iterable[Measure] = (),
) -> Callable:
  """Returns eval_step(params, batch) -> Task.outputs, a row per example.

  For `classify`, (losses, logits). After them comes an array for each measure.
  Rows of padding are computed too; callers must leave them out of sums. Random
  numbers depend on the text alone.

  Args:
    classifier: a TextClassifier.
    mesh: spreads the rows of a batch over its axis `data`; None: one device.
    task: what is evaluated.
    measures: of what the encoder sows; without any, it sows nothing.
  """
  measures = tuple(measures)

  def eval_step(params, batch: Batch):
    targets = eval_targets(task, classifier, batch)
    mask_BL = padding_mask(targets)
    logits, sown = classifier.apply(
      {'params': params},
      targets.tokens,
      mask_BL,
      is_right_padded=True,
      label_index_BN=targets.label_index,
      mutable=collections_of(measures),
    )
    of_texts = measured(measures, sown, mask_BL, classifier.has_cls)
    # Of an example with several texts, the mean.
    of_examples = (v.reshape(len(batch.weights), -1).mean(1) for v in of_texts)
    return (*task.outputs(logits, targets), *of_examples)

  return eval_step if mesh is None else _by_rows(eval_step, mesh, _ROWS)


def check_measures(classifier, calls: Sequence[Call]) -> None:
  """UserError for a measure that fails, before anything is computed."""
  measures = [call.make() for call in calls]
  # No other dimension is as many, so that a wrong shape is not taken for rows.
  tokens = jax.ShapeDtypeStruct((97, 2), jnp.int32)
  is_token = jax.ShapeDtypeStruct(tokens.shape, bool)

  def made(tokens, is_token):
    params = classifier.init(jax.random.key(0), tokens, is_token)['params']
    _, sown = classifier.apply(
      {'params': params}, tokens, is_token, mutable=collections_of(measures)
    )
    for call, measure in zip(calls, measures, strict=True):
      with call.checked():
        measured([measure], sown, is_token, classifier.has_cls)

  if measures:
    jax.eval_shape(made, tokens, is_token)


def eval_targets(task: Task, classifier, batch: Batch) -> Targets:
  """Targets that depend on the text alone, not on the batch it is in."""
  key = jax.random.key(_EVALUATION)
  bits = Bits.of_texts(key, batch.tokens, padding_mask(batch))
  return targets_of(task, batch, classifier.vocab_size, bits)


def eval_logits(task: Task, classifier, params, batch: Batch):
  """(logits of a batch without dropout, its targets)."""
  targets = eval_targets(task, classifier, batch)
  logits = classifier.apply(
    {'params': params},
    targets.tokens,
    padding_mask(targets),
    is_right_padded=True,
    label_index_BN=targets.label_index,
  )
  return logits, targets


_SAME, _ROWS = PartitionSpec(), PartitionSpec('data')


def _by_rows(function: Callable, mesh: Mesh, out_spec) -> Callable:
  """`function(params, batch, ...)` with the rows spread over `mesh`.

  By shard_map, devices communicate only where the function does: kernels and
  loops over microbatches stay on their device.
  """

  def spread(params, batch, *others):
    return jax.shard_map(
      function,
      mesh=mesh,
      in_specs=(_SAME, _ROWS, *[_SAME for _ in others]),
      out_specs=out_spec,
      check_vma=False,
    )(params, batch, *others)

  return spread
