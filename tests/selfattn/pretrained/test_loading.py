"""Files of published models: shards, types, memory, devices."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from selfattn import pretrained
from tests.conftest import ROOT

IDS = np.array([[1, 7, 9, 2], [1, 8, 2, 0]])
MASK = np.array([[True] * 4, [True, True, True, False]])


def logits(loaded):
  return loaded.module.apply(loaded.variables, IDS, MASK)


@pytest.fixture
def copied(published_bert, tmp_path):
  """A copy of a folder, which a test may change."""
  return shutil.copytree(published_bert, tmp_path / 'model')


def test_a_model_of_shards_is_that_of_one_file(published_bert, copied):
  path = copied / 'model.safetensors'
  arrays = load_file(path)
  os.remove(path)
  names = sorted(arrays)
  files = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
  for file, of_file in files.items():
    save_file({name: arrays[name] for name in of_file}, copied / file)
  index = {name: file for file, of_file in files.items() for name in of_file}
  (copied / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': index})
  )
  one, several = map(pretrained.load, (published_bert, str(copied)))
  assert sorted(several.unexpected) == sorted(one.unexpected)
  np.testing.assert_array_equal(logits(several), logits(one))
  os.remove(copied / 'b.safetensors')
  with pytest.raises(ValueError, match=r'has no b\.safetensors'):
    pretrained.load(str(copied))


def test_a_whole_file_is_read_and_not_an_index_beside_it(copied):
  index = {'bert.pooler.dense.bias': 'older.safetensors'}
  (copied / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': index})
  )
  pretrained.load(str(copied))


def renamed(folder, **names):
  """Changes names of tensors, by patterns of re."""
  path = folder / 'model.safetensors'
  arrays = load_file(path)
  for old, new in names.items():
    arrays = {re.sub(old, new, name): x for name, x in arrays.items()}
  save_file(arrays, path)


def changed(folder, **fields):
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_file_without_the_weights_of_a_layer_is_one_line(copied):
  changed(copied, num_hidden_layers=3)
  with pytest.raises(
    ValueError, match=r'lacks 16 .* as bert\.encoder\.layer\.2'
  ):
    pretrained.load(str(copied))
  changed(copied, num_hidden_layers=2)
  renamed(copied, bert='model.bert')
  with pytest.raises(
    ValueError, match=r'lacks 37 of the 37 .* has model\.bert'
  ):
    pretrained.load(str(copied), 'none')


TABLE = 'bert.embeddings.word_embeddings.weight'
DECODER = 'cls.predictions.decoder.weight'


def token_logits(folder):
  loaded = pretrained.load(str(folder), 'vocabulary')
  return logits(loaded), loaded.unexpected


def test_a_tied_matrix_has_either_name_or_both(published_bert, copied):
  want, unexpected = token_logits(published_bert)
  path = copied / 'model.safetensors'
  arrays = load_file(path)
  save_file(arrays | {DECODER: arrays[TABLE]}, path)
  found, others = token_logits(copied)
  assert others == unexpected
  np.testing.assert_array_equal(found, want)
  save_file(arrays | {DECODER: arrays[TABLE] + 1}, path)
  with pytest.raises(ValueError, match='differ, and config'):
    token_logits(copied)
  arrays[DECODER] = arrays.pop(TABLE)
  save_file(arrays, path)
  np.testing.assert_array_equal(token_logits(copied)[0], want)


def test_a_matrix_of_its_own_is_the_output_layer(published_bert, copied):
  want, _ = token_logits(published_bert)
  changed(copied, tie_word_embeddings=False)
  path = copied / 'model.safetensors'
  arrays = load_file(path)
  arrays[DECODER] = 2 * arrays[TABLE]
  arrays['cls.predictions.decoder.bias'] = np.ones(len(arrays[TABLE]), 'f')
  save_file(arrays, path)
  found, _ = token_logits(copied)
  np.testing.assert_allclose(found, 2 * want + 1, rtol=1e-4, atol=1e-4)


def test_two_outputs_without_names_are_the_default(copied):
  arrays = load_file(copied / 'model.safetensors')
  head = {'classifier.weight': np.ones((2, 16), np.float32)}
  head['classifier.bias'] = np.zeros(2, np.float32)
  save_file(arrays | head, copied / 'model.safetensors')
  assert pretrained.read_labels(str(copied)) == ['LABEL_0', 'LABEL_1']
  assert pretrained.load(str(copied), 'text').missing == []


@pytest.mark.parametrize(
  ('kind', 'head'),
  [
    ('BertForMaskedLM', 'vocabulary'),
    ('GPT2LMHeadModel', 'vocabulary'),
    ('BertForPreTraining', 'vocabulary'),
    ('ElectraForPreTraining', 'none'),
    ('BertForSequenceClassification', 'text'),
    ('BertModel', 'none'),
  ],
)
def test_the_head_is_that_of_the_class_that_wrote_the_folder(
  copied, kind, head
):
  changed(copied, architectures=[kind])
  assert pretrained.default_head(str(copied)) == head


@pytest.mark.parametrize('dtype', [np.float16, ml_dtypes.bfloat16, np.float64])
def test_elements_of_other_types_become_float32(copied, dtype):
  path = str(copied / 'model.safetensors')
  arrays = {n: a.astype(dtype) for n, a in load_file(path).items()}
  save_file(arrays, path)
  params = pretrained.load(str(copied)).variables['params']
  name = 'bert.embeddings.word_embeddings.weight'
  found = np.asarray(params['embed']['embedding'])
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, arrays[name].astype(np.float32))


def test_a_file_that_ends_early_is_one_line(copied):
  path = copied / 'model.safetensors'
  os.truncate(path, path.stat().st_size - 10)
  with pytest.raises(ValueError, match='is no whole safetensors file: '):
    pretrained.load(str(copied))
  path.write_bytes(b'')
  with pytest.raises(ValueError, match='is no whole safetensors file'):
    pretrained.load(str(copied))


def test_parameters_are_no_part_of_the_file(copied):
  loaded = pretrained.load(str(copied))
  before = np.array(logits(loaded))
  path = copied / 'model.safetensors'
  with open(path, 'r+b') as file:
    file.seek(-4000, os.SEEK_END)
    file.write(b'\x7f' * 4000)
  np.testing.assert_array_equal(logits(loaded), before)


def test_what_is_not_in_the_file_is_drawn_and_named(published_bert):
  loaded = pretrained.load(published_bert, 'text', 3)
  assert set(loaded.missing) == {'head/kernel', 'head/bias'}
  assert loaded.unexpected == []
  other = pretrained.load(published_bert, 'text', 3, key=jax.random.key(1))
  kernels = [x.variables['params']['head']['kernel'] for x in (loaded, other)]
  assert not np.array_equal(*kernels)
  vectors = pretrained.load(published_bert, 'none')
  assert vectors.missing == []
  assert 'bert.pooler.dense.weight' in vectors.unexpected


def test_a_module_works_under_transformations(published_bert):
  loaded = pretrained.load(published_bert, 'text', 3)

  def loss(params):
    return loaded.module.apply({'params': params}, IDS, MASK).sum()

  grads = jax.jit(jax.grad(loss))(loaded.variables['params'])
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
  of_rows = jax.vmap(
    lambda ids, mask: loaded.module.apply(
      loaded.variables, ids[None], mask[None]
    )[0]
  )
  found = of_rows(jnp.asarray(IDS), jnp.asarray(MASK))
  np.testing.assert_allclose(found, logits(loaded), rtol=1e-5, atol=1e-5)
  _, sown = loaded.module.apply(
    loaded.variables, IDS, MASK, mutable=['intermediates']
  )
  (weights,) = sown['intermediates']['encoder']['block_0']['attention'][
    'weights'
  ]
  assert weights.shape == (2, 2, 4, 4)


@pytest.mark.slow
def test_no_device_holds_the_whole_model(eight_devices, published_bert):
  text = """
    import sys, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from selfattn import pretrained
    mesh = Mesh(np.array(jax.devices()), ('data',))
    def place(path, array):
      axes = [None] * array.ndim
      if array.ndim and array.shape[0] % 8 == 0:
        axes[0] = 'data'
      return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))
    loaded = pretrained.load(sys.argv[1], place=place)
    block = loaded.variables['params']['encoder']['block_0']
    kernel = block['mlp_in']['kernel']
    assert kernel.addressable_shards[0].data.shape == (2, 24)
    ids = np.array([[1, 7, 9, 2]] * 8)
    one = pretrained.load(sys.argv[1])
    run = jax.jit(one.module.apply)
    np.testing.assert_allclose(
      run(loaded.variables, ids, ids > 0), run(one.variables, ids, ids > 0),
      rtol=1e-5, atol=1e-5)
  """
  eight_devices(text, published_bert)


@pytest.mark.slow
def test_memory_of_loading_is_that_of_the_parameters(tmp_path):
  """At most 1.3 times as much, above what an empty process takes."""
  text = """
    import resource, sys
    import jax, numpy as np
    from selfattn import pretrained
    folder, writes = sys.argv[1], len(sys.argv) > 2
    fields = {
      'model_type': 'bert', 'vocab_size': 60000, 'hidden_size': 512,
      'intermediate_size': 2048, 'num_hidden_layers': 6,
      'num_attention_heads': 8}
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if writes:
      model = pretrained.ARCHITECTURES['bert'](pretrained.Config(fields))
      module = pretrained.module(model, 'none')
      shapes = pretrained.abstract_params(module)
      params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
      pretrained.save(folder, model, params, fields)
    else:
      jax.numpy.ones(3).block_until_ready()
      before = peak()
      loaded = pretrained.load(folder, 'none')
      size = sum(x.nbytes for x in jax.tree.leaves(loaded.variables))
      print(size, peak() - before)
  """
  env = os.environ | {'PYTHONPATH': str(ROOT)}
  words = [sys.executable, '-c', textwrap.dedent(text)]
  folder = str(tmp_path / 'model')
  subprocess.run([*words, folder, 'write'], check=True, env=env)
  done = subprocess.run(
    [*words, folder], check=True, env=env, capture_output=True, text=True
  )
  size, grown = map(int, done.stdout.split())
  assert size > 150e6
  assert grown < 1.3 * size
