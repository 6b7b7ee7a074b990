"""init_from loads the parameters that match, and names those it skips."""

import json
import re
import shutil

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, loading
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.settings.settings import from_config
from experiments.training import compiled, sources, taken
from experiments.training import run as run_lib
from experiments.workdir import checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')


def short_config():
  config = make_small_config()
  config.train.steps = 1
  config.optimizer.warmup_steps = 0
  config.optimizer.learning_rate = 1e-9  # parameters stay what they were
  return config


def params(path, config):
  settings = from_config(config)
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  facts = LabelFacts.of(loading.read_facts(str(path)))
  template = compiled.make(settings, vocabulary, facts).template
  with checkpoints.reading(
    str(path), settings.checkpoint, settings.best
  ) as saved:
    return checkpoints.leaves(saved.restore(1, template).params)


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp('source') / 'run'
  config = short_config()
  config.seed = 5
  run_lib.run(config, str(path), Signals())
  return path


@pytest.mark.slow
def test_parameters_that_match_are_loaded_and_the_rest_is_named(
  source, tmp_path, capfd
):
  config = short_config()
  config.model.mlp_dim = 22
  config.model.pool = 'cls'
  config.train.init_from = str(source)
  path = tmp_path / 'run'
  run_lib.run(config, str(path), Signals())
  lines = capfd.readouterr().err.splitlines()
  (loaded,) = [
    line for line in lines if line.startswith('loaded parameters fr')
  ]
  (skipped,) = [line for line in lines if line.startswith('skipped parameters')]
  ours, theirs = params(path, config), params(source, short_config())
  for name, leaf in ours.items():
    same = name in theirs and leaf.shape == theirs[name].shape
    of_all = re.sub(r'block_\d+', 'block_*', name)
    assert (f' {of_all},' in f'{loaded},') == same
    assert (f' {name} (' in skipped) == (not same)
    if same:
      np.testing.assert_allclose(leaf, theirs[name], atol=1e-6)
  assert 'cls (not in that model)' in skipped
  assert 'float32[12, 20] there' in skipped


def test_parameters_of_all_blocks_are_one_word_in_the_log():
  names = ['embed/embedding', 'block_0/a', 'block_1/a', 'block_0/b']
  found = taken._by_block(names, ['block_1/b (not in that model)', 'c'])
  assert found == ['embed/embedding', 'block_*/a', 'block_0/b']


@pytest.mark.slow
def test_the_vocabulary_is_taken_and_heads_of_other_labels_are_skipped(
  source, tmp_path
):
  other = tmp_path / 'other'
  shutil.copytree(source, other)
  text = (other / 'tokenizer.json').read_text()
  (other / 'tokenizer.json').write_text(text.replace('"the"', '"teh"'))
  facts = (other / 'data.json').read_text()
  (other / 'data.json').write_text(facts.replace('negative', 'bad'))
  assert facts != (other / 'data.json').read_text()
  config = short_config()
  config.train.init_from = str(other)
  run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert '"teh"' in (tmp_path / 'run/tokenizer.json').read_text()
  ours, theirs = (
    params(tmp_path / 'run', config),
    params(source, short_config()),
  )
  for name, leaf in ours.items():
    fits = name.partition('/')[0] != 'head'
    if leaf.ndim > 1:  # those that start at zeros or ones are alike anyway
      close = np.allclose(leaf, theirs[name], atol=1e-6)
      assert close == fits, name


@pytest.mark.parametrize(
  ('key', 'there', 'here'),
  [
    ('data.vocabulary', "'word'", 'word(min_count=3)'),
    # Other splits of the same data.
    ('data.seed', '0', 3),
  ],
)
def test_a_source_that_read_other_data_is_one_line(
  key, there, here, source, tmp_path
):
  config = short_config()
  config.update_from_flattened_dict({key: here})
  config.train.init_from = str(source)
  with pytest.raises(UserError) as error:
    run_lib.run(config, str(tmp_path / 'run'), Signals())
  assert str(error.value) == (
    f"config.train.init_from = '{source}': it has config.{key} = {there}, "
    f'which is {here!r} here'
  )
  assert not (tmp_path / 'run/config.json').exists()


