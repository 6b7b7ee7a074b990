"""Planning and validation of sweeps."""

import types

import numpy as np
import pytest

from configs import default
from experiments.command.errors import UserError
from experiments.sweeps import plan


def test_product_is_every_combination_in_order():
  one, two = [{'a': 1}, {'a': 2}], [{'b': 3}, {'b': 4}]
  assert plan.product([one, two]) == [
    {'a': 1, 'b': 3},
    {'a': 1, 'b': 4},
    {'a': 2, 'b': 3},
    {'a': 2, 'b': 4},
  ]
  with pytest.raises(UserError, match=r'two sweeps override config\.a'):
    plan.product([one, one])


def test_shapes_are_traced_once_for_each_program(tmp_path, monkeypatch):
  base = default.get_config().to_dict()
  base['data']['source'] = 'word_order(train_pairs=5)'
  base['model']['num_layers'] = 1
  trials = [
    {'seed': seed, 'model.mlp_dim': width}
    for seed in range(3)
    for width in (7, 9)
  ]
  traced, shapes = [], plan._shapes
  monkeypatch.setattr(
    plan, '_shapes', lambda *given: traced.append(given) or shapes(*given)
  )
  counts = plan.check_data_and_shapes(plan.make(base, trials, str(tmp_path)))
  assert len(traced) == 2
  assert counts[2] == counts[0] < counts[3] == counts[1]


def test_points_that_are_one_trial_are_trained_once(tmp_path, capfd):
  methods = ['rotary', 'rope', 'rotary(base=10000)', 'rotary(base=500)']
  points = plan.product(
    [
      [{'model.position': name} for name in methods],
      [{'seed': seed} for seed in range(2)],
    ]
  )
  base = default.get_config().to_dict()
  specs = plan.make(base, points, str(tmp_path))
  kept = plan.distinct(specs)
  assert [spec.overrides for spec in kept] == points[:2] + points[-2:]
  # Another spelling has the same folder.
  assert specs[2].path == specs[0].path
  (said,) = capfd.readouterr().err.splitlines()
  assert said.startswith('4 of 8 points of the grid have the settings')
  # A default that is written is the same trial.
  kept = plan.distinct(plan.make(base, [{}, {'seed': 0}], str(tmp_path)))
  assert [spec.overrides for spec in kept] == [{}]


@pytest.mark.parametrize(
  ('text', 'key', 'values'),
  [
    (
      'config.optimizer.learning_rate=1e-4,3',
      'optimizer.learning_rate',
      (1e-4, 3.0),
    ),
    ('config.seed=0,1', 'seed', (0, 1)),
    ('config.model.position=t5,a+b', 'model.position', ('t5', 'a+b')),
    (
      "config.optimizer.weight_decay_names=('kernel',),('a','b')",
      'optimizer.weight_decay_names',
      (('kernel',), ('a', 'b')),
    ),
    (
      "config.optimizer.weight_decay_names=kernel,('a','b')",
      'optimizer.weight_decay_names',
      (('kernel',), ('a', 'b')),
    ),
    # Text in quotes or brackets is one value.
    ("config.data.dir=',',';'", 'data.dir', (',', ';')),
    ('config.data.dir="a,b",c', 'data.dir', ('a,b', 'c')),
    ('config.data.dir="C:\\new","\\""', 'data.dir', ('C:\\new', '"')),
    ('config.data.dir=f(a,(b,c)),[d,e]', 'data.dir', ('f(a,(b,c))', '[d,e]')),
    # An apostrophe inside a word is no quote.
    ("config.data.dir=it's,that's", 'data.dir', ("it's", "that's")),
    ("config.data.dir='it\\'s, so',a", 'data.dir', ("it's, so", 'a')),
    (
      "config.optimizer.weight_decay_names=('a),b', \"it's\"),(('x',),'y')",
      'optimizer.weight_decay_names',
      (('a),b', "it's"), (('x',), 'y')),
    ),
    (
      'config.train.shuffle_by_seed=true,False',
      'train.shuffle_by_seed',
      (True, False),
    ),
    (
      'config.model.position=none,rotary(base=5, fraction=0.5),t5+alibi',
      'model.position',
      ('none', 'rotary(base=5, fraction=0.5)', 't5+alibi'),
    ),
  ],
)
def test_values_of_a_grid_have_the_type_of_the_key(text, key, values):
  found = plan.grid(text, default.get_config())
  assert found == [{key: value} for value in values]
  assert all(
    type(f[key]) is type(v) for f, v in zip(found, values, strict=True)
  )


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    (
      'config.optimiser.learning_rate=1',
      'did you mean config.optimizer.learning_rate',
    ),
    ('config.seed', 'is not config.KEY=VALUE,VALUE'),
    ('model.pool=max', 'not a key; did you mean config.model.pool'),
    ('config.model=(a)', 'config.model is not a key'),
    ('config.seed=', 'is not config.KEY=VALUE,VALUE'),
    ('config.seed=1,two', "'two' is not an integer, such as 0"),
    ("config.data.dir='a,b", "quotes or brackets that do not match in .'a,b"),
    ('config.data.dir=(a],b', 'quotes or brackets that do not match'),
    ('config.data.dir="a"b,c', 'quotes or brackets that do not match'),
  ],
)
def test_wrong_values_of_a_grid_are_refused(text, said):
  with pytest.raises(UserError, match=said):
    plan.grid(text, default.get_config())


