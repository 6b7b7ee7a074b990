"""Exponential averages of parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def update(average, params, step, decay):
  """The average after `step` updates, with `params` in it; None stays None.

  It is that which starts at zero, over 1 - decay^step: the correction of Kingma
  and Ba 2015, section 3, kept corrected, so that whoever reads it need not know
  the decay. After the first update it is the parameters themselves.

  Args:
    average: tree of float32, before this update; at step 1 it is not read.
    step: at least 1; may be traced.
    decay: greater than 0 and less than 1; may be traced.
  """
  if average is None:
    return None
  log = jnp.log(jnp.asarray(decay, jnp.float32))
  # (1 - decay) / (1 - decay^step), exact for a decay near 1.
  weight = jnp.expm1(log) / jnp.expm1(step * log)
  return jax.tree.map(
    lambda a, p: (1 - weight) * a + weight * p, average, params
  )
