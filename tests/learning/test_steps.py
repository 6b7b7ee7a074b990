"""The update: pure, equal however it is cut, one program for all numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.data.batches import Batch
from experiments.learning import steps, tasks
from experiments.learning.hparams import HParams
from experiments.settings.settings import from_config
from experiments.training import build
from tests.conftest import draw

V, C, B, L = 17, 3, 8, 6


def batch(seed=0):
  rng = np.random.default_rng(seed)
  return Batch(
    tokens=rng.integers(2, V, (B, L)).astype(np.int32),
    lengths=rng.integers(1, L + 1, B).astype(np.int32),
    labels=rng.integers(0, C, B).astype(np.int32),
    weights=np.array([1] * 6 + [0] * 2, np.float32),
  )


def parts(config, num_microbatches=1, clip_norm=None):
  settings = from_config(config)
  classifier = build.model(settings, V, C)
  hparams = HParams.of(settings)
  step = steps.make_train_step(
    classifier,
    lambda hparams, step: build.optimizer(settings, hparams, step),
    clip_norm=settings.optimizer.clip_norm if clip_norm is None else clip_norm,
    num_microbatches=lambda shape: num_microbatches,
    log_every=settings.train.log_every,
  )
  tokens = jnp.zeros((1, 1), jnp.int32)
  params = draw(classifier.init, hparams.key, tokens, tokens == 0)['params']
  optimizer = build.optimizer(settings, hparams, 0).init(params)
  state = steps.State(
    step=jnp.int32(0),
    params=params,
    optimizer=optimizer,
    sums=jnp.zeros(len(steps.SUMS)),
  )
  return state, step, hparams


def close(a, b, **tolerance):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def test_cross_entropy_equals_optax():
  logits = jax.random.normal(jax.random.key(0), (B, C)) * 5
  labels = jnp.arange(B) % C
  np.testing.assert_allclose(
    tasks.cross_entropy(logits, labels),
    optax.softmax_cross_entropy_with_integer_labels(logits, labels),
    rtol=1e-5,
    atol=1e-7,
  )
  smooth = optax.smooth_labels(jax.nn.one_hot(labels, C), 0.2)
  np.testing.assert_allclose(
    tasks.cross_entropy(logits, labels, 0.2),
    optax.softmax_cross_entropy(logits, smooth),
    rtol=1e-5,
  )


def test_micro_batches_equal_the_whole_batch_with_dropout_on(small_config):
  small_config.model.attention_dropout_rate = 0.2
  small_config.model.word_dropout_rate = 0.2
  state, whole, hparams = parts(small_config, 1)
  wanted = jax.jit(whole)(state, batch(), hparams)
  _, cut, _ = parts(small_config, 4)
  found = jax.jit(cut)(state, batch(), hparams)
  close(wanted, found, rtol=2e-4, atol=2e-6)


def test_parts_divide_the_batch_and_fit_the_caches(small_config):
  small_config.train.batch_size = 96
  small_config.model.mlp_dim = 1024
  settings = from_config(small_config)
  # 4 bytes x 1024 x 512 tokens are 2 MiB.
  for shape, want in {
    (96, 5): 1,
    (96, 6): 2,
    (96, 100): 24,
    (96, 100_000): 96,
    (1, 9_000): 1,
    (7, 900): 7,
  }.items():
    assert build.num_microbatches(settings, shape, 'cpu') == want
  assert build.num_microbatches(settings, (96, 100), 'gpu') == 1
  small_config.train.grad_accum_steps = 3
  assert (
    build.num_microbatches(from_config(small_config), (96, 100), 'gpu') == 3
  )
  # A device that has fewer rows may need more parts for them to be equal.
  assert (
    build.num_microbatches(from_config(small_config), (16, 100), 'gpu') == 4
  )


def test_rows_of_weight_zero_change_nothing(small_config):
  small_config.model.dropout_rate = 0.0
  state, step, hparams = parts(small_config)
  step = jax.jit(step)
  one = batch()
  other = one._replace(
    tokens=np.where(one.weights[:, None] == 1, one.tokens, 5),
    labels=np.where(one.weights == 1, one.labels, 2),
  )
  close(step(state, one, hparams), step(state, other, hparams), rtol=1e-6)
  no_rows = one._replace(weights=np.zeros(B, np.float32))
  assert np.isfinite(step(state, no_rows, hparams)[1]['loss'])


def test_the_gradient_is_that_of_the_mean_loss(small_config):
  small_config.model.dropout_rate = 0.0
  small_config.optimizer.label_smoothing = 0.1
  settings = from_config(small_config)
  state, step, hparams = parts(small_config)
  one = batch()

  def mean_loss(params):
    logits = build.model(settings, V, C).apply(
      {'params': params}, one.tokens[:6], tasks.padding_mask(one)[:6]
    )
    smooth = optax.smooth_labels(jax.nn.one_hot(one.labels[:6], C), 0.1)
    return optax.softmax_cross_entropy(logits, smooth).mean()

  loss, grads = jax.jit(jax.value_and_grad(mean_loss))(state.params)
  metrics = jax.jit(step)(state, one, hparams)[1]
  np.testing.assert_allclose(metrics['loss'], loss, rtol=1e-5)
  norm = optax.tree.norm(grads)
  np.testing.assert_allclose(metrics['gradient_norm'], norm, rtol=1e-4)


@pytest.mark.slow
def test_clipping_bounds_the_norm_and_keeps_the_direction(small_config):
  small_config.optimizer.method = 'sgd(momentum=0.0)'
  small_config.optimizer.weight_decay = 0.0
  small_config.optimizer.schedule = 'constant'
  small_config.optimizer.warmup_steps = 0
  small_config.optimizer.learning_rate = 1.0
  state, free, hparams = parts(small_config, clip_norm=0.0)
  _, clipped, _ = parts(small_config, clip_norm=0.01)

  def update(step):
    new, metrics = jax.jit(step)(state, batch(), hparams)
    difference = jax.tree.map(jnp.subtract, new.params, state.params)
    return difference, metrics['gradient_norm']

  (ours, norm), (cut, same_norm) = update(free), update(clipped)
  np.testing.assert_allclose(norm, same_norm, rtol=1e-6)
  np.testing.assert_allclose(optax.tree.norm(ours), norm, rtol=1e-4)
  np.testing.assert_allclose(optax.tree.norm(cut), 0.01, rtol=1e-3)
  oracle, _ = optax.clip_by_global_norm(0.01).update(ours, optax.EmptyState())
  close(cut, oracle, rtol=1e-2, atol=1e-7)


def test_one_program_serves_every_number_and_vmap(small_config):
  small_config.optimizer.label_smoothing = 0.1
  # Not Adam: a key's bias has no gradient but rounding, which it blows up.
  small_config.optimizer.method = 'sgd'
  state, step, hparams = parts(small_config)
  compiled = jax.jit(step)
  alone = []
  changes = (
    {'learning_rate': 3e-3, 'weight_decay': 0.0},
    {'dropout_rate': 0.4, 'warmup_steps': 5},
    {'label_smoothing': 0.0, 'key': jax.random.key(9)},
  )
  hparams = [
    hparams.replace(
      **{
        name: value if name == 'key' else np.float32(value)
        for name, value in change.items()
      }
    )
    for change in changes
  ]
  for own in hparams:
    new = state
    for index in range(3):
      new, metrics = compiled(new, batch(index), own)
    alone.append((new, metrics))
  assert compiled._cache_size() == 1

  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *hparams)
  states = jax.tree.map(lambda x: jnp.stack([x] * 3), state)
  together = jax.jit(jax.vmap(step, (0, None, 0)))
  for index in range(3):
    states, metrics = together(states, batch(index), stacked)
  for trial, want in enumerate(alone):
    found = jax.tree.map(lambda x, t=trial: x[t], (states, metrics))
    close(found, want, rtol=1e-3, atol=1e-5)


def test_metrics_of_the_log_are_means_since_its_last_line(small_config):
  one_by_one, last = [], []
  for log_every, measured in ((1, one_by_one), (3, last)):
    small_config.train.log_every = log_every
    state, step, hparams = parts(small_config)
    step = jax.jit(step)
    for index in range(6):
      state, metrics = step(state, batch(index), hparams)
      measured.append([metrics[name] for name in sorted(metrics)])
  means = [np.mean(one_by_one[:3], axis=0), np.mean(one_by_one[3:], axis=0)]
  np.testing.assert_allclose(last[2::3], means, rtol=1e-4)


def test_dropout_follows_the_step_and_the_seed(small_config):
  small_config.model.dropout_rate = 0.5
  state, step, hparams = parts(small_config)
  step = jax.jit(step)

  def loss(number, seed):
    moved = state.replace(step=jnp.asarray(number, jnp.int32))
    own = hparams.replace(key=jax.random.key(seed))
    return float(step(moved, batch(), own)[1]['loss'])

  assert loss(3, 0) == loss(3, 0)
  assert len({loss(3, 0), loss(4, 0), loss(3, 1)}) == 3


@pytest.mark.slow
def test_bfloat16_stays_near_float32_over_fifty_steps(small_config):
  small_config.model.dropout_rate = 0.0
  small_config.optimizer.schedule = 'constant'
  losses = {}
  for dtype in ('float32', 'bfloat16'):
    small_config.model.dtype = dtype
    state, step, hparams = parts(small_config)
    step = jax.jit(step)
    found = []
    for index in range(50):
      state, metrics = step(state, batch(index % 5), hparams)
      found.append(float(metrics['loss']))
    losses[dtype] = np.array(found)
    leaves = jax.tree.leaves((state.params, state.optimizer))
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in leaves)
  difference = abs(losses['float32'] - losses['bfloat16'])
  assert 0 < difference.max() < 0.05
  first, *_, last = losses['float32'].reshape(10, 5).mean(axis=1)
  assert last < first - 0.1


def in_float64(values, decay):
  """An average that starts at zero, over what its weights sum to."""
  average = 0.0
  for value in values:
    average = decay * average + (1 - decay) * np.asarray(value, np.float64)
  return average / (1 - decay ** len(values))


@pytest.mark.parametrize('decay', [0.5, 0.999, 0.99999])
def test_the_average_equals_a_loop_in_float64(decay):
  values = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
  # As in a group, whose other trial has another decay.
  decays = np.float32([decay, 0.9])
  update = jax.jit(jax.vmap(steps.averaged, (0, None, None, 0)))
  average = {'x': jnp.full((2, 3), 7.0)}  # which the first update forgets
  for step, value in enumerate(values, 1):
    average = update(average, {'x': value}, step, decays)
    if step == 1:
      assert (average['x'] == value[None]).all()
  # As float32 has them.
  expected = [in_float64(values, float(one)) for one in decays]
  np.testing.assert_allclose(average['x'], expected, rtol=1e-5, atol=1e-6)
