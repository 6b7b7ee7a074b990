"""What the docs show in Python runs, block by block, as it stands."""

import json
import pathlib
import re
import shlex
import shutil

import jax
import jax.numpy as jnp
import make_tables
import numpy as np
import pytest
import results
from conftest import make_small_config

from configs import default
from experiments.command import modules
from experiments.command.signals import Signals
from experiments.learning.classify import Classify
from experiments.learning.tasks import Targets, Task
from experiments.settings.settings import from_config
from experiments.training import run as run_lib
from selfattn.masks import Tokens
from selfattn.positions import Position

ROOT = pathlib.Path(__file__).parent.parent


def test_tables_of_the_docs_are_as_they_are_made():
  for name in make_tables.FILES:
    text = (ROOT / name).read_text()
    assert make_tables.filled(text) == text, (
      f'run scripts/make_tables.py ({name})'
    )


def test_every_results_file_is_linked_and_says_where_it_comes_from():
  pages = [ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')]
  text = ''.join(path.read_text() for path in pages)
  files = list((ROOT / 'docs/results').glob('*.json'))
  assert {path.stem for path in files} == set(
    re.findall(r'\]\((?:docs/)?results/(\w+)\.json\)', text)
  )
  for path in files:
    content = json.loads(path.read_text())
    for one in ('command', 'commit', 'machine'):
      is_of_all = content.get(one) or content.get(f'{one}s')
      assert is_of_all or all(row.get(one) for row in content['rows']), path


@pytest.fixture
def results_file(monkeypatch):
  """Rows of docs/results/some.json: two methods, at two lengths."""
  rows = [
    {'name': 'b', 'length': 8, 'test': {'mean': 0.5, 'half_width': None}},
    {'name': 'a', 'length': 8, 'test': {'mean': 1 / 3, 'half_width': 0.25}},
    {'name': 'a', 'length': 16, 'test': {'mean': 0.875, 'half_width': 0.5}},
  ]
  monkeypatch.setattr(results, '_content', lambda file: {'rows': rows})


@pytest.mark.usefixtures('results_file')
def test_a_table_shows_what_its_template_says():
  template = """| name | short | long |
some by name: | `{name}` | {test@length=8:.2f} | {test.mean@length=16:.3f} |
some sorted by name: | {name} | {length@length=8} | |
| all | {some/test@name=a@length=16:+.1f} | |"""
  assert results.table(template).splitlines() == [
    '| name | short | long |',
    '| --- | --- | --- |',
    '| `b` | 0.50 |  |',
    '| `a` | 0.33 ± 0.25 | 0.875 |',
    '| a | 8 | |',
    '| b | 8 | |',
    '| all | +0.9 ± 0.5 | |',
  ]


@pytest.mark.usefixtures('results_file')
@pytest.mark.parametrize(
  ('row', 'said'),
  [
    ('some by name: | {tset} |', 'has no column tset'),
    ('some by name: | {test:.2f} |', '2 rows of some are like this'),
    ('some | {test} |', 'is not a row of a table'),
  ],
)
def test_a_template_that_is_wrong_is_refused(row, said):
  with pytest.raises(ValueError, match=said):
    results.table(f'| name |\n{row}')


@pytest.fixture(scope='module')
def ideas(tmp_path_factory):
  """The folder of ideas.py, which has the blocks of docs/extending.md."""
  text = (ROOT / 'docs/extending.md').read_text()
  blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  folder = tmp_path_factory.mktemp('ideas')
  (folder / 'ideas.py').write_text('\n\n'.join(blocks))
  modules.search(str(folder))
  return folder


@pytest.fixture
def tables(ideas):
  """Its position methods, by name of the class."""
  names = ('LogDistance', 'Salience')
  return {name: modules.named(f'ideas:{name}', Position, '') for name in names}


def test_the_methods_of_the_docs_equal_their_formulas(tables):
  D, H, L = 12, 2, 5
  row = Tokens().with_defaults(L)
  far = np.arange(L)[None] - np.arange(L)[:, None]
  logarithm = tables['LogDistance'](D, H, False, init_slope=0.5)
  bias = logarithm.bias(logarithm.init(None), row, row)
  np.testing.assert_allclose(bias[0, 1], -np.log1p(abs(far)) / 2, rtol=1e-6)
  salience = tables['Salience'](D, H, False)
  x_BLD = jax.random.normal(jax.random.key(0), (2, L, D))
  params = salience.init(jax.random.key(1))
  state = salience.state(params, x_BLD, row)
  gate = 1 / (1 + np.exp(-(x_BLD @ params['kernel'] + 1)))
  np.testing.assert_allclose(state, np.log(gate), rtol=1e-5, atol=1e-6)


def test_a_margin_moves_the_angle_of_the_label(ideas):
  task = modules.named('ideas:ArcFace', Task, '')(margin=0.3)
  cosines = np.array([[0.5, -0.25, 0.75], [0.125, 0.875, -0.5]])
  targets = Targets(None, None, np.array([0, 2]), np.ones(2))
  losses, is_correct = task.losses(jnp.asarray(16 * cosines), targets)
  for row, label in enumerate(targets.labels):
    moved = 16 * cosines[row]
    moved[label] = 16 * np.cos(np.arccos(cosines[row, label]) + 0.3)
    want = np.log(np.exp(moved - moved[label]).sum())
    np.testing.assert_allclose(losses[row], want, rtol=1e-4)
  assert is_correct.tolist() == [False, False]


# Data sets of files.
FILES = ('text', 'ideas:TextsByLabel', 'ideas:Titled')


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {
      'model.normaliser': 'ideas:Relu',
      'model.pool': 'ideas:Gated',
      'model.block': 'ideas:Sandwich(scale=0.5)',
      'model.position': 'ideas:LogDistance(init_slope=2.0)',
      'model.position_sampling': 'ideas:RandomStride(max_stride=3)',
      'optimizer.groups': (
        'embeddings(optimizer=ideas:SignSgd)'
        '+ideas:Ending(ending=scale, learning_rate_scale=0.1)'
      ),
      'optimizer.schedule': 'ideas:Polynomial(power=3, least=0.1)',
      'train.measures': 'attention_entropy+ideas:OnItself',
      'checkpoint.best_metric': 'OnItself',
      'train.callback': 'ideas:note_norms',
    },
    {
      'model.head': 'ideas:Cosine',
      'task': 'ideas:ArcFace(margin=0.3)',
    },
    {
      'train.curriculum': 'ideas:HalfFirst',
      'model.block': 'ideas:Quiet',
      'train.measures': 'sown(name=added, weight=0.1)',
    },
    {
      'model.encoder': 'ideas:Mixed(gate=0.25)',
      'model.head': 'ideas:Prototypes',
      'data.source': 'ideas:TextsByLabel',
      'data.vocabulary': 'ideas:Characters(size=20)',
    },
    {
      'data.source': (
        'ideas:Majority(train=40, validation=10, test=10, longest_train=12, '
        'longest_test=20)'
      ),
      'model.position': 'ideas:Salience+ideas:LogDistance',
    },
    {
      'task': 'ideas:ReplacedTokens',
      'checkpoint.best_metric': 'loss',
      'data.source': 'text',
      'data.text.format': 'ideas:Paragraphs',
      'data.text.train': ('paragraphs.txt',),
      'data.test_fraction': 0.2,
    },
    {
      'data.source': 'ideas:Titled',
      'data.text.train': ('a.tsv',),
      'data.text.text_columns': ('title', 'body'),
      'data.test_fraction': 0.2,
      'model.embeddings': 'ideas:Hashed(freeze=True)',
    },
  ],
  ids=lambda changes: '+'.join(map(str, changes.values())),
)
def test_the_classes_of_the_docs_train(changes, tmp_path, ideas):
  for split in ('train', 'test'):
    texts = {
      label: [f'{split} {label} {n}' for n in range(20)]
      for label in ('no', 'yes')
    }
    (ideas / f'{split}.json').write_text(json.dumps(texts))
  rows = [f'title {n}\tbody {n}\t{["", -1, 2][n % 3]}' for n in range(60)]
  table = '\n'.join(['title\tbody\tlabel', *rows])
  (ideas / 'a.tsv').write_text(table + '\n')
  paragraphs = ''.join(f'label\na text {n}\nof {n}\n\n' for n in range(60))
  (ideas / 'paragraphs.txt').write_text(paragraphs)
  config = make_small_config()
  config.train.steps = config.train.eval_every = 2
  config.optimizer.warmup_steps = 1
  config.update_from_flattened_dict(changes)
  if changes.get('data.source') in FILES:
    config.data.dir = str(ideas)
  result = run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert np.isfinite(result['loss'])
  assert (tmp_path / 'run/norms.jsonl').exists() == bool(config.train.callback)


