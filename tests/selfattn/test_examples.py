"""Every public name has an example in its docstring, which runs."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import public_names
import pytest

from selfattn import pretrained

DOCSTRINGS = {
  path: text
  for module in public_names.MODULES
  for path, text in public_names.docstrings(module).items()
}
LLAMA = {
  'model_type': 'llama',
  'architectures': ['LlamaForCausalLM'],
  'vocab_size': 50,
  'hidden_size': 12,
  'intermediate_size': 20,
  'num_hidden_layers': 1,
  'num_attention_heads': 3,
  'num_key_value_heads': 1,
  'max_position_embeddings': 64,
  'eos_token_id': 2,
}


def run(text, names):
  """Runs the examples of a docstring, which may read and add names."""
  test = doctest.DocTestParser().get_doctest(text, names, 'example', None, 0)
  said = []
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  failed, attempted = runner.run(test, out=said.append, clear_globs=False)
  assert attempted
  assert not failed, ''.join(said)
  names.update(test.globs)


@pytest.fixture(scope='module')
def beginning(tmp_path_factory):
  """The names that examples rely on, as the docstrings of packages say."""
  names = {'folder': str(tmp_path_factory.mktemp('llama') / 'folder')}
  for package in ('selfattn', 'selfattn.pretrained'):
    run(importlib.import_module(package).__doc__, names)
  model = pretrained.model_of(LLAMA)
  shapes = pretrained.abstract_params(pretrained.module(model))
  params = jax.tree.map(lambda x: jnp.ones(x.shape), shapes)
  pretrained.save(names['folder'], model, params, LLAMA)
  return names


@pytest.mark.slow
@pytest.mark.parametrize('path', DOCSTRINGS)
def test_the_example_of_a_public_name_runs(path, beginning):
  assert '\nExamples:\n' in DOCSTRINGS[path]
  run(DOCSTRINGS[path], dict(beginning))
