"""Schedules: factors of the learning rate, which may be traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
