"""Files of published models: shards, types, memory, devices."""

import json
import os
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
  assert sorted(several.unused) == sorted(one.unused)
  np.testing.assert_array_equal(logits(several), logits(one))
  os.remove(copied / 'b.safetensors')
  with pytest.raises(ValueError, match=r'has no b\.safetensors'):
    pretrained.load(str(copied))


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
  assert set(loaded.new) == {'head/kernel', 'head/bias'}
  assert loaded.unused == []
  other = pretrained.load(published_bert, 'text', 3, key=jax.random.key(1))
  kernels = [x.variables['params']['head']['kernel'] for x in (loaded, other)]
  assert not np.array_equal(*kernels)
  vectors = pretrained.load(published_bert, 'none')
  assert vectors.new == []
  assert 'bert.pooler.dense.weight' in vectors.unused


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
