"""Ensembles: several models that are trained at once.

Each member has its own initial parameters, dropout and order of examples; the
ensemble predicts the mean of their probabilities (Lakshminarayanan et al. 2017,
section 2.4). The functions here take a function of one model and return that of
all members, whose parameters and optimizer state have a leading axis; with one
member there is no such axis, and the function is returned as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.learning.hparams import HParams
from experiments.learning.steps import State

# The step is the same for all members.
_AXES = State(step=None, params=0, optimizer=0, sums=0, average=0)


def keys(hparams: HParams, count: int) -> jax.Array:
  """A key for each member, (count,)."""
  return jax.vmap(jax.random.fold_in, (None, 0))(hparams.key, jnp.arange(count))


def init(one: Callable, count: int) -> Callable:
  """From hparams to the initial State, as `one`."""

  def init_all(hparams: HParams) -> State:
    def of_member(key):
      return one(hparams.replace(key=key))

    return jax.vmap(of_member, out_axes=_AXES)(keys(hparams, count))

  return one if count == 1 else init_all


def train_step(one: Callable, count: int) -> Callable:
  """As steps.make_train_step; rows of the batch go to the members in turn.

  Its first `count` rows are the first row of each member. The metrics are means
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


def logits(one: Callable, count: int) -> Callable:
  """From (params, targets) to logits, as `one`.

  They are logarithms of the mean probabilities.
  """

  def logits_of_all(params, targets):
    logits_EBC = jax.vmap(one, (0, None))(params, targets)
    log_probs = jax.nn.log_softmax(logits_EBC)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(count)

  return one if count == 1 else logits_of_all


def pick(params, index: int, count: int):
  """The parameters of one member, without the axis of members."""
  return params if count == 1 else jax.tree.map(lambda x: x[index], params)
