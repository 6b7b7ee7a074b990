"""Exponential averages of parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def update(average, params, step, decay):
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
