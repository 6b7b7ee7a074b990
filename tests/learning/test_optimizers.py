"""Schedules and optimizers against optax's own, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.command.errors import UserError
from experiments.learning import optimizers
from experiments.settings.settings import from_config
from experiments.training import build

STEPS, WARMUP = 50, 7
ORACLES = {
  'constant': optax.join_schedules(
    [optax.linear_schedule(0, 1, WARMUP), optax.constant_schedule(1)], [WARMUP]
  ),
  'linear': optax.join_schedules(
    [
      optax.linear_schedule(0, 1, WARMUP),
      optax.linear_schedule(1, 0, STEPS - WARMUP),
    ],
    [WARMUP],
  ),
  'cosine': optax.warmup_cosine_decay_schedule(0, 1, WARMUP, STEPS),
  # Vaswani et al. 2017, equation 3, over its peak.
  'inverse_sqrt': lambda step: (
    np.minimum(1 / np.sqrt(max(step, 1)), step / WARMUP**1.5) * np.sqrt(WARMUP)
  ),
}


def test_every_schedule_has_an_oracle():
  assert set(ORACLES) == set(optimizers.SCHEDULES)


@pytest.mark.parametrize('name', ORACLES)
def test_schedule_equals_its_oracle(name):
  factor = jax.jit(
    lambda step, warmup: optimizers.schedule(name, step, warmup, STEPS)
  )
  for step in range(STEPS + 5):
    np.testing.assert_allclose(
      factor(step, WARMUP), ORACLES[name](step), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize('name', optimizers.SCHEDULES)
def test_without_warmup_the_first_step_is_full(name):
  assert optimizers.schedule(name, 0, 0, STEPS) == 1


PARAMS = {
  'dense': {'kernel': jnp.array([[1.0, -2.0]]), 'bias': jnp.array([3.0])},
  'embed': {'embedding': jnp.array([0.5, 4.0])},
}
GRADS = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)


def l2(weight_decay, mask):
  return optax.add_decayed_weights(weight_decay, mask)


OPTIMIZER_ORACLES = {
  'sgd': lambda rate, wd, mask: optax.chain(l2(wd, mask), optax.sgd(rate, 0.9)),
  'adam': lambda rate, wd, mask: optax.chain(l2(wd, mask), optax.adam(rate)),
  'adamw': lambda rate, wd, mask: optax.adamw(rate, weight_decay=wd, mask=mask),
}


def test_every_optimizer_has_an_oracle():
  assert set(OPTIMIZER_ORACLES) == set(optimizers.OPTIMIZERS)


@pytest.mark.parametrize('endings', [(), ('kernel',), ('embedding', 'bias')])
def test_names_that_decay_are_names_of_parameters(endings):
  shapes = jax.eval_shape(lambda: PARAMS)
  optimizers.check_decay(shapes, endings)


@pytest.mark.parametrize(
  ('endings', 'message'),
  [
    (('kernels',), r"decay has 'kernels', .* did you mean kernel\?"),
    (('kernel', 'scale'), r"decay has 'scale', .* bias, embedding, kernel$"),
    (('dense',), r"decay has 'dense'"),
    ((3,), r'decay has 3'),
    (('',), r"decay has ''"),
  ],
)
def test_a_name_that_no_parameter_has_is_refused(endings, message):
  with pytest.raises(UserError, match=message) as error:
    optimizers.check_decay(PARAMS, endings)
  assert str(error.value).startswith('config.optimizer.decay')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', OPTIMIZER_ORACLES)
def test_optimizer_equals_its_oracle(name, small_config):
  small_config.optimizer.name = name
  small_config.optimizer.weight_decay = 0.1
  small_config.optimizer.learning_rate = 0.01
  small_config.optimizer.schedule = 'constant'
  small_config.optimizer.warmup_steps = 0
  settings = from_config(small_config)
  hparams = build.hparams(settings)
  mask = {
    'dense': {'kernel': True, 'bias': False},
    'embed': {'embedding': False},
  }
  oracle = OPTIMIZER_ORACLES[name](0.01, 0.1, mask)
  ours, theirs = PARAMS, PARAMS
  state = build.optimizer(settings, hparams, 0).init(PARAMS)
  oracle_state = oracle.init(PARAMS)
  for step in range(4):
    transform = build.optimizer(settings, hparams, step)
    updates, state = transform.update(GRADS, state, ours)
    ours = optax.apply_updates(ours, updates)
    updates, oracle_state = oracle.update(GRADS, oracle_state, theirs)
    theirs = optax.apply_updates(theirs, updates)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs
  )
  # Only kernels decay: without it, they alone would be elsewhere.
  hparams = hparams.replace(weight_decay=0.0)
  state = build.optimizer(settings, hparams, 0).init(PARAMS)
  plain = PARAMS
  for step in range(4):
    transform = build.optimizer(settings, hparams, step)
    updates, state = transform.update(GRADS, state, plain)
    plain = optax.apply_updates(plain, updates)
  assert (plain['dense']['kernel'] != ours['dense']['kernel']).any()
  assert (plain['dense']['bias'] == ours['dense']['bias']).all()
  assert (plain['embed']['embedding'] == ours['embed']['embedding']).all()