def test_files_of_two_folders_may_be_split_in_two_ways(tmp_path):
  first, second, gone = (tmp_path / name for name in ('1', '2', 'gone'))
  first.mkdir()
  second.mkdir()
  (tmp_path / 'link').symlink_to(first)

  def are_same(there, here):
    config = {'data.source': 'text', 'data.text.train': ('train.tsv',)}
    return sources._are_same_files(
      config | {'data.dir': str(there)}, config | {'data.dir': str(here)}
    )

  assert are_same(first, tmp_path / 'link')
  assert are_same(gone, first)  # it may have been moved
  assert not are_same(first, second)


def test_a_run_that_is_not_done_is_no_source(source, tmp_path):
  unfinished = tmp_path / 'unfinished'
  shutil.copytree(source, unfinished)
  status = json.loads((unfinished / 'status.json').read_text())
  status['status'] = 'INTERRUPTED'
  (unfinished / 'status.json').write_text(json.dumps(status))
  config = short_config()
  config.train.init_from = str(unfinished)
  with pytest.raises(UserError, match='has the status INTERRUPTED; finish'):
    run_lib.run(config, str(tmp_path / 'run'), Signals())


@pytest.fixture
def sweep(source, tmp_path):
  """A folder with two trials of each of two position methods."""
  folder = tmp_path / 'sweep'
  for name in ('sinusoidal', 'learned'):
    for seed in (0, 5):
      trial = folder / 'trials' / f'{name}-{seed}'
      shutil.copytree(source, trial)
      config = json.loads((trial / 'config.json').read_text())
      config['model']['position'] = name
      config['seed'] = seed
      (trial / 'config.json').write_text(json.dumps(config))
  return folder


@pytest.mark.parametrize(('name', 'seed'), [('sinusoidal', 0), ('learned', 5)])
def test_the_trial_of_a_sweep_with_the_same_model_and_seed_is_taken(
  name, seed, sweep
):
  config = short_config()
  config.model.position, config.seed = name, seed
  # Trials do not differ in it.
  config.model.embeddings = 'random(freeze=True)'
  config.train.init_from = str(sweep)
  with sources.opened(from_config(config)) as found:
    assert found == str(sweep / 'trials' / f'{name}-{seed}')


def test_seeds_count_only_where_a_sweep_has_several(sweep):
  for trial in (sweep / 'trials').glob('*-5'):
    shutil.rmtree(trial)
  config = short_config()
  config.seed = 3
  config.train.init_from = str(sweep)
  with sources.opened(from_config(config)) as found:
    assert found == str(sweep / 'trials/sinusoidal-0')


def test_a_sweep_of_which_no_trial_fits_is_one_line(sweep):
  config = short_config()
  config.seed, config.model.position = 5, 'rotary'
  config.train.init_from = str(sweep)
  with (
    pytest.raises(UserError) as error,
    sources.opened(from_config(config)),
  ):
    pass
  assert str(error.value) == (
    f"config.train.init_from = '{sweep}': 0 of its 4 trials have config.seed = "
    "5, config.model.position = 'rotary'; give the folder of one, such as "
    'learned-0'
  )


def test_a_source_without_checkpoints_is_refused(source, tmp_path):
  config = short_config()
  empty = tmp_path / 'empty'
  shutil.copytree(source, empty)
  shutil.rmtree(empty / 'checkpoints')
  config.train.init_from = str(empty)
  with pytest.raises(UserError, match='has no checkpoint'):
    run_lib.run(config, str(tmp_path / 'run'), Signals())


@pytest.mark.slow
def test_a_group_starts_each_trial_from_its_own_source(source, tmp_path):
  configs = [short_config(), short_config()]
  configs[1].train.init_from = str(source)
  settings = [from_config(config) for config in configs]
  loaded = loading.load(settings[0].data, '')
  program = compiled.make(settings[0], loaded.vocabulary, loaded.label_facts, 2)
  runs = [
    (config.to_dict(), each, str(tmp_path / str(index)))
    for index, (config, each) in enumerate(zip(configs, settings, strict=True))
  ]
  run_lib.run_group(runs, loaded, program, Signals())
  theirs = params(source, short_config())['embed/embedding']
  fresh, started = (
    params(tmp_path / str(index), configs[index])['embed/embedding']
    for index in range(2)
  )
  assert not np.allclose(fresh, theirs, atol=1e-3)
  np.testing.assert_allclose(started, theirs, atol=1e-6)
