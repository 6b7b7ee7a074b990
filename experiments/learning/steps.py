"""One update and one evaluation, as pure functions that nobody has jitted yet.

`train_step(state, batch, hparams)`: everything that only changes numbers is in
`hparams`, so one compiled program serves every learning rate, decay, warm-up,
rate of dropout and seed, and `vmap` over `hparams` and `state` trains many
models at once on the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from experiments.data.batches import Batch
from experiments.data.vocabularies import UNK
from experiments.learning import averages, flops
from experiments.learning.hparams import HParams
from experiments.learning.tasks import (
  Classify,
  Targets,
  Task,
  padding_mask,
)
from selfattn.classifier import embed
from selfattn.dropout import Dropout

# fold_in(key of the seed, purpose): 0 is initialisation, see build.
_DROPOUT = 1
# The key of what evaluation draws, the same for all runs.
_EVALUATION = 0
# What a model is trained to do if nobody says.
CLASSIFY = Classify()


@chex.dataclass(frozen=True, mappable_dataclass=False)
class State:
  """What a checkpoint holds.

  Attributes:
    step: int32, updates applied.
    params: tree of float32.
    optimizer: optax state.
    sums: float32 (5,), what the metrics of the log are means of: loss, right
      answers, norms of the gradient and steps, since its last line.
    average: of params over the steps, a tree like them; None: none is kept.
  """

  step: chex.Array
  params: chex.ArrayTree
  optimizer: chex.ArrayTree
  sums: chex.Array
  average: chex.ArrayTree | None = None

  @property
  def eval_params(self) -> chex.ArrayTree:
    """The parameters to evaluate and to predict with."""
    return self.params if self.average is None else self.average


def init_sums() -> jax.Array:
  """State.sums before the first step."""
  return jnp.zeros(5)


def weighted_sums(
  params,
  embedded,
  classifier,
  targets: Targets,
  hparams: HParams,
  step,
  first_row,
  task: Task,
) -> tuple[jax.Array, jax.Array]:
  """Summed loss and number of right answers of a training batch.

  Args:
    embedded: the vectors of its tokens, (batch, length, width).
    targets: of the task for the batch.
    step: updates applied, which with the key decides what is dropped.
    first_row: row of the whole batch that this part of it begins with.
  """
  dropout = _dropout(hparams, step, first_row)
  logits = classifier.apply(
    {'params': params},
    targets.tokens,
    padding_mask(targets),
    _site(dropout, 1, hparams.dropout_rate),
    _site(dropout, 2, hparams.attention_dropout_rate),
    dropout.at(3),
    embedded_BLD=embedded,
    label_index_BN=targets.label_index,
  )
  losses, correct = task.losses(logits, targets, hparams.label_smoothing)
  return (losses * targets.weights).sum(), (correct * targets.weights).sum()


def _dropout(hparams: HParams, step, first_row) -> Dropout:
  key = jax.random.fold_in(jax.random.fold_in(hparams.key, _DROPOUT), step)
  return Dropout.create(key, 0.0, first_row)


def _site(dropout: Dropout, index: int, rate) -> Dropout | None:
  return None if rate is None else dropout.at(index).replace(rate=rate)


_differentiate = jax.value_and_grad(weighted_sums, (0, 1), has_aux=True)


def gradients(
  params,
  classifier,
  batch: Batch,
  hparams: HParams,
  step,
  num_microbatches: int,
  first_row=0,
  task: Task = CLASSIFY,
):
  """((loss, correct, count), gradient) of weighted_sums, in parts one by one.

  The count is that of all answers. Tokens are looked up before the batch is
  cut, so that no part has to go through the whole table of embeddings; only of
  a task whose head reads the table, each does.
  """
  dropout = _dropout(hparams, step, first_row)
  targets = task.targets(batch, classifier.vocab_size, dropout.at(4))
  count = targets.weights.sum()
  word_dropout = _site(dropout, 0, hparams.word_dropout_rate)
  if word_dropout is not None:
    keep = word_dropout.keep(targets.tokens.shape)
    targets = targets._replace(tokens=jnp.where(keep, targets.tokens, UNK))
  table = {'embed': params['embed']}
  others = params
  if not task.is_tied:
    others = {name: tree for name, tree in params.items() if name not in table}
  embedded, pull_back = jax.vjp(
    lambda table: embed(table, targets.tokens), table
  )

  size = batch.tokens.shape[0] // num_microbatches

  def part_sums(index, embedded, part):
    return _differentiate(
      others,
      embedded,
      classifier,
      part,
      hparams,
      step,
      first_row + index * size,
      task,
    )

  def result(sums, grads, of_embedded):
    of_table = pull_back(of_embedded)[0]
    if task.is_tied:
      of_table = jax.tree.map(jnp.add, of_table, {'embed': grads['embed']})
    return (*sums, count), grads | of_table

  if num_microbatches == 1:
    sums, (grads, of_embedded) = part_sums(0, embedded, targets)
    return result(sums, grads, of_embedded)

  def add(total, part):
    sums, (grads, of_embedded) = part_sums(*part)
    return jax.tree.map(jnp.add, total, (sums, grads)), of_embedded

  parts = jax.tree.map(
    lambda x: x.reshape(num_microbatches, size, *x.shape[1:]),
    (embedded, targets),
  )
  zeros = jax.tree.map(jnp.zeros_like, ((0.0, 0.0), others))
  (sums, grads), of_embedded = jax.lax.scan(
    add, zeros, (jnp.arange(num_microbatches), *parts)
  )
  return result(sums, grads, of_embedded.reshape(embedded.shape))


def make_train_step(
  classifier,
  make_optimizer: Callable,
  *,
  clip_norm: float,
  num_microbatches: Callable,
  mesh: Mesh | None = None,
  task: Task = CLASSIFY,
  start: int = 0,
  trained: Collection[str] | None = None,
) -> Callable:
  """Returns train_step(state, batch, hparams) -> (state, metrics).

  Args:
    classifier: a TextClassifier.
    make_optimizer: from (hparams, step) to an optax transformation, where the
      step is counted from `start`.
    clip_norm: largest norm of the gradient; 0: any.
    num_microbatches: from the shape of the tokens to their number, a divisor of
      the rows; the update is that of the whole batch.
    mesh: spreads the rows of a batch over its axis `data`; each device gets
      the whole parameters and takes num_microbatches of its own rows.
    task: what is trained.
    start: updates before those of the task.
    trained: parts of the parameters that change, on their uppermost level;
      None: all. The others do not even decay.

  The metrics, each a float32 scalar, are means since the last line of the log:
  those of the task over all answers, each before the update with its batch, and
  the norm of the gradient before clipping over the steps.
  """

  def of_batch(params, batch, hparams, step, first_row=0):
    parts = num_microbatches(batch.tokens.shape)
    (loss, correct, count), grads = gradients(
      params, classifier, batch, hparams, step, parts, first_row, task
    )
    return loss, correct, count, grads

  def of_rows(params, batch, hparams, step):
    first_row = jax.lax.axis_index('data') * batch.tokens.shape[0]
    found = of_batch(params, batch, hparams, step, first_row)
    # A device that has all rows asks nobody: the compiler would wait all the
    # same, for itself.
    return found if mesh.shape['data'] == 1 else jax.lax.psum(found, 'data')

  def train_step(state: State, batch: Batch, hparams: HParams):
    total = of_batch if mesh is None else _by_rows(of_rows, mesh, _SAME)
    loss, correct, count, grads = total(
      state.params, batch, hparams, state.step
    )
    # Of the sums, so that they are read once more and not written anew.
    norm = optax.tree.norm(grads) / jnp.maximum(count, 1)
    scale = 1 / jnp.maximum(count, 1)
    if clip_norm:
      scale *= clip_norm / jnp.maximum(norm, clip_norm)
    grads = jax.tree.map(lambda g: g * scale, grads)
    step = state.step - start if start else state.step
    transform = make_optimizer(hparams, step)
    updates, optimizer = transform.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    if trained is not None:
      kept = {k: v for k, v in state.params.items() if k not in trained}
      params = params | kept
    sums, metrics = _logged(task, state, hparams, (loss, correct, count, norm))
    average = averages.update(
      state.average, params, step + 1, hparams.ema_decay
    )
    state = State(
      step=state.step + 1,
      params=params,
      optimizer=optimizer,
      sums=sums,
      average=average,
    )
    return state, metrics

  return train_step


def _logged(task: Task, state: State, hparams: HParams, found):
  """Sums since the last line of the log, and the metrics that follow."""
  goes_on = state.step % hparams.log_every != 0
  sums = jnp.where(goes_on, state.sums, 0.0)
  sums += jnp.stack([*found, jnp.ones(())])
  losses, hits, answers, norms, num_steps = sums
  answers = jnp.maximum(answers, 1)
  metrics = task.told(losses / answers, hits / answers)
  return sums, metrics | {'gradient_norm': norms / num_steps}


def make_eval_step(
  classifier,
  mesh: Mesh | None = None,
  task: Task = CLASSIFY,
  together: Callable = lambda logits_of: logits_of,
) -> Callable:
  """Returns eval_step(params, batch) -> answers of the task, a row an example.

  Of a classifier, (losses, logits). Rows of padding are computed too; whoever
  sums must leave them out. What is drawn at random follows the text alone.

  Args:
    classifier: a TextClassifier.
    mesh, task: as of make_train_step.
    together: from a function of (params, targets) to the same of an ensemble.
  """

  def logits_of(params, targets: Targets):
    return classifier.apply(
      {'params': params},
      targets.tokens,
      padding_mask(targets),
      label_index_BN=targets.label_index,
    )

  def eval_step(params, batch: Batch):
    targets = eval_targets(task, classifier, batch)
    return task.answers(together(logits_of)(params, targets), targets)

  return eval_step if mesh is None else _by_rows(eval_step, mesh, _ROWS)


def eval_targets(task: Task, classifier, batch: Batch) -> Targets:
  """Targets that follow the text alone, whatever the batch."""
  key = jax.random.key(_EVALUATION)
  bits = Dropout.of_texts(key, batch.tokens, padding_mask(batch))
  return task.targets(batch, classifier.vocab_size, bits)


_SAME, _ROWS = PartitionSpec(), PartitionSpec('data')


def _by_rows(function: Callable, mesh: Mesh, out_spec) -> Callable:
  """`function(params, batch, ...)` with the rows spread over `mesh`.

  Devices talk where the function says so and nowhere else: with no part of it
  left to the compiler, kernels and loops over parts stay on their device.
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


def model_flops(
  classifier, params, shape: tuple[int, int], task: Task = CLASSIFY
) -> int:
  """Operations that training on a batch of tokens (rows, length) needs.

  Of its matrix products: one pass forward and twice that backward, whatever a
  program computes again. A function of shapes, so `params` may be abstract.
  """
  if hasattr(classifier.encoder, 'backend'):
    # The same products, spelt out: nobody can look into a kernel.
    encoder = classifier.encoder.clone(backend='reference')
    classifier = classifier.clone(encoder=encoder)
  tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
  row = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
  batch = Batch(tokens, row, row, row)
  return 3 * flops.count(make_eval_step(classifier, task=task), params, batch)
