"""Several models in the place of one: an ensemble.

Each member starts from its own parameters, drops its own units and reads the
examples in its own order; what the ensemble predicts is the mean of their
probabilities (Lakshminarayanan et al. 2017, section 2.4). The functions here
take one for a single model and return one for all, whose parameters and
optimizer state have a leading axis of members; with one member there is no such
axis, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.learning.hparams import HParams
from experiments.learning.steps import State

# All members have applied as many updates.
_AXES = State(step=None, params=0, optimizer=0, sums=0, average=0)


def keys(hparams: HParams, count: int) -> jax.Array:
  """A key for each member, (count,)."""
  return jax.vmap(jax.random.fold_in, (None, 0))(hparams.key, jnp.arange(count))


def init(one: Callable, count: int) -> Callable:
  """From hparams to a fresh State, as `one`."""

  def init_all(hparams: HParams) -> State:
    def of_member(key):
      return one(hparams.replace(key=key))

    return jax.vmap(of_member, out_axes=_AXES)(keys(hparams, count))

  return one if count == 1 else init_all


def train_step(one: Callable, count: int) -> Callable:
  """As steps.make_train_step, for a batch with rows for all in turn.

  Its first `count` rows are the first one of each member. The metrics are means
  over members.
  """

  def step_all(state: State, batch, hparams: HParams):
    def of_member(state, batch, key):
      return one(state, batch, hparams.replace(key=key))

    batch = jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]), batch)
    step = jax.vmap(of_member, (_AXES, 1, 0), (_AXES, 0))
    state, metrics = step(state, batch, keys(hparams, count))
    return state, jax.tree.map(lambda x: x.mean(axis=0), metrics)

  return one if count == 1 else step_all


def restart(one: Callable, count: int) -> Callable:
  """From (state, hparams) to a state, as `one`."""
  return one if count == 1 else jax.vmap(one, (_AXES, None), _AXES)


def logits(one: Callable, count: int) -> Callable:
  """From (params, targets) to logits, as `one`.

  Their exp are the mean probabilities.
  """

  def logits_of_all(params, targets):
    logits_EBC = jax.vmap(one, (0, None))(params, targets)
    log_probs = jax.nn.log_softmax(logits_EBC)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(count)

  return one if count == 1 else logits_of_all


def pick(params, index: int, count: int):
  """The parameters of one member, as a model alone has them."""
  return params if count == 1 else jax.tree.map(lambda x: x[index], params)
