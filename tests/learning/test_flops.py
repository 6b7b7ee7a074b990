"""Operations are counted as the program stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from experiments.command import app
from experiments.learning import flops, steps
from experiments.learning.tasks import CLASSIFY
from experiments.settings import settings
from experiments.training import build
from experiments.training.devices import flops_per_second

A, B = jnp.ones((3, 5)), jnp.ones((5, 7))


def test_a_product_is_two_operations_a_multiply_add():
  assert flops.count(jnp.matmul, A, B) == 2 * 3 * 5 * 7
  assert flops.count(jax.jit(jnp.matmul), A, B) == 2 * 3 * 5 * 7


def test_batched_products_count_every_batch():
  def product(x, y):
    return jnp.einsum('bhlk,bhmk->bhlm', x, y)

  x, y = jnp.ones((2, 3, 5, 7)), jnp.ones((2, 3, 11, 7))
  assert flops.count(product, x, y) == 2 * 2 * 3 * 5 * 11 * 7


def test_a_scanned_body_counts_as_often_as_it_runs():
  def powers(x):
    return lax.scan(lambda c, _: (c @ c, None), x, length=13)[0]

  assert flops.count(powers, jnp.ones((4, 4))) == 13 * 2 * 4**3


def test_a_convolution_equals_its_products():
  layer = nn.Conv(7, (3,), padding='VALID')
  x = jnp.ones((2, 11, 5))
  params = layer.init(jax.random.key(0), x)
  assert flops.count(layer.apply, params, x) == 2 * (2 * 9) * (3 * 5) * 7


def test_products_that_wait_are_a_chain():
  def two_chains(x):
    return (x @ x @ x) + x @ x

  def loop(x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), c @ x), x @ x, length=13)

  assert flops.depth(two_chains, jnp.ones((4, 4))) == 2
  assert flops.depth(loop, jnp.ones((4, 4))) == 1 + 13
  assert flops.depth(jax.jit(jnp.tanh), A) == 0


def test_of_branches_the_costliest_counts():
  def either(flag, x):
    return lax.cond(flag, lambda x: x @ x, lambda x: x, x)

  assert flops.count(either, True, jnp.ones((4, 4))) == 2 * 4**3


def test_a_product_in_a_while_loop_is_refused():
  def loop(x):
    return lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c @ c, x)

  with pytest.raises(ValueError, match='while'):
    flops.count(loop, jnp.ones((4, 4)))


def test_a_training_step_without_recomputation_is_the_model_three_times():
  config = app.load_config(app.DEFAULT_CONFIG)
  config.model.dropout_rate = 0.0
  wanted = settings.from_config(config)
  classifier = build.model(wanted, 50, 3)
  hparams = build.hparams(wanted)
  state = jax.eval_shape(lambda: build.init_state(wanted, classifier, hparams))
  rows = np.zeros(6, np.int32)
  batch = steps.Batch(np.zeros((6, 10), np.int32), rows, rows, rows)
  whole = flops.count(
    build.train_step(wanted, classifier, CLASSIFY, 'cpu'), state, batch, hparams
  )
  model = steps.model_flops(classifier, state.params, (6, 10))
  assert model == whole
  tokens, width, hidden = 60, 64, 128
  layer = 2 * tokens * (4 * width**2 + 2 * width * hidden + 2 * 10 * width)
  assert model == 3 * (2 * layer + 2 * 6 * width * 3)


@pytest.mark.parametrize('backend', ['chunked', 'xla', 'cudnn', 'pallas_tpu'])
def test_the_model_is_as_large_with_every_backend(backend):
  """A kernel does not say how often it runs its products."""

  def count(backend):
    config = app.load_config(app.DEFAULT_CONFIG)
    config.model.dtype = 'bfloat16'
    config.model.encoder.attention.backend = backend
    wanted = settings.from_config(config)
    platform = {'cudnn': 'gpu', 'pallas_tpu': 'tpu'}.get(backend, 'cpu')
    classifier = build.model(wanted, 50, 3, platform)
    plain = build.model(wanted, 50, 3, platform).clone(
      encoder=classifier.encoder.clone(backend='reference')
    )
    tokens = jnp.zeros((1, 1), jnp.int32)
    key = jax.random.key(0)
    params = jax.eval_shape(plain.init, key, tokens, tokens == 0)['params']
    return steps.model_flops(classifier, params, (6, 10))

  assert count(backend) == count('reference')


def test_an_unnamed_machine_is_measured():
  most, source = flops_per_second(jax.devices('cpu')[0])
  assert 1e8 < most < 1e15
  assert source.startswith('measured')
