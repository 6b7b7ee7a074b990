"""Whole models of transformers, of our blocks with their weights.

The arrays are made by scripts/make_layer_goldens.py.
"""

import golden_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from selfattn import positions
from selfattn.blocks import Parallel, PreNorm
from selfattn.encoders import AttentionEncoder
from selfattn.tokens import Tokens

GOLDENS = golden_arrays.stored('layers')
H, K, F = 4, 4, 10
D = H * K
GATED = {'mlp_in': 'gate_proj', 'mlp_gated': 'up_proj', 'mlp_out': 'down_proj'}
PLAIN = {'mlp_in': 'fc1', 'mlp_out': 'fc2'}
TWO_NORMS = {
  'norm_attention': 'input_layernorm',
  'norm_mlp': 'post_attention_layernorm',
}


def rotary(**options):
  return positions.make({'rotary': options}, D, H, True)


def pattern():
  none = positions.NoPosition(D, H, True)
  turned = {'rotary': rotary(base=500.0)}
  return positions.layered([*[turned] * 3, {'none': none}])


# Of each model: fields of ours, and names of its submodules.
MODELS = {
  'smollm3': (
    {
      'num_layers': 5,
      'position': pattern(),
      'num_kv_heads': 2,
      'window': ((2, 0), (2, 0), (2, 0), ()),
      'block': PreNorm(feed_forward='swiglu', norm='rms'),
    },
    {'out': 'o_proj', **GATED, **TWO_NORMS, 'norm_out': 'norm'},
  ),
  'llama': (
    {
      'num_layers': 2,
      'position': rotary(),
      'block': PreNorm(feed_forward='swiglu', norm='rms'),
    },
    {'out': 'o_proj', **GATED, **TWO_NORMS, 'norm_out': 'norm'},
  ),
  'phi': (
    {
      'num_layers': 2,
      'position': rotary(fraction=0.5),
      'block': Parallel(),
    },
    {
      'out': 'dense',
      **PLAIN,
      'norm': 'input_layernorm',
      'norm_out': 'final_layernorm',
    },
  ),
}


def copied(like, case, names, end=''):
  """A tree like ours of the arrays of a case; zeros where it has none."""

  def leaf(path, zeros):
    *modules, kind = path
    if modules[0] == 'norm_out':
      where = names['norm_out']
    else:
      layer, module = modules[0].removeprefix('block_'), modules[-1]
      inside = 'self_attn.' if 'attention' in modules else ''
      inside = 'mlp.' if module.startswith('mlp_') else inside
      default = f'{module[0]}_proj'
      where = f'layers.{layer}.{inside}{names.get(module, default)}'
    suffix = 'bias' if kind == 'bias' else 'weight'
    array = GOLDENS.get(f'{case}/{where}.{suffix}{end}', np.zeros(zeros.shape))
    return jnp.asarray(array.T if kind == 'kernel' else array)

  flat = traverse_util.flatten_dict(like)
  return traverse_util.unflatten_dict(
    {path: leaf(path, zeros) for path, zeros in flat.items()}
  )


@pytest.mark.parametrize('case', MODELS)
def test_our_blocks_are_those_of_the_model(case):
  """Vectors after all layers, and gradients, of parameters and of inputs."""
  fields, names = MODELS[case]
  encoder = AttentionEncoder(
    num_heads=H, mlp_dim=F, dtype=jnp.float32, causal=True, **fields
  )
  x, cotangent = GOLDENS[f'{case}/x'], GOLDENS[f'{case}/cotangent']
  like = jax.eval_shape(encoder.init, jax.random.key(0), x, Tokens())['params']

  def total(params, x):
    output = encoder.apply({'params': params}, x, Tokens())
    return (output * cotangent).sum(), output

  differentiate = jax.jit(jax.grad(total, (0, 1), has_aux=True))
  grads, output = differentiate(copied(like, case, names), x)
  np.testing.assert_allclose(
    output, GOLDENS[f'{case}/output'], rtol=1e-5, atol=1e-5
  )
  theirs = copied(like, case, names, '_grad'), GOLDENS[f'{case}/x_grad']
  for ours, want in zip(
    jax.tree.leaves(grads), jax.tree.leaves(theirs), strict=True
  ):
    # Of biases that it does not have, there is nothing to compare with.
    if want.any():
      np.testing.assert_allclose(ours, want, rtol=1e-4, atol=1e-4)
