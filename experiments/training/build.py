"""Constructs the model, the optimizer and the steps from settings."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from experiments.learning import (
  parameter_groups,
  schedules,
  steps,
  tasks,
)
from experiments.learning.hparams import HParams
from experiments.learning.steps import State
from experiments.learning.tasks import Task
from experiments.settings import parts
from experiments.settings.settings import Settings
from selfattn.classifier import TextClassifier
from selfattn.kernels import platform_of


def model(
  settings: Settings,
  vocab_size: int,
  num_classes: int,
  platform: str | None = None,
):
  """The classifier, without parameters, with the head of the settings' task.

  Args:
    platform: of the devices it is for, see selfattn.kernels.platform_of; None:
      of this machine.

  Raises:
    UserError: this machine does not support the backend of attention.
  """
  wanted = settings.model
  platform = platform or platform_of(jax.devices()[0])
  encoder = parts.encoder(wanted, vocab_size, platform)
  parts.check_encoder(wanted, encoder, platform)
  return TextClassifier(
    vocab_size=vocab_size,
    num_classes=num_classes,
    embed_dim=wanted.embed_dim,
    encoder=encoder,
    pool=wanted.pool.make(),
    head=wanted.head.make(),
    embed_init_std=wanted.embed_init_std,
    sampling=wanted.position_sampling.make(),
    dtype=jnp.dtype(wanted.dtype),
    token_head=_head(settings, vocab_size, num_classes),
    has_mask_token=tasks.make(settings.task).has_mask_token,
  )


def _head(settings: Settings, vocab_size: int, num_classes: int):
  head = tasks.make(settings.task).head(vocab_size, num_classes)
  return None if head is None else {settings.task.name: head}


def hparams(settings: Settings) -> HParams:
  """Hyperparameters that do not change the program."""
  return HParams.of(settings)


def optimizer(settings: Settings, hparams: HParams, step):
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
  rate = hparams.learning_rate * schedules.factor(
    chosen.schedule.make(), step, hparams.warmup_steps, settings.train.steps
  )
  rates = {
    group: rate * scale for group, scale in hparams.learning_rate_scales.items()
  } | {'': rate}
  scale = optax.stateless(
    lambda updates, _: parameter_groups.by_group(
      lambda group, update: -rates[group] * update, updates, groups
    )
  )
  return optax.chain(*transforms, scale)


def train_step(
  settings: Settings,
  classifier,
  task: Task,
  platform: str,
  mesh=None,
) -> Callable:
  """steps.make_train_step of these settings, without jit."""
  return steps.make_train_step(
    classifier,
    functools.partial(optimizer, settings),
    clip_norm=settings.optimizer.clip_norm,
    log_every=settings.train.log_every,
    num_microbatches=functools.partial(
      num_microbatches, settings, platform=platform
    ),
    mesh=mesh,
    task=task,
  )


# Bytes of the widest activation of a microbatch at which a CPU is fastest: its
# caches hold the other activations, too. Measured.
_PART_BYTES = 2**21


def num_microbatches(
  settings: Settings, shape: tuple[int, int], platform: str
) -> int:
  """Number of microbatches of equal size for tokens (rows, length) of a device.

  At least settings.train.grad_accum_steps. For 0, microbatches fit into the
  caches of a CPU, and there are fewer than twice as many as that needs; on an
  accelerator, or for a prime number of rows, the whole batch is one.
  """
  rows, length = shape
  divisors = [n for n in range(1, rows + 1) if rows % n == 0]
  if least := settings.train.grad_accum_steps:
    return next((n for n in divisors if n >= least), rows)
  if platform != 'cpu':
    return 1
  wide = 4 * settings.model.mlp_dim
  wanted = min(max(rows * length * wide / _PART_BYTES, 1), rows)
  enough = next(n for n in divisors if n >= wanted)
  if enough < 2 * wanted:
    return enough
  return max(n for n in divisors if n <= wanted)


def attention_choice(
  settings: Settings, classifier, shape: tuple[int, int], platform: str
):
  """Encoder.attention_choice in training, for tokens (rows, length)."""
  rows, length = shape
  rows //= num_microbatches(settings, shape, platform)
  vectors = rows, length + classifier.has_cls, settings.model.embed_dim
  drops = settings.model.attention_dropout_rate > 0
  return classifier.encoder.attention_choice(vectors, drops_weights=drops)


def init_state(settings: Settings, classifier, hparams: HParams) -> State:
  """Initial parameters and optimizer state; a pure function of the seed."""
  key = jax.random.fold_in(hparams.key, 0)
  tokens = jnp.zeros((1, 1), jnp.int32)
  params = classifier.init(key, tokens, tokens == 0)['params']
  return State(
    step=jnp.zeros((), jnp.int32),
    params=params,
    optimizer=optimizer(settings, hparams, 0).init(params),
    sums=steps.init_sums(),
    average=params if settings.train.ema_decay else None,
  )


def count_parameters(params) -> int:
  """Number of scalars in a tree."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
