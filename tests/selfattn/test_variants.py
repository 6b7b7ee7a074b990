"""Variants of attention against other libraries.

The arrays are made by scripts/make_text_goldens.py, which names the libraries.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from test_text_goldens import B, D, H, K, L, case

from selfattn.attention import Attention
from selfattn.blocks import PreNorm
from selfattn.encoders import AttentionEncoder
from selfattn.layers import Layer
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens

close = {'rtol': 1e-5, 'atol': 1e-5}


def equals(found, want):
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def gradients(apply, c, params):
  """Of the sum of the output, which is checked, times the library's cotangent,
  to parameters and x."""

  def total(params, x):
    output = apply(params, x)
    return (output * c['cotangent']).sum(), output

  differentiate = jax.jit(jax.grad(total, (0, 1), has_aux=True))
  grads, output = differentiate(params, c['x'])
  np.testing.assert_allclose(output, c['output'], **close)
  equals(grads[1], c['x_grad'])
  return grads[0]


def kernels(c, **names):
  """Parameters of dense layers without a bias, by our names of theirs."""
  return {
    ours: {'kernel': jnp.asarray(c[theirs].T)} for ours, theirs in names.items()
  }


# --- output gates ------------------------------------------------------------


def test_the_gate_of_each_channel_of_qwen_3_next():
  c = case('output_gate/elementwise')
  layer = Attention(
    D, H, num_kv_heads=H // 2, use_bias=False, causal=True, qk_norm=True,
    output_gate='elementwise',
  )  # fmt: skip

  def ours(end='', one=0):
    params = kernels(
      c,
      key=f'k_proj.weight{end}',
      value=f'v_proj.weight{end}',
      out=f'o_proj.weight{end}',
    )
    # Its projection makes the query of a head, then the gate.
    both = c[f'q_proj.weight{end}'].T.reshape(D, H, 2, K)
    for index, name in enumerate(('query', 'gate')):
      params[name] = {'kernel': jnp.asarray(both[:, :, index].reshape(D, D))}
    for mine, theirs in (('query_norm', 'q_norm'), ('key_norm', 'k_norm')):
      params[mine] = {'scale': one + jnp.asarray(c[f'{theirs}.weight{end}'])}
    return params

  grads = gradients(
    lambda params, x: layer.apply({'params': params}, x)[0], c, ours(one=1)
  )
  jax.tree.map(equals, grads, ours('_grad'))


def test_the_gate_of_each_head_of_x_transformers():
  c = case('output_gate/headwise')
  layer = Attention(D, H, output_gate='headwise')

  def ours(end=''):
    return kernels(
      c, query=f'to_q.weight{end}', key=f'to_k.weight{end}',
      value=f'to_v.weight{end}', gate=f'to_v_head_gate.weight{end}',
      out=f'to_out.weight{end}',
    )  # fmt: skip

  params = ours()
  for dense in params.values():
    dense['bias'] = jnp.zeros(dense['kernel'].shape[1])
  params['gate']['bias'] = jnp.asarray(c['to_v_head_gate.bias'])
  grads = gradients(
    lambda params, x: layer.apply({'params': params}, x)[0], c, params
  )
  equals(grads['gate']['bias'], c['to_v_head_gate.bias_grad'])
  # Other biases are not in the library.
  of_kernels = {n: {'kernel': grads[n]['kernel']} for n in grads}
  jax.tree.map(equals, of_kernels, ours('_grad'))


# --- differential attention --------------------------------------------------


def by_head(kernel):
  """Rows of pairs of heads, (H/2 2K, D), as rows of heads, (H K, D)."""
  rows = kernel.reshape(H // 2, 2, K, D).swapaxes(0, 1)
  return {'kernel': jnp.asarray(rows.reshape(D, D))}


def test_the_layer_of_diff_llama_and_its_gradients():
  c = case('differential')
  normaliser = NORMALISERS['differential'](H, head_dim=K)
  layer = Attention(
    D, H, num_kv_heads=H // 2, use_bias=False, causal=True,
    normaliser=normaliser,
  )  # fmt: skip

  def ours(end):
    params = kernels(
      c, **{n: f'{n[0]}_proj.weight{end}' for n in ('query', 'key', 'value')}
    )
    params['out'] = by_head(c[f'o_proj.weight{end}'].T)
    params['normaliser'] = {
      f'lambda_{n}': jnp.asarray(c[f'lambda_{n}{end}'])
      for n in ('q1', 'k1', 'q2', 'k2')
    }
    return params

  grads = gradients(
    lambda params, x: layer.apply({'params': params}, x, layer=Layer(1, 2))[0],
    c,
    ours(''),
  )
  jax.tree.map(equals, grads, ours('_grad'))


# --- value residuals ---------------------------------------------------------


def stack_of_x_transformers(c):
  """Our parameters of its stack of three layers."""

  def norm(name):
    # Its scales are stored less one.
    return {'scale': 1 + jnp.asarray(c[f'{name}.gamma'])}

  params = {
    'value_residual': jnp.full((2, 2), 0.5),
    'norm_out': norm('final_norm'),
  }
  for layer in range(3):
    attention, feed_forward = 2 * layer, 2 * layer + 1
    mlp = f'layers.{feed_forward}.1.ff'
    names = {'query': 'to_q', 'key': 'to_k', 'value': 'to_v', 'out': 'to_out'}
    block = {
      'attention': kernels(
        c, **{n: f'layers.{attention}.1.{names[n]}.weight' for n in names}
      ),
      'norm_attention': norm(f'layers.{attention}.0.0'),
      'norm_mlp': norm(f'layers.{feed_forward}.0.0'),
      **kernels(c, mlp_in=f'{mlp}.0.0.weight', mlp_out=f'{mlp}.2.weight'),
    }
    block['mlp_in']['bias'] = jnp.asarray(c[f'{mlp}.0.0.bias'])
    block['mlp_out']['bias'] = jnp.asarray(c[f'{mlp}.2.bias'])
    params[f'block_{layer}'] = block
  return params


def test_values_are_means_with_the_first_as_in_x_transformers():
  c = case('value_residual')
  made = AttentionEncoder(
    3, H, D, POSITIONS['none'](D, H, False), jnp.float32,
    block=PreNorm(feed_forward='relu'), value_residual=True,
  )  # fmt: skip
  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape),
    jax.eval_shape(made.init, jax.random.key(0), c['x'], Tokens())['params'],
  )
  # Biases that the library does not have are zero.
  params = traverse_util.unflatten_dict(
    traverse_util.flatten_dict(zeros)
    | traverse_util.flatten_dict(stack_of_x_transformers(c))
  )
  grads = gradients(
    lambda params, x: made.apply({'params': params}, x, Tokens()), c, params
  )
  for layer in range(3):
    block = grads[f'block_{layer}']
    for ours, theirs in (
      ('query', 'to_q'),
      ('value', 'to_v'),
      ('out', 'to_out'),
    ):
      want = c[f'layers.{2 * layer}.1.{theirs}.weight_grad'].T
      equals(block['attention'][ours]['kernel'], want)
    want = c[f'layers.{2 * layer + 1}.1.ff.0.0.weight_grad'].T
    equals(block['mlp_in']['kernel'], want)


# --- DeBERTa with shared projections -----------------------------------------


def test_a_table_of_deberta_through_the_matrices_of_the_layer():
  c = case('deberta/shared')
  method = POSITIONS['deberta'](
    D, H, False, max_distance=3, share_projections=True
  )
  layer = Attention(D, H, position=method)
  params = kernels(
    c, query='query_proj.weight', key='key_proj.weight',
    value='value_proj.weight', out='value_proj.weight',
  )  # fmt: skip
  for name, dense in params.items():
    dense['bias'] = jnp.asarray(c.get(f'{name}_proj.bias', np.zeros(D)))

  def total(x, table):
    _, weights = layer.apply(
      {'params': params},
      x,
      position_params={'table': table},
      return_weights=True,
    )
    return (weights * c['cotangent'].reshape(weights.shape)).sum(), weights

  differentiate = jax.jit(jax.grad(total, (0, 1), has_aux=True))
  grads, weights = differentiate(c['x'], jnp.asarray(c['table']))
  jax.tree.map(equals, grads, (c['x_grad'], c['table_grad']))
  q, k = (
    (c['x'] @ params[n]['kernel'] + params[n]['bias'][None, None]).reshape(
      B, L, H, K
    )
    for n in ('query', 'key')
  )
  content = jnp.einsum('blhk,bmhk->bhlm', q, k) * (3 * K) ** -0.5
  scores = content + c['scores'].reshape(B, H, L, L)
  np.testing.assert_allclose(weights, jax.nn.softmax(scores), **close)
