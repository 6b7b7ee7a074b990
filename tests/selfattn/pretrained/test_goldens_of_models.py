"""Tiny models of transformers, as scripts/make_pretrained_goldens.py stored."""

import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from selfattn import pretrained
from tests.selfattn import golden_arrays

CASES = ('bert', 'llama_biases', 'gpt2', 'bloom', 'gemma3_text', 'mixtral')


@pytest.mark.parametrize('case', CASES)
def test_logits_and_what_is_written_are_those_of_transformers(case, tmp_path):
  golden = golden_arrays.case('pretrained', case)
  folder = pathlib.Path(tmp_path, 'model')
  folder.mkdir()
  (folder / 'config.json').write_bytes(golden['config'].tobytes())
  tensors = {
    name.removeprefix('tensors/'): array
    for name, array in golden.items()
    if name.startswith('tensors/')
  }
  save_file(tensors, folder / 'model.safetensors')
  loaded = pretrained.load(str(folder))
  assert not loaded.missing
  assert not loaded.unexpected
  mask = golden['mask']
  found = jax.jit(loaded.module.apply)(loaded.variables, golden['ids'], mask)
  want = golden['logits'][mask]
  np.testing.assert_allclose(
    np.asarray(found)[mask], want, rtol=0, atol=1e-4 * abs(want).max()
  )
  params = loaded.variables['params']
  pretrained.save(str(tmp_path / 'again'), loaded.model, params, {})
  modes = {file.stat().st_mode for file in (tmp_path / 'again').iterdir()}
  assert len(modes) == 1, 'one file is private'
  again = load_file(tmp_path / 'again' / 'model.safetensors')
  for name, array in again.items():
    before = tensors[name]
    np.testing.assert_array_equal(array.reshape(before.shape), before)
