"""Builds what a run computes from its settings: model, optimizer, State."""

from __future__ import annotations

import traceback
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.command import modules, schema
from experiments.command.errors import UserError, in_file
from experiments.learning import parameter_groups, schedules, steps
from experiments.learning.hparams import HParams
from experiments.learning.steps import State
from experiments.learning.tasks import Task
from experiments.settings import parts
from experiments.settings.settings import Settings
from selfattn.classifier import TextClassifier
from selfattn.heads import Head, TokenHead, VocabularyHead
from selfattn.kernels import platform_of


def model(
  settings: Settings,
  vocab_size: int,
  num_classes: int,
  platform: str | None = None,
  task: Task | None = None,
) -> TextClassifier:
  """The classifier, without parameters, with the head of the task.

  Args:
    platform: of the devices it is for, see selfattn.kernels.platform_of; None:
      of this machine.
    task: that of the settings, with what it knows of the data; None: without,
      for all but its logits.

  Raises:
    UserError: this machine does not support the backend of attention, or a
      class of one's own fails, or returns an array of a wrong shape.
  """
  chosen = settings.model
  made: Task = settings.task.make() if task is None else task
  platform = platform or platform_of(jax.devices()[0])
  separator = vocab_size - 1
  if made.vocabulary is not None:
    separator = made.vocabulary.separator
  if chosen.vocab_size:
    if chosen.vocab_size < vocab_size:
      raise UserError(
        f'config.model.vocab_size = {chosen.vocab_size} must be 0, or at least '
        f'{vocab_size}, the ids of config.data.vocabulary'
      )
    vocab_size = chosen.vocab_size
  encoder = parts.encoder(chosen, vocab_size, platform)
  parts.check_encoder(chosen, encoder, platform)
  text_head, token_head = chosen.head.make(), made.head(vocab_size, num_classes)
  if isinstance(token_head, Head):
    text_head, token_head = token_head, None
  name = settings.task.name
  if chosen.pretrained and isinstance(token_head, TokenHead):
    # As selfattn.pretrained calls it.
    name = 'words'
  heads = token_head and {name: token_head}
  if chosen.token_head and made.tied and isinstance(token_head, VocabularyHead):
    (call,) = chosen.token_head
    heads = {call.name: call.make(parent=None)}
    with call.checked():
      heads[call.name].check()
  classifier = TextClassifier(
    vocab_size=vocab_size,
    num_classes=num_classes,
    embed_dim=chosen.embed_dim,
    encoder=encoder,
    pool=chosen.pool.make(),
    head=text_head,
    embed_init_std=chosen.embed_init_std,
    sampling=chosen.position_sampling.make(),
    dtype=jnp.dtype(chosen.dtype),
    token_head=heads,
    further=made.further(),
    has_mask_token=made.needs_mask_token,
    separator=separator if settings.data.pair_length else None,
    num_token_types=chosen.num_token_types,
    restarts=chosen.pair_positions == 'restart',
  )
  _check_own(settings, classifier)
  return classifier


def _check_own(settings: Settings, classifier: TextClassifier) -> None:
  """UserError for a class of one's own that fails while a model is traced."""
  own = [call for call in schema.calls_of(settings.model) if ':' in call.name]
  if not own:
    return
  tokens = jax.ShapeDtypeStruct((2, settings.data.max_length), jnp.int32)
  key = jax.eval_shape(lambda: jax.random.key(0))
  try:
    jax.eval_shape(
      lambda k, ids: classifier.init(k, ids, ids == 0, is_right_padded=True),
      key,
      tokens,
    )
  except Exception as error:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    running = [type(frame.f_locals.get('self')) for frame in frames]
    classes = [call.entry for call in own]
    # The last class of one's own that runs, or one whose hook is refused.
    last = [cls for cls in running if cls in classes][-1:]
    for call in own:
      is_refused = str(error).startswith(f'{call.entry.__name__}.')
      if is_refused or last == [call.entry]:
        path, _ = modules.source(call.name)
        with in_file(path, f'config.{call.key} = {call}: {path}'):
          raise
    raise


def optimizer(
  settings: Settings, hparams: HParams, step
) -> optax.GradientTransformation:
  """The optax transformation of step `step` + 1; hparams may be traced."""
  chosen = settings.optimizer
  groups, methods = chosen.groups_by_name(), chosen.methods_by_group()
  decay = optax.add_decayed_weights(
    hparams.weight_decay,
    mask=lambda params: parameter_groups.weight_decay_mask(
      params, chosen.weight_decay_names
    ),
  )
  chains = {str(call): call.make().chain(decay) for call in methods.values()}
  transforms = chains[str(chosen.method)]
  if len(chains) > 1:
    transforms = [
      optax.partition(
        {name: optax.chain(*chain) for name, chain in chains.items()},
        lambda tree: parameter_groups.by_group(
          lambda group, _: str(methods[group]), tree, groups
        ),
      )
    ]
  with chosen.schedule.checked():
    rate = hparams.learning_rate * schedules.factor(
      chosen.schedule.make(), step, hparams.warmup_steps, settings.train.steps
    )
  rates = {'': rate} | {
    group: rate * scale for group, scale in hparams.learning_rate_scales.items()
  }
  scale = optax.stateless(
    lambda updates, _: parameter_groups.by_group(
      lambda group, update: -rates[group] * update, updates, groups
    )
  )
  transform = optax.chain(*transforms, scale)
  if not settings.model.embeddings.make().freeze:
    return transform
  return optax.partition(
    {'trained': transform, 'frozen': optax.set_to_zero()},
    lambda tree: {
      name: 'frozen' if name == steps.TOKEN_TABLE else 'trained'
      for name in tree
    },
  )


def init_state(settings: Settings, classifier, hparams: HParams) -> State:
  """Initial parameters and optimizer state; a pure function of the seed."""
  key = jax.random.fold_in(hparams.key, 0)
  tokens = jnp.zeros((1, 1), jnp.int32)
  params = classifier.init(key, tokens, tokens == 0)['params']
  return State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    optimizer=optimizer(settings, hparams, 0).init(params),
    sums=jnp.zeros(len(steps.SUMS) + len(hparams.measure_weights)),
    average=params if settings.train.ema_decay else None,
  )


def count_parameters(params: Any) -> int:
  """Number of scalars in a tree."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))


# Bytes of the widest activation of a microbatch at which a CPU is fastest: its
# caches hold the other activations, too. Measured.
_PART_BYTES = 2**21


def num_microbatches(
  settings: Settings, shape: tuple[int, int], platform: str
) -> int:
  """Number of microbatches of equal size for tokens (rows, length) of a device.

  At least settings.train.grad_accum_steps. For 0, microbatches fit into the
  caches of a CPU, and there are fewer than twice as many as that needs; on an
  accelerator, for a prime number of rows, or where the task compares texts, the
  whole batch is one.
  """
  if settings.task.entry.compares_texts:
    return 1
  rows, length = shape
  divisors = [n for n in range(1, rows + 1) if rows % n == 0]
  if least := settings.train.grad_accum_steps:
    return next((n for n in divisors if n >= least), rows)
  if platform != 'cpu':
    return 1
  widest = 4 * rows * length * settings.model.mlp_dim
  needed = min(max(widest / _PART_BYTES, 1), rows)
  enough = next(n for n in divisors if n >= needed)
  if enough < 2 * needed:
    return enough
  return max(n for n in divisors if n <= needed)
