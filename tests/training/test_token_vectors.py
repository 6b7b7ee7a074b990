"""Runs that begin with vectors of words."""

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


@pytest.mark.slow
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
  changed = file.read_text().replace('3.5', '3.25')
  before = file.rename(tmp_path / 'before')
  file.write_text(changed)
  with pytest.raises(UserError, match=r'vectors.txt of .* has changed'):
    run_lib.run(config, str(path), Signals())
  # A run that is done does not need the file.
  before.replace(file)
  assert run_lib.run(config, str(path), Signals())['split'] == 'test'
  file.unlink()
  assert predict.load(str(path))(['the plot'])[0].label
  assert run_lib.run(config, str(path), Signals())['split'] == 'test'


@pytest.mark.slow
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
