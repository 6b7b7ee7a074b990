"""Schedules and optimizers against optax's own, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.command import fields
from experiments.command.errors import UserError
from experiments.learning import optimizers, parameter_groups, schedules
from experiments.learning.hparams import HParams
from experiments.settings.settings import from_config
from experiments.training import build

STEPS, WARMUP = 50, 7
GROUPS = {name: cls() for name, cls in parameter_groups.GROUPS.items()}
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
  'wsd': optax.join_schedules(
    [
      optax.linear_schedule(0, 1, WARMUP),
      optax.constant_schedule(1),
      optax.linear_schedule(1, 0, round(0.2 * (STEPS - WARMUP), 1)),
    ],
    [WARMUP, STEPS - 0.2 * (STEPS - WARMUP)],
  ),
  # Vaswani et al. 2017, equation 3, over its peak.
  'inverse_sqrt': lambda step: (
    np.minimum(1 / np.sqrt(max(step, 1)), step / WARMUP**1.5) * np.sqrt(WARMUP)
  ),
}


@pytest.mark.parametrize('name', schedules.SCHEDULES)
def test_schedule_equals_its_oracle(name):
  factor = jax.jit(
    lambda step, warmup: schedules.factor(
      schedules.SCHEDULES[name](), step, warmup, STEPS
    )
  )
  for step in range(STEPS + 5):
    np.testing.assert_allclose(
      factor(step, WARMUP), ORACLES[name](step), rtol=1e-5, atol=1e-6
    )
  assert factor(0, 0) == 1  # without warm-up


PARAMS = {
  'dense': {'kernel': jnp.array([[1.0, -2.0]]), 'bias': jnp.array([3.0])},
  'embed': {'embedding': jnp.array([0.5, 4.0])},
}


def l2(weight_decay, mask):
  return optax.add_decayed_weights(weight_decay, mask)


def grads_of(params):
  return jax.tree.map(lambda x: jnp.sin(7 * x), params)


def applied(transform, params, count=4):
  """Parameters after some updates of an optax optimizer."""
  state = transform.init(params)
  for _ in range(count):
    updates, state = transform.update(grads_of(params), state, params)
    params = optax.apply_updates(params, updates)
  return params


def stepped(settings, numbers, params, count=4):
  """The same by the optimizer of a run."""
  state = build.optimizer(settings, numbers, 0).init(params)
  for step in range(count):
    transform = build.optimizer(settings, numbers, step)
    updates, state = transform.update(grads_of(params), state, params)
    params = optax.apply_updates(params, updates)
  return params


def close(ours, theirs):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7),
    ours,
    theirs,
  )


OPTIMIZER_ORACLES = {
  'lion': lambda rate, wd, mask: optax.lion(rate, weight_decay=wd, mask=mask),
  'sgd': lambda rate, wd, mask: optax.chain(l2(wd, mask), optax.sgd(rate, 0.9)),
  'adam': lambda rate, wd, mask: optax.chain(l2(wd, mask), optax.adam(rate)),
  'adamw': lambda rate, wd, mask: optax.adamw(rate, weight_decay=wd, mask=mask),
}


@pytest.mark.parametrize(
  ('endings', 'message'),
  [
    (('kernels',), r"names has 'kernels', .* did you mean kernel\?"),
    (('kernel', 'scale'), r"names has 'scale', .* bias, embedding, kernel$"),
    ((3,), r'names has 3'),
    (('',), r"names has ''"),
  ],
)
def test_a_name_that_no_parameter_has_is_refused(endings, message):
  parameter_groups.check(PARAMS, {}, ('embedding', 'bias'))
  with pytest.raises(UserError, match=rf'^config\.optimizer\..*{message}'):
    parameter_groups.check(PARAMS, {}, endings)


# Muon is of matrices alone, below.
@pytest.mark.parametrize('name', sorted({*optimizers.OPTIMIZERS} - {'muon'}))
def test_optimizer_equals_its_oracle(name, small_config):
  small_config.optimizer.method = name
  small_config.optimizer.weight_decay = 0.1
  small_config.optimizer.learning_rate = 0.01
  small_config.optimizer.schedule = 'constant'
  small_config.optimizer.warmup_steps = 0
  settings = from_config(small_config)
  hparams = HParams.of(settings)
  mask = {
    'dense': {'kernel': True, 'bias': False},
    'embed': {'embedding': False},
  }
  oracle = OPTIMIZER_ORACLES[name](0.01, 0.1, mask)
  ours = stepped(settings, hparams, PARAMS)
  theirs = applied(oracle, PARAMS)
  close(ours, theirs)
  # Only kernels decay: without it, they alone would be elsewhere.
  hparams = hparams.replace(weight_decay=0.0)
  plain = stepped(settings, hparams, PARAMS)
  assert (plain['dense']['kernel'] != ours['dense']['kernel']).any()
  assert (plain['dense']['bias'] == ours['dense']['bias']).all()
  assert (plain['embed']['embedding'] == ours['embed']['embedding']).all()


# As a classifier has them: two matrices, tables, and the rest.
TREE = {
  'embed': {'embedding': jnp.linspace(-1.0, 2.0, 15).reshape(5, 3)},
  'cls': jnp.array([0.1, -0.2, 0.3]),
  'encoder': {
    'position': {'learned': {'table': jnp.linspace(0.0, 1.0, 6).reshape(2, 3)}},
    'block': {
      'in': {'kernel': jnp.cos(jnp.arange(28.0).reshape(4, 7))},
      'out': {'kernel': jnp.sin(jnp.arange(21.0).reshape(7, 3))},
      'norm': {'scale': jnp.array([1.0, 0.9, 1.1])},
    },
  },
  'head': {'kernel': jnp.array([[0.3], [-0.4]]), 'bias': jnp.array([0.5])},
}
LABELS = {
  'embed': {'embedding': 'embeddings'},
  'cls': 'embeddings',
  'encoder': {
    'position': {'learned': {'table': 'embeddings'}},
    'block': {
      'in': {'kernel': 'matrices'},
      'out': {'kernel': 'matrices'},
      'norm': {'scale': ''},
    },
  },
  'head': {'kernel': '', 'bias': ''},
}


@pytest.fixture
def grouped(small_config):
  """A config of decay and a constant learning rate."""
  small_config.optimizer.weight_decay = 0.1
  small_config.optimizer.learning_rate = 0.01
  small_config.optimizer.schedule = 'constant'
  small_config.optimizer.warmup_steps = 0
  return small_config


class Fails(schedules.Schedule):
  """A mistake."""

  def __call__(self, progress, step, warmup):
    return {}['absent']


class Vector(schedules.Schedule):
  """It returns no number."""

  def __call__(self, progress, step, warmup):
    return jnp.ones(3)


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('Fails', rf"Fails: {__file__} line \d+: KeyError: 'absent'"),
    ('Vector', r'Vector.*it returns shape \(3,\), and must a number'),
  ],
)
def test_a_schedule_that_fails_is_one_line(grouped, name, said):
  grouped.optimizer.schedule = f'{__name__}:{name}'
  settings = from_config(grouped)
  with pytest.raises(UserError, match=said):
    build.optimizer(settings, HParams.of(settings), 0)


def mask(params):
  return parameter_groups.weight_decay_mask(params, ('kernel',))


def test_mask_and_cls_are_embeddings_and_rates_of_positions_are_not(grouped):
  grouped.task = 'masked_tokens'
  grouped.checkpoint.best_metric = 'loss'
  grouped.model.position = 'complex_order'
  grouped.model.pool = 'cls'
  params = jax.eval_shape(
    build.model(from_config(grouped), 30, 2).init,
    jax.random.key(0),
    jnp.zeros((1, 5), jnp.int32),
    jnp.ones((1, 5), bool),
  )['params']
  labels = parameter_groups.by_group(lambda name, _: name, params, GROUPS)
  assert labels['mask'] == labels['cls'] == 'embeddings'
  assert labels['encoder']['position']['rates'] == ''


def test_groups_with_optimizers_of_their_own_equal_a_partition(grouped):
  factors = {'embeddings': 3.0, 'matrices': 0.5}
  methods = {'embeddings': 'adam', 'matrices': 'muon'}
  grouped.optimizer.groups = '+'.join(
    f'{name}(optimizer={methods[name]}, learning_rate_scale={factor})'
    for name, factor in factors.items()
  )
  settings = from_config(grouped)
  ours = stepped(settings, HParams.of(settings), TREE)
  rates = {name: 0.01 * factor for name, factor in factors.items()}
  theirs = applied(
    optax.partition(
      {
        '': optax.adamw(0.01, weight_decay=0.1, mask=mask),
        # No name in this group decays.
        'embeddings': optax.adam(rates['embeddings']),
        'matrices': optax.contrib.muon(
          rates['matrices'], weight_decay=0.1, weight_decay_mask=mask
        ),
      },
      LABELS,
    ),
    TREE,
  )
  close(ours, theirs)


@pytest.mark.parametrize('shape', [(5, 3), (2, 3, 5)])
def test_muon_equals_that_of_optax_on_matrices(shape, grouped):
  grouped.optimizer.groups = 'matrices(optimizer=muon)'
  settings = from_config(grouped)
  size = int(np.prod(shape))
  matrix = jnp.sin(jnp.arange(float(size))).reshape(shape)
  tree = {'encoder': {'layer': {'kernel': matrix}}}
  ours = stepped(settings, HParams.of(settings), tree)
  numbers = optax.contrib.MuonDimensionNumbers(-2, -1)
  theirs = applied(
    optax.contrib.muon(
      0.01,
      weight_decay=0.1,
      muon_weight_dimension_numbers=jax.tree.map(lambda _: numbers, tree),
    ),
    tree,
  )
  close(ours, theirs)
  # A stack of matrices is each of them.
  if len(shape) == 3:
    one = {'encoder': {'layer': {'kernel': matrix[1]}}}
    alone = stepped(settings, HParams.of(settings), one)
    stacked = jax.tree.map(lambda x: x[1], ours)
    close(stacked, alone)


def test_a_group_of_scale_zero_stays(grouped):
  grouped.optimizer.groups = 'embeddings(learning_rate_scale=0.0)'
  settings = from_config(grouped)
  ours = stepped(settings, HParams.of(settings), TREE)
  assert (ours['cls'] == TREE['cls']).all()
  assert (ours['head']['bias'] != TREE['head']['bias']).all()


@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_every_float_of_an_optimizer_is_checked(name):
  cls = optimizers.OPTIMIZERS[name]
  cls().check()
  options = [
    option
    for option, default in fields.options(cls).items()
    if type(default) is float
  ]
  assert options
  for option in options:
    for value in (-0.1, float('nan'), float('inf')):
      with pytest.raises(ValueError, match=f'^{option} = {value} must be'):
        cls(**{option: value}).check()


def test_a_group_without_parameters_is_refused(grouped):
  grouped.optimizer.groups = 'matrices'
  optimizer = from_config(grouped).optimizer
  optimizer.check_parameters(TREE)
  encoder = {'position': TREE['encoder']['position']}
  with pytest.raises(
    UserError, match=r'optimizer\.groups has matrices, and no'
  ):
    optimizer.check_parameters(TREE | {'encoder': encoder})
