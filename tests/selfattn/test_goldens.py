"""Outputs, weights and gradients against PyTorch (scripts/make_goldens.py)."""

import golden_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import chapters
from selfattn.backends import attend

HEADS = 3
close = {'rtol': 1e-5, 'atol': 1e-5}


def parameters(golden, prefix=''):
  """PyTorch's packed projections as ours: it stores (out, in), we (in, out)."""
  kernels = np.split(golden[f'{prefix}in_proj_weight'], 3)
  biases = np.split(golden[f'{prefix}in_proj_bias'], 3)
  params = {
    name: {'kernel': kernel.T, 'bias': bias}
    for name, kernel, bias in zip(
      ('query', 'key', 'value'), kernels, biases, strict=True
    )
  }
  params['out'] = {
    'kernel': golden[f'{prefix}out_proj.weight'].T,
    'bias': golden[f'{prefix}out_proj.bias'],
  }
  return {'attention': params}


@pytest.mark.parametrize('case', ['plain', 'padded', 'causal'])
def test_multi_head_attention_equals_pytorch(case):
  golden = golden_arrays.case('attention', case)
  width = golden['query'].shape[-1]
  layer = chapters.MultiHeadAttention(width, HEADS, bias=True)
  more = {}
  if case == 'padded':
    more['valid_lens'] = jnp.array([7, 4])
  if case == 'causal':
    more['mask'] = jnp.tril(jnp.ones((1, 1, 5, 7), bool))

  def scalar(params, inputs):
    output, weights = layer.apply({'params': params}, *inputs, **more)
    return (output * golden['probe']).sum(), (output, weights)

  names = ('query', 'key', 'value')
  inputs = [jnp.asarray(golden[name]) for name in names]
  differentiate = jax.jit(jax.grad(scalar, (0, 1), has_aux=True))
  grads, (output, weights) = differentiate(parameters(golden), inputs)
  np.testing.assert_allclose(output, golden['output'], **close)
  np.testing.assert_allclose(weights, golden['weights'], **close)
  for grad, name in zip(grads[1], names, strict=True):
    np.testing.assert_allclose(grad, golden[f'grad_{name}'], **close)
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_allclose(ours, theirs, **close),
    grads[0],
    parameters(golden, 'grad_'),
  )


@pytest.mark.parametrize('backend', ['reference', 'xla'])
def test_attend_equals_pytorch_with_mask_and_bias(backend):
  golden = golden_arrays.case('attention', 'functional')

  def scalar(q, k, v, bias):
    output, _ = attend(
      *(x.swapaxes(1, 2) for x in (q, k, v)),
      mask=golden['mask'],
      bias=bias,
      backend=backend,
    )
    output = output.swapaxes(1, 2)
    return (output * golden['probe']).sum(), output

  names = ('q', 'k', 'v', 'bias')
  arrays = [jnp.asarray(golden[name]) for name in names]
  differentiate = jax.jit(jax.grad(scalar, (0, 1, 2, 3), has_aux=True))
  grads, output = differentiate(*arrays)
  np.testing.assert_allclose(output, golden['output'], **close)
  for grad, name in zip(grads, names, strict=True):
    np.testing.assert_allclose(grad, golden[f'grad_{name}'], **close)
