"""Files of experiments.inspect and predict --attention, and wrong input."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, last_json, make_small_config

from experiments.command.signals import Signals
from experiments.inspection import figures, position_figures
from experiments.training import run as run_lib
from selfattn import analysis, positions
from selfattn.contract import Encoder
from selfattn.encoders import ENCODERS, AttentionEncoder
from selfattn.masks import Tokens
from selfattn.positions import Position
from selfattn.positions.absolute import Sinusoidal
from selfattn.positions.contract import distances

pytestmark = pytest.mark.usefixtures('shared_programs')
TEXT = 'the zebra was dull but the acting was fine'
KNOWN = TEXT.replace('zebra', '[UNK]').split()


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  path = tmp_path_factory.mktemp('inspect') / 'run'
  config = make_small_config()
  config.train.steps = 3
  config.model.position.name = 'learned'
  run_lib.run(config, str(path), Signals())
  return path


def documented():
  """Stems of the names of files on the page about inspecting a model."""
  page = (ROOT / 'docs/interpretability.md').read_text()
  cells = re.findall(r'^\| (`.*?) \|', page, re.MULTILINE)
  return set(re.findall('`([a-z]+)', ' '.join(cells)))


def read(path):
  """The labels of a figure, and its arrays by name."""
  content = json.loads(path.with_suffix('.json').read_text())
  arrays = content['arrays'].items()
  return content['labels'], {n: np.array(x, float) for n, x in arrays}


def test_a_trained_run_is_inspected(run, call_command):
  code, stdout, stderr = call_command(
    'inspect',
    f'--workdir={run}',
    f'--text={TEXT}',
    '--text=although the cast was weak , the idea was great',
    '--split=validation',
    '--num_examples=9',
    cwd=run.parent,
  )
  assert code == 0, stderr
  result = last_json(stdout)
  folder = run / 'inspect'
  assert {path.name for path in folder.iterdir()} == set(result['files'])
  for name in result['files']:
    assert re.match('[a-z]+', name)[0] in documented()
    for kind in figures.KINDS if '.html' not in name else ():
      assert (folder / name).with_suffix(f'.{kind}').stat().st_size > 0
  labels, arrays = read(folder / 'attention-0')
  tokens, weights = labels['tokens'], arrays['weights']
  assert tokens == KNOWN
  assert weights.shape == (1, 2, len(tokens), len(tokens))
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
  assert read(folder / 'encoding')[1]['P'].shape == (1, 64, 12)
  assert [head['head'] for head in result['heads']] == [0, 1]
  assert result['ablation']['examples'] == 9
  assert len(result['ablation']['least_important_first']) == 3
  # The most attended token, one line per token.
  lines = stderr.splitlines()
  assert [line.split()[0] for line in lines[2:11]] == KNOWN


class Uniform(Encoder):
  """Each head attends to all tokens alike, without parameters to gate."""

  num_layers: int
  num_heads: int

  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    padding_mask_BL = Tokens.of(tokens).padding_mask
    weights_BL = padding_mask_BL / padding_mask_BL.sum(axis=1, keepdims=True)
    rows, length = padding_mask_BL.shape
    shape = (rows, self.num_heads, length, length)
    for _ in range(self.num_layers):
      weights = jnp.broadcast_to(weights_BL[:, None, None], shape)
      self.sow('intermediates', 'weights', weights)
    return x_BLD + (weights_BL[..., None] * x_BLD).sum(axis=1, keepdims=True)


@pytest.fixture(scope='module')
def odd_run(tmp_path_factory):
  """A run whose heads cannot be ablated, with attentive pooling."""
  path = tmp_path_factory.mktemp('odd') / 'run'
  config = make_small_config()
  config.train.steps = config.train.eval_every = 3
  config.model.encoder.name = 'uniform'
  config.model.pool = 'attentive'
  config.model.pool_options.attentive.num_hops = 3
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(ENCODERS, 'uniform', Uniform)
    run_lib.run(config, str(path), Signals())
  return path


@pytest.fixture
def uniform(monkeypatch):
  # For one test only: the config of another would seem to register it.
  monkeypatch.setitem(ENCODERS, 'uniform', Uniform)


@pytest.mark.usefixtures('uniform')
def test_heads_that_cannot_be_ablated_have_statistics(
  odd_run, call_command, tmp_path
):
  flags = [f'--workdir={odd_run}', f'--output={tmp_path}', '--split=validation']
  code, stdout, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 0, stderr
  result = last_json(stdout)
  assert result['ablation'] is None
  assert [row['entropy'] for row in result['heads']] == pytest.approx([1, 1])
  assert set(result['files']) == {f'heads.{kind}' for kind in figures.KINDS}
  assert 'heads are not ablated: every layer needs one selfattn' in stderr


@pytest.mark.usefixtures('uniform')
def test_the_weights_of_attentive_pooling_are_drawn(
  odd_run, call_command, tmp_path
):
  flags = [f'--workdir={odd_run}', f'--output={tmp_path}', f'--text={TEXT}']
  code, _, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 0, stderr
  labels, arrays = read(tmp_path / 'pooling-0')
  assert arrays['weights'].shape == (3, len(KNOWN))
  np.testing.assert_allclose(arrays['weights'].sum(axis=1), 1, rtol=1e-5)
  assert labels['tokens'] == KNOWN


@pytest.mark.parametrize(
  'name', ['none', 'music_transformer', 'fire+rotary', 'sinusoidal+shaw']
)
def test_untrained_methods_are_drawn(name, call_command, tmp_path):
  code, stdout, stderr = call_command(
    'inspect',
    f'--output={tmp_path}',
    f'--config.model.position.name={name}',
    '--config.model.embed_dim=8',
    '--config.model.num_heads=2',
    '--config.model.num_layers=2',
    '--config.data.max_length=11',
    cwd=tmp_path,
  )
  assert code == 0, stderr
  files = last_json(stdout)['files']
  assert {path.name for path in tmp_path.iterdir()} == set(files)
  kinds = {file.partition('.')[0].partition('-')[0] for file in files}
  assert kinds <= documented()
  expected = set()
  for part in name.split('+'):
    if part == 'fire':
      expected |= {'bias', 'distance'}
    elif part != 'none':
      expected |= {'encoding', 'gram', 'columns'}
      expected |= {'rotation'} if part == 'sinusoidal' else set()
  assert kinds == expected
  # Tables and networks of a layer have a separate figure.
  layers = {file.partition('.')[0][-1] for file in files if 'layer' in file}
  assert layers == (set() if name == 'none' else {'0', '1'})


def test_drawn_values_are_those_of_the_method(call_command, tmp_path):
  flags = ['--config.model.embed_dim=8', '--config.model.num_heads=2']
  flags += ['--config.data.max_length=11', f'--output={tmp_path}']
  flags += ['--columns=0,3,99']
  call_command(
    'inspect', *flags, '--config.model.position.name=sinusoidal', cwd=tmp_path
  )
  P = np.asarray(
    Sinusoidal(8, 2, False).encoding({}, Tokens().with_defaults(11))
  )
  np.testing.assert_allclose(read(tmp_path / 'encoding')[1]['P'], P, rtol=1e-5)
  np.testing.assert_allclose(
    read(tmp_path / 'gram')[1]['cosine'][0], analysis.gram(P[0]), rtol=1e-5
  )
  assert read(tmp_path / 'columns')[0]['columns'] == [0, 3]
  assert read(tmp_path / 'rotation')[1]['error'].max() < 1e-6

  call_command(
    'inspect', *flags, '--config.model.position.name=alibi', cwd=tmp_path
  )
  _, curves = read(tmp_path / 'distance')
  # To twice the longest text, on both sides; slopes 2^-4 and 2^-8.
  assert curves['distance'].tolist() == list(range(-22, 23))
  expected = -abs(curves['distance']) * np.array([[2.0**-4], [2.0**-8]])
  np.testing.assert_allclose(curves['bias'], expected, rtol=1e-5)
  assert read(tmp_path / 'bias')[1]['P'].shape == (1, 2, 11, 11)


class Far(Position):
  """A bias without `encoding`."""

  is_relative = True

  def bias(self, params, query, key):
    d_BLM = distances(query, key)
    return jnp.stack([d_BLM, -2.0 * d_BLM], axis=1)


def test_the_bias_of_a_new_method_is_drawn_over_distance(tmp_path):
  encoder = AttentionEncoder(
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    position=Far(8, 2, False),
    dtype=jnp.float32,
  )
  x_BLD, ids_BL = jnp.ones((1, 4, 8)), np.ones((1, 4), int)
  padding_mask_BL = jnp.ones((1, 4), bool)
  params = encoder.init(jax.random.key(0), x_BLD, padding_mask_BL)['params']
  files = position_figures.draw(
    str(tmp_path), encoder, params, x_BLD, ids_BL, 5, [0]
  )
  assert 'distance.png' in files
  _, curves = read(tmp_path / 'distance')
  assert curves['distance'].tolist() == list(range(-10, 11))
  np.testing.assert_array_equal(curves['bias'][1], -2.0 * curves['distance'])


def test_predict_draws_the_attention_of_a_text(run, call_command, tmp_path):
  path = tmp_path / 'map.png'
  flags = [f'--workdir={run}', f'--attention={path}']
  code, stdout, _ = call_command(
    'predict', *flags, f'--text={TEXT}', cwd=tmp_path
  )
  assert code == 0
  assert last_json(stdout)['count'] == 1
  names = {found.name for found in tmp_path.iterdir()}
  assert names == {'map.png', 'map.json'}
  # It overwrites its own files, but no others.
  (tmp_path / 'other.json').write_text('{}')
  flags[1] = f'--attention={tmp_path / "other.png"}'
  code, _, stderr = call_command('predict', *flags, '--text=one', cwd=tmp_path)
  assert (code, 'would overwrite' in stderr) == (2, True)
  assert (tmp_path / 'other.json').read_text() == '{}'
  code, _, stderr = call_command(
    'predict', *flags[:1], '--attention=.png', '--text=one', cwd=tmp_path
  )
  assert (code, 'NAME.png' in stderr) == (2, True)
  flags[1] = f'--attention={path}'
  code, _, stderr = call_command(
    'predict', *flags, '--text=one', '--text=two', cwd=tmp_path
  )
  assert (code, '--attention' in stderr) == (2, True)
  code, _, stderr = call_command(
    'predict',
    f'--workdir={run}',
    '--attention=map.bmp',
    '--text=one',
    cwd=tmp_path,
  )
  assert (code, 'is not NAME.png' in stderr) == (2, True)


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--text=a'], '--text needs --workdir'),
    (['--split=test'], '--split needs --workdir'),
    ([], '--output or --workdir is required'),
    (['--workdir=RUN', '--text='], "'' has no tokens"),
    (['--workdir=RUN', '--config.seed=3'], 'drop --config'),
    (['--workdir=RUN', '--length=1'], '--length=1 must be'),
    (['--workdir=RUN', '--columns=six'], '--columns=six'),
    (['--workdir=gs://none/run'], '--output is required'),
    (['--workdir=RUN', '--split=all'], 'split'),
    (['--output='], '--output or --workdir is required'),
    (['--output=FILE'], '--output: '),
    (['--workdir=RUN', '--output=FILE'], '--output: '),
    (['--workdir=RUN', '--text=\udcff'], 'is not UTF-8'),
    (
      ['--output=OUT', '--config.model.encoder.name=cnn'],
      'config.model.encoder.name',
    ),
    (
      [
        '--output=OUT',
        '--config.model.position.name=learned',
        '--length=9999',
      ],
      '--length=9999 is more than',
    ),
  ],
)
def test_wrong_input_is_one_line(flags, words, run, call_command, tmp_path):
  (tmp_path / 'file').touch()
  paths = {'RUN': run, 'OUT': tmp_path / 'out', 'FILE': tmp_path / 'file'}
  for name, path in paths.items():
    flags = [flag.replace(name, str(path)) for flag in flags]
  code, _, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 2, stderr
  assert words in stderr.splitlines()[-1]
  assert not (tmp_path / 'out').exists()


def test_parts_are_drawn_with_parameters_of_the_model_and_of_each_layer():
  """Parts with parameters in the model, combined with parts in layers."""
  method = positions.make({'kerple': {}, 't5': {'shared': False}}, 8, 2, False)
  encoder = AttentionEncoder(3, 2, 4, method, jnp.float32)
  x_BLD, padding_mask = jnp.zeros((1, 5, 8)), jnp.ones((1, 5), bool)
  params = encoder.init(jax.random.key(0), x_BLD, padding_mask)['params']
  found = {
    name: (type(part).__name__, params)
    for name, part, params in position_figures._methods(encoder, params)
  }
  assert found.keys() == {'-kerple', *(f'-t5-layer{n}' for n in range(3))}
  assert found['-kerple'] == ('Kerple', params['position']['kerple'])
  for n in range(3):
    kept = params[f'block_{n}']['attention']['position']['t5']
    assert found[f'-t5-layer{n}'] == ('T5', kept)


@pytest.mark.parametrize(
  ('name', 'wanted'),
  [
    ('cope+complex_order', {'bias-cope-layer0', 'encoding-complex_order'}),
    ('forgetting', {'bias-layer0'}),
    ('pope', {'encoding-layer0'}),
  ],
)
def test_a_method_that_reads_the_text_is_drawn(
  name, wanted, tmp_path, call_command
):
  code, stdout, stderr = call_command(
    'inspect',
    f'--output={tmp_path}',
    '--length=5',
    f'--config.model.position.name={name}',
    '--config.model.embed_dim=8',
    '--config.model.num_layers=1',
    cwd=tmp_path,
  )
  assert code == 0, stderr
  found = {name for name in last_json(stdout)['files'] if '.json' in name}
  assert {f'{name}.json' for name in wanted} <= found
  for name in found:
    _, arrays = read(tmp_path / name)
    # Drawn for a word that is there, or a term would be zero.
    assert np.any(arrays['P' if 'P' in arrays else 'cosine'])
    assert np.isfinite(arrays['P' if 'P' in arrays else 'cosine']).all()


@pytest.mark.parametrize(
  ('name', 'axes'),
  [
    ('alibi+dape', ['head', 'query', 'key']),
    ('convolutional', ['token', 'channel']),
  ],
)
def test_what_a_method_makes_of_a_text_is_drawn_with_its_tokens(
  name, axes, call_command, tmp_path
):
  config = make_small_config()
  config.train.steps = 3
  config.model.position.name = name
  config.model.encoder.attention.scan = '+' in name
  path = tmp_path / 'run'
  run_lib.run(config, str(path), Signals())
  flags = (f'--workdir={path}', f'--text={TEXT}')
  code, _, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 0, stderr
  (file,) = (path / 'inspect').glob('position-0*.json')
  assert file.stem == 'position-0' + ('-dape-layer0' if '+' in name else '')
  labels, arrays = read(file)
  assert labels == {'P': axes, 'tokens': KNOWN}
  P = arrays['P']
  count = len(KNOWN)
  assert P.shape == ((2, count, count) if '+' in name else (count, 12))
  # Another text, another term.
  flags = (f'--workdir={path}', f'--text={TEXT[:-4]}weak')
  call_command('inspect', *flags, cwd=tmp_path)
  assert abs(read(file)[1]['P'] - P).max() > 1e-4
