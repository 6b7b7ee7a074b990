"""Optimizers and schedules whose numbers may be traced.

A learning rate, a weight decay or a warm-up that is a traced value does not
change the program: runs that differ only in these share one compilation.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from experiments.command.errors import UserError, nearest
from experiments.command.values import Choice


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """How gradients become updates."""

  method: Choice
  learning_rate: float
  schedule: str
  warmup_steps: float
  weight_decay: float
  decay: tuple
  clip_norm: float
  label_smoothing: float


@dataclasses.dataclass(frozen=True)
class Sgd:
  """Stochastic gradient descent; weight decay is added to the gradient.

  Attributes:
    momentum: 0 is none.
    nesterov: look one step ahead (Sutskever et al. 2013).
  """

  momentum: float = 0.9
  nesterov: bool = False

  def chain(self, decay):
    """The optax transformations before the learning rate."""
    return [decay, optax.trace(self.momentum, self.nesterov)]


@dataclasses.dataclass(frozen=True)
class Adam:
  """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8

  def chain(self, decay):
    """The optax transformations before the learning rate."""
    return [decay, optax.scale_by_adam(self.b1, self.b2, self.eps)]


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
  """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

  def chain(self, decay):
    """The optax transformations before the learning rate."""
    return super().chain(decay)[::-1]


OPTIMIZERS = {'sgd': Sgd, 'adam': Adam, 'adamw': AdamW}


def _constant(progress, step, warmup):
  del step, warmup
  return jnp.ones_like(progress)


def _linear(progress, step, warmup):
  del step, warmup
  return 1 - progress


def _cosine(progress, step, warmup):
  del step, warmup
  return (1 + jnp.cos(jnp.pi * progress)) / 2


def _inverse_sqrt(progress, step, warmup):
  del progress
  warmup = jnp.maximum(warmup, 1)
  return jnp.sqrt(warmup / jnp.maximum(step, warmup))


SCHEDULES = {
  'constant': _constant,
  'linear': _linear,
  'cosine': _cosine,
  'inverse_sqrt': _inverse_sqrt,
}


def schedule(name: str, step, warmup_steps, steps: int) -> jax.Array:
  """Factor of the learning rate for one update, float32.

  A line from 0 to 1 over `warmup_steps`, then the named shape: 'constant' 1,
  'linear' and 'cosine' down to 0 at `steps`, 'inverse_sqrt' as
  sqrt(warmup / step) (Vaswani et al. 2017, equation 3, scaled to peak at 1).

  Args:
    step: updates applied before this one; may be traced.
    warmup_steps: may be traced.
    steps: updates of the whole run.
  """
  step = jnp.asarray(step, jnp.float32)
  warmup = jnp.asarray(warmup_steps, jnp.float32)
  rise = jnp.minimum(1.0, step / jnp.maximum(warmup, 1))
  rise = jnp.where(warmup > 0, rise, 1.0)
  progress = (step - warmup) / jnp.maximum(steps - warmup, 1)
  return rise * SCHEDULES[name](jnp.clip(progress, 0, 1), step, warmup)


def warmup_updates(warmup: float, steps: int) -> float:
  """Updates that the learning rate rises over: an int, if it can be.

  Args:
    warmup: itself, or below 1 a share of the run (as `warmup_steps` of
      Hugging Face transformers 5).
    steps: updates of the whole run.
  """
  if 0 < warmup < 1:
    return round(warmup * steps)
  return int(warmup) if float(warmup).is_integer() else warmup


def check_decay(params, endings: tuple[str, ...]) -> None:
  """UserError for one of `endings` that no parameter has for a name.

  Args:
    params: tree of arrays, or of their shapes alone.
  """
  paths = jax.tree_util.tree_leaves_with_path(params)
  names = {path[-1].key for path, _ in paths}
  for ending in endings:
    if ending not in names:
      raise UserError(
        f'config.optimizer.decay has {ending!r}, and the parameters are '
        f'named {", ".join(sorted(names))}{nearest(str(ending), names)}'
      )


def decay_mask(params, endings: tuple[str, ...]):
  """True for each parameter whose own name is one of `endings`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key in endings, params
  )
