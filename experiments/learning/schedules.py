"""Schedules: factors of the learning rate, which may be traced."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError, require


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The contract of an entry of SCHEDULES; fields are its options."""

  def __call__(self, progress, step, warmup) -> jax.Array:
    """Factor of the learning rate after warm-up, float32; may be traced.

    Args:
      progress: 0 at the end of warm-up, 1 after the last update.
      step: updates applied before this one.
      warmup: updates of warm-up.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
  """1."""

  def __call__(self, progress, step, warmup):
    del step, warmup
    return jnp.ones_like(progress)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
  """A line down to 0 after the last update."""

  def __call__(self, progress, step, warmup):
    del step, warmup
    return 1 - progress


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
  """Half a cosine down to 0 after the last one (Loshchilov, Hutter 2017)."""

  def __call__(self, progress, step, warmup):
    del step, warmup
    return (1 + jnp.cos(jnp.pi * progress)) / 2


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Schedule):
  """sqrt(warmup / step) (Vaswani et al. 2017, equation 3, scaled to peak 1)."""

  def __call__(self, progress, step, warmup):
    del progress
    warmup = jnp.maximum(warmup, 1)
    return jnp.sqrt(warmup / jnp.maximum(step, warmup))


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
  """1, and then a line down to 0 after the last update (Hu et al. 2024, WSD).

  Attributes:
    decay: share of the updates after warm-up in which it falls.
  """

  decay: float = 0.2

  def __post_init__(self):
    require(0 < self.decay <= 1, 'decay', self.decay, 'above 0, and at most 1')

  def __call__(self, progress, step, warmup):
    del step, warmup
    return jnp.minimum((1 - progress) / self.decay, 1)


SCHEDULES: dict[str, type[Schedule]] = {
  'constant': Constant,
  'linear': Linear,
  'cosine': Cosine,
  'inverse_sqrt': InverseSqrt,
  'wsd': WarmupStableDecay,
}


def factor(shape: Schedule, step, warmup_steps, steps: int) -> jax.Array:
  """Factor of the learning rate for one update, float32.

  A line from 0 to 1 over `warmup_steps`, then the schedule.

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
  share = shape(jnp.clip(progress, 0, 1), step, warmup)
  if jnp.ndim(share):
    raise ValueError(f'it returns shape {jnp.shape(share)}, and must a number')
  return rise * share


def check_goes_on(optimizer, taken: int, steps: int, more: int) -> None:
  """UserError unless more steps leave the learning rates of those taken.

  Args:
    optimizer: its settings.
    taken: updates of the run so far.
    steps: updates of the run as it was.
    more: updates that it is to have.
  """
  shape, warmup = optimizer.schedule.make(), optimizer.warmup_steps
  # One of one's own may be of a scalar.
  of_steps = jax.vmap(factor, (None, 0, None, None))
  was, would_be = (
    of_steps(shape, jnp.arange(taken), warmup, total) for total in (steps, more)
  )
  differs = np.flatnonzero(np.asarray(was != would_be))
  if len(differs):
    first = differs[0]
    raise UserError(
      f'config.train.steps = {more}, and the run has taken {taken} steps of '
      f'{steps}: config.optimizer.schedule = {optimizer.schedule} gave step '
      f'{first + 1} a learning rate of {float(was[first]):.9g} of the highest, '
      f'and would give it {float(would_be[first]):.9g}; constant, inverse_sqrt '
      'and wsd before its decay go on; or begin another --workdir with '
      'config.train.init_from'
    )


def warmup_updates(warmup: float, steps: int) -> float:
  """Updates that the learning rate rises over: an int, if it can be.

  Args:
    warmup: itself, or below 1 a share of the run, rounded.
    steps: updates of the whole run.
  """
  if 0 < warmup < 1:
    return round(warmup * steps)
  return int(warmup) if float(warmup).is_integer() else warmup
