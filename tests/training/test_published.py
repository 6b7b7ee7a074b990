"""Runs that begin with a published model, and end as one."""

import json
import os
import shutil

import conftest
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from configs import default
from experiments import predict
from experiments.command.errors import UserError
from experiments.data import encoding
from experiments.settings import open_models
from experiments.training import evaluation, published_exports
from experiments.training import run as run_lib
from experiments.workdir.checkpoints import leaves


def config_of(small, folder, **changes):
  """A small config that begins with the model of a folder."""
  values = small.to_dict()
  values['model'] = default.get_config().model.to_dict()
  values['model']['pretrained'] = folder
  values['optimizer']['warmup_steps'] = 0
  for key, value in changes.items():
    *sections, last = key.split('.')
    part = values
    for section in sections:
      part = part[section]
    part[last] = value
  return ConfigDict(open_models.expanded(values, set(changes)))


@pytest.fixture(scope='module')
def untrained(published_bert, tmp_path_factory):
  """The workdir of a run of zero steps."""
  path = str(tmp_path_factory.mktemp('run') / 'run')
  config = config_of(
    conftest.make_small_config(), published_bert, **{'train.steps': 0}
  )
  result = run_lib.run(config, path)
  return path, result


def test_zero_steps_are_a_run_with_the_weights_of_the_file(
  untrained, published_bert
):
  path, result = untrained
  assert result['step'] == 0
  run = evaluation.restore_params(path, 'best')
  params = leaves(run.params)
  file = load_file(os.path.join(published_bert, 'model.safetensors'))
  table = file['bert.embeddings.word_embeddings.weight']
  np.testing.assert_array_equal(params['embed/embedding'], table)
  query = file['bert.encoder.layer.1.attention.self.query.weight']
  ours = params['encoder/block_1/attention/query/kernel']
  np.testing.assert_array_equal(ours, query.T)


def test_texts_have_the_tokens_of_the_published_tokenizer(untrained):
  path, _ = untrained
  with open(os.path.join(path, 'tokenizer.json')) as file:
    stored = json.load(file)
  assert stored['truncation'] is None
  assert stored['padding'] is None
  classify = predict.load(path)
  (one, other) = classify(['the script looked dull', '[SEP] zzz'])
  assert one.label in ('positive', 'negative')
  assert np.isfinite(list(other.probabilities.values())).all()


def test_what_is_given_back_has_the_bits_of_the_file(
  untrained, published_bert, tmp_path
):
  path, _ = untrained
  run = evaluation.restore_params(path, 'best')
  tokenizer = encoding.read_tokenizer(path)
  labels = ['negative', 'positive']
  made = published_exports.write(
    run, path, tokenizer, labels, str(tmp_path), 'task'
  )
  assert made['head'] == 'text'
  before = load_file(os.path.join(published_bert, 'model.safetensors'))
  after = load_file(tmp_path / 'model.safetensors')
  assert set(after) - set(before) == {'classifier.weight', 'classifier.bias'}
  for name, array in before.items():
    np.testing.assert_array_equal(after[name], array)
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['architectures'] == ['BertForSequenceClassification']
  assert config['id2label'] == {'0': 'negative', '1': 'positive'}


def test_positions_are_changed_and_weights_of_others_are_named(
  small_config, published_bert, tmp_path, capfd
):
  config = config_of(
    small_config,
    published_bert,
    **{'train.steps': 2, 'model.position': 'rotary(base=500)'},
  )
  run_lib.run(config, str(tmp_path / 'run'))
  said = capfd.readouterr().err
  assert 'embeddings.position_embeddings.weight (not in this model)' in said
  assert 'head/kernel (not in that model)' in said
  run = evaluation.restore_params(str(tmp_path / 'run'), 'best')
  with pytest.raises(UserError, match=r'config\.model\.position = rotary'):
    published_exports.write(
      run, str(tmp_path / 'run'), None, [], str(tmp_path), 'none'
    )


@pytest.mark.parametrize(
  ('changes', 'line'),
  [
    ({'model.embed_dim': 32}, r'must be \[90, 32\].*config\.model\.embed_dim'),
    ({'model.num_layers': 1}, 'would not be used, with .*num_layers = 1'),
    ({'model.block': 'parallel'}, r'config\.model\.block'),
    ({'model.vocab_size': 5}, r'config\.model\.vocab_size = 5 must be 0, or'),
  ],
)
def test_a_key_that_makes_a_weight_unusable_is_one_line(
  small_config, published_bert, tmp_path, changes, line
):
  config = config_of(small_config, published_bert, **changes)
  with pytest.raises(UserError, match=line):
    run_lib.run(config, str(tmp_path / 'run'))


def test_elements_that_are_not_read_are_one_line(
  small_config, published_bert, tmp_path
):
  folder = str(tmp_path / 'model')
  shutil.copytree(published_bert, folder)
  path = os.path.join(folder, 'model.safetensors')
  arrays = load_file(path)
  name = 'bert.embeddings.LayerNorm.bias'
  arrays[name] = arrays[name].astype(np.int8)
  save_file(arrays, path)
  config = config_of(small_config, folder)
  with pytest.raises(UserError, match=f'{name} .*elements of type I8'):
    run_lib.run(config, str(tmp_path / 'run'))


def test_masked_tokens_have_the_mask_of_the_vocabulary(
  small_config, published_bert, tmp_path
):
  config = config_of(
    small_config,
    published_bert,
    **{'task': 'masked_tokens', 'train.steps': 2},
  )
  result = run_lib.run(config, str(tmp_path / 'run'))
  assert np.isfinite(result['loss'])
  run = evaluation.restore_params(str(tmp_path / 'run'), 'best')
  assert run.program.task.mask_id == 4
  assert 'mask' not in leaves(run.params)
