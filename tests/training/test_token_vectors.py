"""Runs that begin with vectors of words."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from conftest import make_small_config

from experiments import predict
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, loading
from experiments.learning.hparams import HParams
from experiments.settings.settings import from_config
from experiments.training import build, compiled
from experiments.training import run as run_lib
from experiments.workdir import checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')
LINES = '12 12\nthe {}\nnot_there {}\na {}\n'
VECTORS = np.arange(36, dtype=np.float32).reshape(3, 12) / 10


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'vectors.txt'
  path.write_text(LINES.format(*[' '.join(map(str, row)) for row in VECTORS]))
  return path


def vectors_config(file, freeze):
  config = make_small_config()
  config.model.embeddings = f'file(path={str(file)!r}, freeze={freeze})'
  config.train.steps = 2
  config.train.eval_every = 2
  config.optimizer.warmup_steps = 0
  config.optimizer.weight_decay_names = ('kernel', 'embedding')
  config.optimizer.weight_decay = 0.5
  return config


def tables(path, config):
  """The table of token embeddings at initialisation, and after the run."""
  settings = from_config(config)
  tokenizer = encoding.read_tokenizer(str(path))
  classifier = build.model(settings, tokenizer.get_vocab_size(), 2)
  first = build.init_state(settings, classifier, HParams.of(settings))
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    last = saved.restore_params(max(saved.steps()))['embed/embedding']
  return np.asarray(first.params['embed']['embedding']), np.asarray(last)


def test_words_have_their_vectors_and_the_rest_is_drawn_and_all_is_frozen(
  file, tmp_path, capfd
):
  config = vectors_config(file, freeze=True)
  path = tmp_path / 'run'
  run_lib.run(config, str(path), Signals())
  drawn, last = tables(path, config)
  ids = encoding.read_tokenizer(str(path)).get_vocab()
  expected = drawn.copy()
  expected[[ids['the'], ids['a']]] = VECTORS[[0, 2]]
  # The program of a run may round what it draws otherwise.
  np.testing.assert_allclose(last, expected, rtol=1e-6)
  err = capfd.readouterr().err
  assert f'has 2 of the {len(ids) - 2} words of the vocabulary' in err


def test_vectors_that_are_not_frozen_are_trained(file, tmp_path):
  config = vectors_config(file, freeze=False)
  path = tmp_path / 'run'
  run_lib.run(config, str(path), Signals())
  _, last = tables(path, config)
  ids = encoding.read_tokenizer(str(path)).get_vocab()
  row = last[ids['the']]
  assert (row != VECTORS[0]).any()
  np.testing.assert_allclose(row, VECTORS[0], atol=0.1)


def test_a_frozen_table_has_no_moments_and_no_part_in_the_norm(file):
  config = vectors_config(file, freeze=True)
  settings = from_config(config)
  loaded = loading.load(settings.data, '')
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  state = program.init(HParams.of(settings))
  shapes = {leaf.shape for leaf in jax.tree.leaves(state.optimizer)}
  table = state.params['embed']['embedding']
  assert table.shape not in shapes
  batch = loaded.splits['train'].batch(np.arange(16), 16, 32)
  before: Any = jax.device_get(state.params)
  state, metrics = program.train_step(
    state, program.put(batch), HParams.of(settings)
  )
  free = make_small_config()
  free.optimizer = config.optimizer
  other = compiled.make(
    from_config(free), loaded.vocabulary, loaded.label_facts
  )
  _, trained = other.train_step(
    other.init(HParams.of(settings)), other.put(batch), HParams.of(settings)
  )
  assert 0 < metrics['gradient_norm'] < trained['gradient_norm']
  after: Any = state.params
  is_same = jax.tree.map(lambda a, b: bool((a == b).all()), before, after)
  assert is_same.pop('embed') == {'embedding': True}
  assert not any(jax.tree.leaves(is_same['head']))


@pytest.mark.slow
def test_a_finished_run_predicts_without_the_file(file, tmp_path):
  path = str(tmp_path / 'run')
  config = vectors_config(file, freeze=True)
  run_lib.run(config, path, Signals())
  expected = predict.load(path)(['the plot'])
  file.unlink()
  assert predict.load(path)(['the plot']) == expected
  assert run_lib.run(config, path, Signals())['split'] == 'test'


@pytest.mark.slow
def test_trials_of_one_program_have_the_same_vectors(file, tmp_path):
  configs = [vectors_config(file, freeze=True) for _ in range(2)]
  configs[1].seed = 1
  settings = [from_config(config) for config in configs]
  loaded = loading.load(settings[0].data, '')
  program = compiled.make(settings[0], loaded.vocabulary, loaded.label_facts, 2)
  paths = [str(tmp_path / str(index)) for index in range(2)]
  runs = [
    (config.to_dict(), of_run, path)
    for config, of_run, path in zip(configs, settings, paths, strict=True)
  ]
  run_lib.run_group(runs, loaded, program, Signals())
  one, other = (
    tables(path, config)[1] for path, config in zip(paths, configs, strict=True)
  )
  is_same = (one == other).all(axis=1)
  ids = encoding.read_tokenizer(paths[0]).get_vocab()
  assert set(np.flatnonzero(is_same)) == {ids['the'], ids['a']}


def test_a_run_that_begins_anew_with_another_file_is_refused(file, tmp_path):
  config, path = vectors_config(file, freeze=False), tmp_path / 'run'
  config.train.steps = 1
  run_lib.run(config, str(path), Signals())
  facts = json.loads((path / 'vectors.json').read_text())
  (path / 'vectors.json').write_text(json.dumps(facts | {'sha256': 'other'}))
  status = json.loads((path / 'status.json').read_text())
  (path / 'status.json').write_text(json.dumps(status | {'status': 'FAILED'}))
  (path / 'checkpoints').rename(tmp_path / 'gone')
  with pytest.raises(UserError, match=f'{file} has changed'):
    run_lib.run(config, str(path), Signals())


@pytest.mark.parametrize(
  ('embeddings', 'message'),
  [
    ('file', r'config\.model\.embeddings = file: path = .. must be'),
    ("file(path='nowhere')", 'there is no file nowhere'),
  ],
)
def test_a_file_that_is_not_there_is_one_line(embeddings, message, tmp_path):
  config = make_small_config()
  config.model.embeddings = embeddings
  path = tmp_path / 'run'
  with pytest.raises(UserError, match=message):
    run_lib.run(config, str(path), Signals())
  assert not (path / 'config.json').exists()


def test_vectors_and_the_parameters_of_another_run_exclude_one_another(file):
  config = vectors_config(file, freeze=False)
  config.train.init_from = 'somewhere'
  with pytest.raises(UserError, match=r'config\.model\.embeddings.*init_from'):
    from_config(config)