def test_generators_are_found_by_name():
  module = types.ModuleType('config')
  module.__file__ = 'some.py'
  module.sweep_seeds = lambda: ({'seed': s} for s in range(2))
  module.sweep_none = lambda: []
  assert plan.generated(module, 'seeds') == [{'seed': 0}, {'seed': 1}]
  with pytest.raises(UserError, match='it has none, seeds; did you mean seeds'):
    plan.generated(module, 'seed')
  with pytest.raises(UserError, match='must yield dicts'):
    plan.generated(module, 'none')


@pytest.mark.parametrize(
  'function',
  [
    lambda: None,
    lambda: 1 / 0,
    lambda: 3,
    lambda name: [{'seed': name}],
    lambda: ({'seed': [][n]} for n in range(2)),
  ],
)
def test_a_generator_that_fails_is_named(function):
  module = types.ModuleType('config')
  module.__file__, module.sweep_mine = 'some.py', function
  with pytest.raises(UserError, match='--sweep=mine'):
    plan.generated(module, 'mine')


def test_a_section_is_no_value_of_a_trial(tmp_path):
  base = default.get_config().to_dict()
  trials = [{'checkpoint': {'every_steps': 7}}]
  with pytest.raises(UserError, match=r'config\.checkpoint is not a key'):
    plan.make(base, trials, str(tmp_path))


def test_numbers_of_numpy_are_those_of_python():
  module = types.ModuleType('config')
  module.__file__ = 'some.py'
  module.sweep_numpy = lambda: (
    {
      'train.steps': steps,
      'optimizer.learning_rate': rate,
      'optimizer.nesterov': np.True_,
      'data.text.labels': (np.str_('a'), np.array([1, 2])),
    }
    for steps, rate in zip(np.arange(2, 4), np.logspace(-2, -1, 2), strict=True)
  )
  found = plan.generated(module, 'numpy')
  wanted = {'optimizer.nesterov': True, 'data.text.labels': ('a', [1, 2])}
  assert found == [
    {'train.steps': 2, 'optimizer.learning_rate': 0.01} | wanted,
    {'train.steps': 3, 'optimizer.learning_rate': 0.1} | wanted,
  ]
  kinds = [type(value) for value in found[0].values()]
  assert kinds == [int, float, bool, tuple]


def test_all_invalid_trials_are_listed(tmp_path):
  base = default.get_config().to_dict()
  trials = [
    {'seed': 1},
    {'model.position': 'rotory'},
    {'model.num_heads': 5},
    {'model.positon': 't5'},
    {'optimizer': 'adam'},
  ]
  with pytest.raises(UserError) as error:
    plan.make(base, trials, str(tmp_path))
  said = str(error.value)
  assert said.startswith('4 of 5 trials are invalid, so none is trained: ')
  assert 'trial 1 (model.position=rotory)' in said
  assert 'did you mean rotary?' in said
  assert 'trial 2 (model.num_heads=5)' in said
  assert 'config.model.positon is not a key' in said
  assert 'config.optimizer is not a key' in said
  with pytest.raises(UserError, match=r'trial 0 \(seed=-1\) and 1 more: '):
    plan.make(base, [{'seed': -1}, {'seed': -1, 'model.pool': 'max'}], '')


@pytest.mark.parametrize(
  ('text', 'values'),
  [
    ('train.shuffle_by_seed=True, False', [True, False]),
    ('data.split_by=text, sentence', ['text', 'sentence']),
    ('seed=0, 1', [0, 1]),
  ],
)
def test_spaces_after_commas_of_a_grid_are_no_part_of_values(text, values):
  points = plan.grid(f'config.{text}', default.get_config())
  assert [next(iter(point.values())) for point in points] == values
