"""A published model as the values of a config."""

import json
import os
import shutil

import pytest

from configs import default
from experiments.command.errors import UserError
from experiments.settings import open_models
from experiments.settings.settings import from_config


def config_of(folder, **changes):
  config = default.get_config().to_dict()
  config['model']['pretrained'] = folder
  for key, value in changes.items():
    config['model'][key] = value
  return config


def test_the_folder_is_the_model(published_bert):
  settings = from_config(open_models.expanded(config_of(published_bert), ()))
  model = settings.model
  assert (model.embed_dim, model.mlp_dim, model.num_heads) == (16, 24, 2)
  assert str(model.block) == (
    'post(feed_forward=gelu_exact, eps=1e-12, hidden_dropout=False)'
  )
  assert str(model.pool) == 'first'
  assert str(model.head) == 'mlp(hidden_dim=16)'
  assert model.vocab_size == 90
  assert str(settings.data.vocabulary).startswith('published(path=')


def test_a_key_beside_the_folder_overrides_it(published_bert):
  changed = config_of(published_bert, position='rotary(base=500)', pool='max')
  model = from_config(open_models.expanded(changed, ())).model
  assert str(model.position[0][0]) == 'rotary(base=500)'
  assert str(model.pool) == 'max'
  # The default of a key overrides it where it is given.
  given = open_models.expanded(config_of(published_bert), {'model.position'})
  assert given['model']['position'] == 'sinusoidal'
  without = open_models.expanded(config_of(published_bert), ())
  assert without['model']['position'] == 'learned(max_len=70)'


def test_what_is_expanded_stays_as_it_is(published_bert):
  once = open_models.expanded(config_of(published_bert), ())
  assert open_models.expanded(once, ()) == once


@pytest.mark.parametrize(
  'mode',
  [
    {'pooling_mode_mean_tokens': True, 'pooling_mode_cls_token': False},
    {'pooling_mode': 'mean', 'embedding_dimension': 16},
    {'pooling_mode': ['mean']},
  ],
)
def test_a_pool_of_sentence_transformers_is_taken(
  published_bert, tmp_path, mode
):
  folder = tmp_path / 'model'
  (folder / '1_Pooling').mkdir(parents=True)
  for name in os.listdir(published_bert):
    os.symlink(os.path.join(published_bert, name), folder / name)
  (folder / '1_Pooling/config.json').write_text(json.dumps(mode))
  config = open_models.expanded(config_of(str(folder)), ())
  assert config['model']['pool'] == 'mean'
  assert config['model']['head'] == 'linear'


@pytest.mark.parametrize(
  ('config', 'line'),
  [
    (None, 'there is no folder'),
    ('{}', "model_type = None is not one of .*bert"),
    ('{"model_type": "mamba"}', "model_type = 'mamba' is not one of"),
    ('{"model_type": "bert"}', "has no field 'num_attention_heads'"),
    ('not json', 'is no JSON'),
    (
      '{"model_type": "llama", "vocab_size": 9, "hidden_size": 8, '
      '"intermediate_size": 8, "num_hidden_layers": 1, '
      '"num_attention_heads": 2, "rope_scaling": {"rope_type": "llama3"}}',
      "has no field 'low_freq_factor'",
    ),
    (
      '{"model_type": "bert", "quantization_config": {"quant_method": "fp8"}}',
      r'its weights are quantised \(fp8\)',
    ),
  ],
)  # fmt: skip
def test_a_folder_that_is_no_model_is_one_line(tmp_path, config, line):
  folder = tmp_path / 'model'
  if config is not None:
    folder.mkdir()
    (folder / 'config.json').write_text(config)
  with pytest.raises(UserError, match=line):
    open_models.expanded(config_of(str(folder)), ())


def test_a_pool_that_is_not_known_is_one_line(published_bert, tmp_path):
  folder = tmp_path / 'model'
  (folder / '1_Pooling').mkdir(parents=True)
  config = os.path.join(published_bert, 'config.json')
  os.symlink(config, folder / 'config.json')
  mode = {'pooling_mode_weightedmean_tokens': True}
  (folder / '1_Pooling/config.json').write_text(json.dumps(mode))
  with pytest.raises(UserError, match='pooling weightedmean_tokens is not'):
    open_models.expanded(config_of(str(folder)), ())


def test_what_follows_a_pool_and_is_not_read_is_one_line(
  published_bert, tmp_path
):
  folder = shutil.copytree(published_bert, tmp_path / 'model')
  kinds = 'models.Transformer', 'models.Pooling', 'models.Dense'
  modules = [{'type': f'sentence_transformers.{kind}'} for kind in kinds]
  (folder / 'modules.json').write_text(json.dumps(modules))
  with pytest.raises(UserError, match='has the module Dense, and only'):
    open_models.expanded(config_of(str(folder)), ())
  (folder / 'modules.json').write_text('{"type": "Transformer"}')
  with pytest.raises(UserError, match='is no list of modules'):
    open_models.expanded(config_of(str(folder)), ())
