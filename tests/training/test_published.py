"""Runs that begin with a published model, and end as one."""

import json
import os
import runpy
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
from experiments.training import evaluation, exports, published_exports
from experiments.training import run as run_lib
from experiments.workdir.checkpoints import leaves
from selfattn import pretrained


def config_of(small, folder, **changes):
  """A small config that begins with the model of a folder."""
  values = small.to_dict()
  values['model'] = default.get_config().model.to_dict()
  values['model']['pretrained'] = folder
  values['optimizer']['warmup_steps'] = 0
  for key, value in changes.items():
    *sections, last = key.split('.')
    part: dict = values
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


@pytest.mark.slow
def test_an_export_has_the_special_tokens_of_the_tokenizer(untrained, tmp_path):
  path, _ = untrained
  run = evaluation.restore_params(path, 'best')
  labels = list(run.program.task.facts.names)
  exports.write(run, encoding.read_tokenizer(path), labels, str(tmp_path))
  exported = runpy.run_path(str(tmp_path / 'predict.py'))['predict']
  texts = ['the film', 'good']
  expected = [list(p.probabilities.values()) for p in predict.load(path)(texts)]
  np.testing.assert_allclose(exported(texts), expected, rtol=1e-5)
  assert np.isnan(exported([''])).all()


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture
def classifier(untrained, tmp_path):
  """A folder of a classifier with the labels of the data in another order."""
  path, _ = untrained
  run = evaluation.restore_params(path, 'best')
  folder = str(tmp_path / 'classifier')
  os.makedirs(folder)
  tokenizer = encoding.read_tokenizer(path)
  labels = ['negative', 'positive']
  published_exports.write(run, path, tokenizer, labels, folder, 'task')
  return folder


def changed_config(folder, **fields):
  path = os.path.join(folder, 'config.json')
  with open(path) as file:
    config = json.load(file)
  with open(path, 'w') as file:
    json.dump(config | fields, file)