def test_the_loop_of_the_docs_trains():
  text = (ROOT / 'docs/training.md').read_text()
  (block,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  names = {}
  exec(block, names)
  config = make_small_config()
  config.train.steps = 3
  scores = names['train_flat'](config)
  assert scores.keys() == Classify.metrics.keys()
  assert np.isfinite(scores['loss'])


@pytest.mark.usefixtures('ideas')
def test_the_commands_on_classes_of_ones_own_have_valid_choices():
  text = (ROOT / 'docs/extending.md').read_text()
  chosen = 0
  for line in re.findall(r'^    bash scripts/run\.sh (.*)', text, re.MULTILINE):
    for word in shlex.split(line):
      key, _, value = word.partition('=')
      if key.startswith('--config.') and 'ideas:' in value:
        config = default.get_config()
        if '--config.data.dir=PATH' in line:
          config.data.source, config.data.dir = 'text', 'PATH'
        key = key.removeprefix('--config.')
        config.update_from_flattened_dict({key: value})
        assert from_config(config)
        chosen += 1
  assert chosen >= 5


@pytest.fixture
def snippets():
  """The Python blocks of the README."""
  text = (ROOT / 'README.md').read_text()
  return re.findall(r'```python\n(.*?)```', text, re.DOTALL)


def test_the_layer_of_the_readme_runs(snippets):
  names = {}
  exec(snippets[0], names)
  assert names['output_BLD'].shape == (2, 10, 64)
  assert names['weights_BHLM'].shape == (2, 4, 10, 10)


def test_the_method_of_the_readme_adds_its_bonus_to_adjacent_tokens(snippets):
  names = {'__name__': 'readme'}
  exec(snippets[1], names)
  method = names['Neighbours'](12, 2, False)
  row = Tokens().with_defaults(4)
  bias = method.bias({'bonus': np.float32([2, 3])}, row, row)
  want = np.eye(4, k=1) + np.eye(4, k=-1)
  np.testing.assert_array_equal(bias[0], np.stack([2 * want, 3 * want]))


def test_the_predictions_of_the_page_on_data(
  finished_run, tmp_path, monkeypatch, capfd
):
  text = (ROOT / 'docs/data.md').read_text()
  block = re.findall(r'```python\n(.*?)```', text, re.DOTALL)[0]
  monkeypatch.chdir(tmp_path)
  shutil.copytree(finished_run, tmp_path / 'runs/reviews')
  exec(block, {})
  predicted = capfd.readouterr().out.splitlines()
  assert len(predicted) == 2
  assert all(one.startswith(('negative {', 'positive {')) for one in predicted)


def test_the_page_on_inspection_shows_what_is_sown():
  text = (ROOT / 'docs/interpretability.md').read_text()
  (block,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  names = {}
  exec(block, names)
  assert names['P_1LD'].shape == (1, 7, 32)
  assert names['weights_BHLM'].shape == (2, 4, 7, 7)


@pytest.fixture(scope='module')
def library():
  """The names of the first two blocks of the page on your own code."""
  text = (ROOT / 'docs/library.md').read_text()
  examples = []
  for block in re.findall(r'```python\n(.*?)```', text, re.DOTALL)[:2]:
    examples.append({})
    exec(block, examples[-1])
  return examples


@pytest.mark.slow
def test_the_nnx_model_of_the_docs_learns_with_dropout(library):
  names = library[0]
  assert names['losses'][-1] < names['losses'][0] / 4
  first, second = (names['model'](names['ids_BL']) for _ in range(2))
  np.testing.assert_array_equal(first, second)


def test_the_plain_functions_of_the_docs_learn(library):
  names = library[1]
  params = names['init'](jax.random.key(0))
  assert params['position'].keys() == {'shaw'}
  x_BLD = jax.random.normal(jax.random.key(1), (4, 6, 32))
  mask_BL = np.arange(6) < np.array([[6], [5], [4], [6]])
  y_BLD = np.roll(x_BLD, 1, axis=1)
  losses = []
  for _ in range(10):
    loss, params = names['step'](params, x_BLD, mask_BL, y_BLD)
    losses.append(loss)
  assert losses == sorted(losses, reverse=True)
