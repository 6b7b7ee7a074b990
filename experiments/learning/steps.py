"""One update and one evaluation, as pure functions that nobody has jitted yet.

`train_step(state, batch, hparams)`: everything that only changes numbers is in
`hparams`, so one compiled program serves every learning rate, decay, warm-up,
rate of dropout and seed, and `vmap` over `hparams` and `state` trains many
models at once on the same batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from experiments.data.batches import Batch
from experiments.data.vocabularies import UNK
from experiments.learning import flops
from selfattn.classifier import embed
from selfattn.dropout import Dropout

# fold_in(key of the seed, purpose): 0 is initialisation, see build.
_DROPOUT = 1


@chex.dataclass(frozen=True, mappable_dataclass=False)
class State:
  """What a checkpoint holds.

  Attributes:
    step: int32, updates applied.
    params: tree of float32.
    optimizer: optax state.
    sums: float32 (5,), what the metrics of the log are means of: loss, right
      answers, examples, norms of the gradient and steps, since its last line.
  """

  step: chex.Array
  params: chex.ArrayTree
  optimizer: chex.ArrayTree
  sums: chex.Array


def _of(key: str, make: Callable = np.float32, **more):
  return dataclasses.field(metadata={'key': key, 'make': make} | more)


def _rate(value: float) -> np.float32 | None:
  return np.float32(value) if value else None


@chex.dataclass(frozen=True, mappable_dataclass=False)
class HParams:
  """Numbers that do not change the program; each may be traced.

  This is the list of them: a field says which key of the config it has its
  value from, and what makes a NumPy scalar of it (a Python number would have a
  weak type, and another type is another program). One that is None is left out
  of the program, so `removable` ones are another program where they are 0.
  Those that are not `swept` are the same for all runs that train together.
  """

  key: chex.PRNGKey = _of('seed', jax.random.key)
  learning_rate: chex.Numeric = _of('optimizer.learning_rate')
  weight_decay: chex.Numeric = _of('optimizer.weight_decay')
  warmup_steps: chex.Numeric = _of('optimizer.warmup_steps')
  label_smoothing: chex.Numeric = _of('optimizer.label_smoothing')
  dropout_rate: chex.Numeric | None = _of(
    'model.dropout_rate', _rate, removable=True
  )
  attention_dropout_rate: chex.Numeric | None = _of(
    'model.attention_dropout_rate', _rate, removable=True
  )
  word_dropout_rate: chex.Numeric | None = _of(
    'model.word_dropout_rate', _rate, removable=True
  )
  log_every: chex.Numeric = _of('train.log_every', np.int32, swept=False)

  @classmethod
  def of(cls, flat: Mapping[str, Any]) -> HParams:
    """From the settings of a run by dotted key."""
    fields = {field.name: field.metadata for field in dataclasses.fields(cls)}
    return cls(**{n: m['make'](flat[m['key']]) for n, m in fields.items()})

  @classmethod
  def program(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
    """What settings by dotted key say of the program, and of its loop."""
    found = dict(flat)
    for field in dataclasses.fields(cls):
      key = field.metadata['key']
      if field.metadata.get('removable'):
        found[key] = bool(flat[key])
      elif field.metadata.get('swept', True):
        del found[key]
    return found


def init_sums() -> jax.Array:
  """State.sums before the first step."""
  return jnp.zeros(5)


def cross_entropy(logits, labels, smoothing=0.0) -> jax.Array:
  """Loss of each example, float32 (batch,).

  Labels are smoothed towards uniform (Szegedy et al. 2016, section 7).
  """
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  picked = jnp.take_along_axis(log_probs, labels[:, None], axis=-1)[:, 0]
  return -(1 - smoothing) * picked - smoothing * log_probs.mean(axis=-1)


def is_token(batch: Batch) -> jax.Array:
  """Boolean (batch, length), False at padding."""
  return jnp.arange(batch.tokens.shape[1])[None] < batch.lengths[:, None]


def weighted_sums(
  params, embedded, classifier, batch: Batch, hparams: HParams, step, first_row
) -> tuple[jax.Array, jax.Array]:
  """Summed loss and number of right answers of a training batch.

  Args:
    embedded: the vectors of its tokens, (batch, length, width).
    step: updates applied, which with the key decides what is dropped.
    first_row: row of the whole batch that this part of it begins with.
  """
  dropout = _dropout(hparams, step, first_row)
  logits = classifier.apply(
    {'params': params},
    batch.tokens,
    is_token(batch),
    _site(dropout, 1, hparams.dropout_rate),
    _site(dropout, 2, hparams.attention_dropout_rate),
    dropout.at(3),
    embedded_BLD=embedded,
  )
  losses = cross_entropy(logits, batch.labels, hparams.label_smoothing)
  correct = logits.argmax(axis=-1) == batch.labels
  return (losses * batch.weights).sum(), (correct * batch.weights).sum()


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
  num_parts: int,
  first_row=0,
):
  """((loss, correct), gradient) of weighted_sums, in parts one by one.

  Tokens are looked up before the batch is cut, so that no part has to go
  through the whole table of embeddings.
  """
  dropout = _dropout(hparams, step, first_row)
  word_dropout = _site(dropout, 0, hparams.word_dropout_rate)
  if word_dropout is not None:
    keep = word_dropout.keep(batch.tokens.shape)
    batch = batch._replace(tokens=jnp.where(keep, batch.tokens, UNK))
  table = {'embed': params['embed']}
  others = {name: tree for name, tree in params.items() if name not in table}
  embedded, pull_back = jax.vjp(lambda table: embed(table, batch.tokens), table)

  size = batch.tokens.shape[0] // num_parts

  def part_sums(index, embedded, part):
    return _differentiate(
      others,
      embedded,
      classifier,
      part,
      hparams,
      step,
      first_row + index * size,
    )

  if num_parts == 1:
    sums, (grads, of_embedded) = part_sums(0, embedded, batch)
    return sums, grads | pull_back(of_embedded)[0]

  def add(total, part):
    sums, (grads, of_embedded) = part_sums(*part)
    return jax.tree.map(jnp.add, total, (sums, grads)), of_embedded

  parts = jax.tree.map(
    lambda x: x.reshape(num_parts, size, *x.shape[1:]), (embedded, batch)
  )
  zeros = jax.tree.map(jnp.zeros_like, ((0.0, 0.0), others))
  (sums, grads), of_embedded = jax.lax.scan(
    add, zeros, (jnp.arange(num_parts), *parts)
  )
  return sums, grads | pull_back(of_embedded.reshape(embedded.shape))[0]


def make_train_step(
  classifier,
  make_optimizer: Callable,
  *,
  clip_norm: float,
  num_parts: Callable,
  mesh: Mesh | None = None,
) -> Callable:
  """Returns train_step(state, batch, hparams) -> (state, metrics).

  Args:
    classifier: a TextClassifier.
    make_optimizer: from (hparams, step) to an optax transformation.
    clip_norm: largest norm of the gradient; 0: any.
    num_parts: from the shape of the tokens to the number of parts a batch is
      computed in, a divisor of its rows; the update is that of the whole.
    mesh: spreads the rows of a batch over its axis `data`; each device gets
      the whole parameters and takes num_parts of its own rows.

  The metrics, each a float32 scalar, are means since the last line of the log:
  loss and accuracy over the examples, each before the update with its batch,
  and the norm of the gradient before clipping over the steps.
  """

  def of_batch(params, batch, hparams, step, first_row=0):
    parts = num_parts(batch.tokens.shape)
    (loss, correct), grads = gradients(
      params, classifier, batch, hparams, step, parts, first_row
    )
    return loss, correct, batch.weights.sum(), grads

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
    count = jnp.maximum(count, 1)
    # Of the sums, so that they are read once more and not written anew.
    norm = optax.tree.norm(grads) / count
    scale = 1 / count
    if clip_norm:
      scale *= clip_norm / jnp.maximum(norm, clip_norm)
    grads = jax.tree.map(lambda g: g * scale, grads)
    transform = make_optimizer(hparams, state.step)
    updates, optimizer = transform.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    goes_on = state.step % hparams.log_every != 0
    sums = jnp.where(goes_on, state.sums, 0.0)
    sums += jnp.stack([loss, correct, count, norm, jnp.ones(())])
    losses, hits, examples, norms, num_steps = sums
    metrics = {
      'loss': losses / examples,
      'accuracy': hits / examples,
      'gradient_norm': norms / num_steps,
    }
    state = State(
      step=state.step + 1, params=params, optimizer=optimizer, sums=sums
    )
    return state, metrics

  return train_step


def make_eval_step(classifier, mesh: Mesh | None = None) -> Callable:
  """Returns eval_step(params, batch) -> (losses, logits), one row an example.

  Rows of padding are computed too; whoever sums must leave them out.

  Args:
    classifier: a TextClassifier.
    mesh: as of make_train_step.
  """

  def eval_step(params, batch: Batch):
    logits = classifier.apply({'params': params}, batch.tokens, is_token(batch))
    return cross_entropy(logits, batch.labels), logits

  return eval_step if mesh is None else _by_rows(eval_step, mesh, _ROWS)


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


def model_flops(classifier, params, shape: tuple[int, int]) -> int:
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
  return 3 * flops.count(make_eval_step(classifier), params, batch)