def head_of(path):
  run = evaluation.restore_params(path, 'best')
  return np.asarray(leaves(run.params)['head/kernel'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('labels', 'columns'),
  [
    (['negative', 'positive'], [0, 1]),
    (['positive', 'negative'], [1, 0]),
    (['LABEL_0', 'LABEL_1'], [0, 1]),
    (['good', 'bad'], None),
  ],
)
def test_outputs_are_those_of_labels_of_the_same_name(
  small_config, classifier, tmp_path, labels, columns
):
  changed_config(classifier, id2label=dict(enumerate(labels)))
  path = str(tmp_path / 'run')
  changes = {'train.steps': 0, 'seed': 7}
  run_lib.run(config_of(small_config, classifier, **changes), path)
  file = load_file(os.path.join(classifier, 'model.safetensors'))
  before = file['classifier.weight'].T
  found = head_of(path)
  if columns is None:
    assert not np.array_equal(found, before)
  else:
    np.testing.assert_array_equal(found, before[:, columns])


@pytest.mark.slow
def test_a_head_with_another_number_of_outputs_is_drawn_and_named(
  small_config, classifier, tmp_path, capfd
):
  path = os.path.join(classifier, 'model.safetensors')
  arrays = load_file(path)
  for name in ('classifier.weight', 'classifier.bias'):
    arrays[name] = np.concatenate([arrays[name], arrays[name][:1]])
  save_file(arrays, path)
  config = config_of(small_config, classifier, **{'train.steps': 0})
  run_lib.run(config, str(tmp_path / 'run'))
  assert 'classifier.weight (not in this model)' in capfd.readouterr().err


@pytest.mark.slow
def test_the_average_begins_with_the_weights_of_the_file(
  small_config, published_bert, tmp_path
):
  changes = {'train.steps': 0, 'train.ema_decay': 0.9}
  config = config_of(small_config, published_bert, **changes)
  run_lib.run(config, str(tmp_path / 'run'))
  run = evaluation.restore_params(str(tmp_path / 'run'), 'best')
  file = load_file(os.path.join(published_bert, 'model.safetensors'))
  np.testing.assert_array_equal(
    leaves(run.params)['embed/embedding'],
    file['bert.embeddings.word_embeddings.weight'],
  )


@pytest.mark.slow
def test_parameters_of_another_position_method_are_no_table_of_the_file(
  small_config, published_bert, tmp_path
):
  changes = {'train.steps': 0, 'model.position': 'tupe(max_len=68)'}
  config = config_of(small_config, published_bert, **changes)
  run_lib.run(config, str(tmp_path / 'run'))
  run = evaluation.restore_params(str(tmp_path / 'run'), 'best')
  file = load_file(os.path.join(published_bert, 'model.safetensors'))
  table = file['bert.embeddings.position_embeddings.weight']
  found = leaves(run.params)['encoder/position/table']
  assert found.shape == table.shape
  assert not np.array_equal(found, table)


@pytest.mark.slow
def test_a_run_that_has_begun_needs_its_folder_no_more(
  small_config, published_bert, tmp_path
):
  folder = str(shutil.copytree(published_bert, tmp_path / 'model'))
  path = str(tmp_path / 'run')
  config = config_of(small_config, folder, **{'train.steps': 2})
  result = run_lib.run(config, path)
  shutil.rmtree(folder)
  values = config.to_dict()
  assert open_models.expanded(values, (), path) == values
  assert run_lib.run(config, path)['loss'] == result['loss']


@pytest.mark.slow
def test_what_changes_no_logit_may_be_exported(
  small_config, published_bert, tmp_path
):
  given = open_models.expanded(
    config_of(small_config, published_bert).to_dict(), ()
  )
  encoder = given['model']['encoder'].replace(')', ', remat=True)')
  changes = {
    'train.steps': 0,
    'model.encoder': encoder,
    'model.block': given['model']['block'].replace('=False', '=True'),
    'model.attention_dropout_rate': 0.25,
  }
  config = config_of(small_config, published_bert, **changes)
  path = str(tmp_path / 'run')
  run_lib.run(config, path)
  run = evaluation.restore_params(path, 'best')
  tokenizer = encoding.read_tokenizer(path)
  made = published_exports.write(
    run, path, tokenizer, ['a', 'b'], str(tmp_path), 'task'
  )
  assert made['head'] == 'text'


@pytest.mark.slow
def test_words_are_classified_and_given_back(
  small_config, published_bert, tmp_path
):
  """From a published model to a folder of transformers, and from that one."""
  lines = ['script O', 'looked O', '', 'dull B-x', 'story I-x', '']
  (tmp_path / 'rows.txt').write_text('\n'.join(lines) + '\n')
  changes = {'task': 'classify_tokens', 'train.steps': 2, 'data.source': 'text'}
  changes |= {'data.dir': str(tmp_path), 'data.text.format': 'conll'}
  for split in ('train', 'validation', 'test'):
    changes[f'data.text.{split}'] = ('rows.txt',)
  path, output = str(tmp_path / 'run'), str(tmp_path / 'given')
  run_lib.run(config_of(small_config, published_bert, **changes), path)
  run = evaluation.restore_params(path, 'best')
  os.mkdir(output)
  tokenizer = encoding.read_tokenizer(path)
  names = run.program.task.facts.names
  published_exports.write(run, path, tokenizer, list(names), output, 'task')
  config = pretrained.read_config(output)
  assert config['architectures'] == ['BertForTokenClassification']
  assert config['id2label'] == {'0': 'B-x', '1': 'I-x', '2': 'O'}
  loaded = pretrained.load(output)
  assert not loaded.missing
  text = 'dull story'
  encoded = loaded.tokenizer.encode(text)
  mask = np.array([encoded.attention_mask], bool)
  logits = loaded.module.apply(loaded.variables, np.array([encoded.ids]), mask)
  predictor = predict.load(path)
  (answer,) = predictor([text])
  assert (answer.spans is None, predictor.keys[-1]) == (False, 'spans')
  # Between [CLS] and [SEP].
  classes = [names[n] for n in np.argmax(logits[0, 1:3], axis=-1)]
  assert answer.label == classes
  # Words that are not read keep their places.
  (cut,) = predictor(['dull ' * 99])
  assert len(cut.label) == 99
  assert cut.label[0] is not None
  assert cut.label[-1] is None
  changes |= {'train.steps': 0}
  begun = str(tmp_path / 'begun')
  run_lib.run(config_of(small_config, output, **changes), begun)
  again = evaluation.restore_params(begun, 'best')
  for name, leaf in leaves(run.params).items():
    np.testing.assert_array_equal(leaves(again.params)[name], leaf)


@pytest.mark.parametrize(
  ('written_by', 'kind', 'classes'),
  [
    ('BertForTokenClassification', 'text', ['BertForSequenceClassification']),
    ('BertForMaskedLM', 'text', ['BertForSequenceClassification']),
    ('BertForPreTraining', 'vocabulary', ['BertForPreTraining']),
    ('ElectraForPreTraining', 'vocabulary', ['ElectraForMaskedLM']),
    ('GPT2LMHeadModel', 'vocabulary', ['GPT2LMHeadModel']),
    ('BertModel', 'none', ['BertModel']),
    ('', 'text', None),
  ],
)
def test_the_class_of_a_head_is_named(written_by, kind, classes):
  field = published_exports._class({'architectures': [written_by]}, kind, False)
  assert field.get('architectures') == classes


def test_an_encoder_without_its_decoder_is_of_a_class_of_its_own():
  config = {'architectures': ['T5ForConditionalGeneration']}
  config['is_encoder_decoder'] = True
  field = published_exports._class(config, 'none', False)
  assert field == {'architectures': ['T5EncoderModel']}


def test_a_file_without_the_weights_of_a_layer_is_one_line(
  small_config, published_bert, tmp_path
):
  folder = str(shutil.copytree(published_bert, tmp_path / 'model'))
  path = os.path.join(folder, 'model.safetensors')
  arrays = {f'model.{name}': x for name, x in load_file(path).items()}
  save_file(arrays, path)
  config = config_of(small_config, folder, **{'train.steps': 0})
  with pytest.raises(UserError, match=r'lacks 37 of the 37 tensors'):
    run_lib.run(config, str(tmp_path / 'run'))


def test_a_constant_of_the_file_that_is_another_number_is_one_line(
  small_config, published_bert, tmp_path, monkeypatch
):
  folder = str(shutil.copytree(published_bert, tmp_path / 'model'))
  path = os.path.join(folder, 'model.safetensors')
  save_file(load_file(path) | {'bert.beta': np.array(0.75, np.float32)}, path)
  read = pretrained.ARCHITECTURES['bert']
  monkeypatch.setitem(
    pretrained.ARCHITECTURES,
    'bert',
    lambda c: read(c).replace(constants={'beta': 0.5}),
  )
  config = config_of(small_config, folder, **{'train.steps': 0})
  with pytest.raises(UserError, match=r'bert\.beta = 0\.75 must be 0\.5'):
    run_lib.run(config, str(tmp_path / 'run'))
