"""The examples of docs/in_other_code.md, and what it says of NNX."""

import pathlib
import re

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import selfattn

PAGE = pathlib.Path(__file__).parent.parent.parent / 'docs/in_other_code.md'


@pytest.fixture(scope='module')
def examples():
  """The names that each block of code defines."""
  made = []
  for code in re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL):
    names = {'__name__': 'in_other_code'}
    exec(code, names)
    made.append(names)
  return made


def test_an_nnx_module_with_the_layer_learns(examples):
  nnx_example, _ = examples
  losses, block = nnx_example['losses'], nnx_example['block']
  assert losses == sorted(losses, reverse=True)
  assert block.attention.query['kernel'].shape == (16, 16)
  assert 'to_nnx__rngs' in nnx.state(block)['attention']


def test_the_layer_in_nnx_is_that_of_linen(examples):
  block, x_BLD = examples[0]['block'], examples[0]['x_BLD']
  layer = selfattn.Attention(
    16, 4, position=examples[0]['Rotary'](16, 4, causal=True), causal=True
  )
  params = nnx.to_pure_dict(nnx.state(block.attention, nnx.Param))
  want, _ = layer.apply({'params': params}, x_BLD)
  got, _ = block.attention(x_BLD)
  np.testing.assert_allclose(got, want, atol=1e-6)


def test_the_layer_in_nnx_needs_a_first_call():
  layer = nnx.bridge.ToNNX(selfattn.Attention(16, 4), rngs=nnx.Rngs(0))
  with pytest.raises(flax.errors.ScopeCollectionNotFound):
    layer(jnp.zeros((1, 3, 16)))


def test_sown_values_pile_up_in_nnx_until_they_are_taken_out(examples):
  block, x_BLD = examples[0]['block'], examples[0]['x_BLD']
  for count in (1, 2):
    block.attention(x_BLD, mutable=['intermediates'])
    sown = nnx.state(block, nnx.Intermediate)['attention']
    assert len(sown['weights'].get_value()) == count
    assert {'weights', 'P'} <= set(sown)
  assert nnx.pop(block, nnx.Intermediate)
  assert not nnx.state(block, nnx.Intermediate)


def test_a_cache_of_nnx_goes_on_until_it_is_taken_out(examples):
  block, x_BLD = examples[0]['block'], examples[0]['x_BLD']
  want, _ = block.attention(x_BLD)
  for _ in range(2):
    parts = [
      block.attention(part, cache_len=8, mutable=['cache'])[0]
      for part in (x_BLD[:, :5], x_BLD[:, 5:])
    ]
    got = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(got, want, atol=1e-5)
    nnx.pop(block, nnx.Cache)


def test_dropout_in_nnx_is_an_argument(examples):
  block, x_BLD = examples[0]['block'], examples[0]['x_BLD']
  dropout = selfattn.Dropout.create(jax.random.key(0), 0.5)
  dropped, _ = block.attention(x_BLD, dropout=dropout)
  again, _ = block.attention(x_BLD, dropout=dropout)
  np.testing.assert_array_equal(dropped, again)
  assert (dropped != block.attention(x_BLD)[0]).any()


def test_plain_functions_have_gradients_of_each_model(examples):
  _, plain = examples
  for name, leaf in plain['of_each'].items():
    for array in jax.tree.leaves(leaf):
      assert array.shape[0] == 3
      assert float(abs(array).max()) > 0, name
  one = jax.tree.map(lambda leaf: leaf[1], plain['models'])
  moved = plain['x_BLD'].at[:, 5].add(1.0)
  before, after = (plain['layer'](one, x) for x in (plain['x_BLD'], moved))
  # It is causal.
  np.testing.assert_array_equal(before[:, :5], after[:, :5])
