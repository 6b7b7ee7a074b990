"""Variants of attention against other libraries, and in every form of a stack.

The arrays are made by scripts/make_text_goldens.py, which names the libraries.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from test_text_goldens import PATH, B, D, H, K, L, case

from selfattn import positions
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.encoders import AttentionEncoder
from selfattn.masks import Tokens
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.positions.deberta import TERMS
from tests.conftest import draw

with np.load(PATH) as arrays:
  GOLDENS = dict(arrays)
LAYERS, F = 3, 19
X = jax.random.normal(jax.random.key(1), (B, L, D))
close = {'rtol': 1e-5, 'atol': 1e-5}


def equals(found, want):
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def gradients(apply, c, params):
  """Of the sum of the output, which is checked, times the library's cotangent,
  to parameters and x."""

  def total(params, x):
    output = apply(params, x)
    return (output * c['cotangent']).sum(), output

  grads, output = jax.grad(total, (0, 1), has_aux=True)(params, c['x'])
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
  c = case(GOLDENS, 'output_gate/elementwise')
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
  c = case(GOLDENS, 'output_gate/headwise')
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


def test_a_layer_refuses_a_gate_that_it_does_not_have():
  layer = Attention(D, H, output_gate='channelwise')
  with pytest.raises(ValueError, match="'channelwise' is not one of"):
    layer.init(jax.random.key(0), X)


# --- differential attention --------------------------------------------------


def by_head(kernel):
  """Rows of pairs of heads, (H/2 2K, D), as rows of heads, (H K, D)."""
  rows = kernel.reshape(H // 2, 2, K, D).swapaxes(0, 1)
  return {'kernel': jnp.asarray(rows.reshape(D, D))}


def test_the_layer_of_diff_llama_and_its_gradients():
  c = case(GOLDENS, 'differential')
  normaliser = NORMALISERS['differential'](
    H, head_dim=K, lambda_init=0.8 - 0.6 * math.exp(-0.3)
  )
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
    lambda params, x: layer.apply({'params': params}, x)[0], c, ours('')
  )
  jax.tree.map(equals, grads, ours('_grad'))


def test_a_row_without_keys_is_zero_in_differential_attention():
  normaliser = NORMALISERS['differential'](H, head_dim=K)
  params = normaliser.init(jax.random.key(0))
  q = X.reshape(B, L, H, K)
  padding_mask = jnp.ones((B, L), bool).at[0].set(False)

  def total(q):
    output, _ = attend(
      q, q, q, query_tokens=padding_mask, normaliser=normaliser,
      normaliser_params=params,
    )  # fmt: skip
    return output.sum(), output

  grad, output = jax.grad(total, has_aux=True)(q)
  assert (output[0] == 0).all()
  assert (output[1] != 0).all()
  assert (grad[0] == 0).all()


def test_an_odd_number_of_heads_has_no_pairs():
  q = X.reshape(B, L, 3, 8)
  normaliser = NORMALISERS['differential'](3, head_dim=8)
  with pytest.raises(ValueError, match='even number of heads, not 3'):
    attend(q, q, q, normaliser=normaliser)


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
  c = case(GOLDENS, 'value_residual')
  made = AttentionEncoder(
    3, H, D, POSITIONS['none'](D, H, False), jnp.float32,
    activation='relu', value_residual=True,
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


def test_fresh_values_are_even_means_in_all_layers_but_the_first():
  made = encoder(value_residual=True)
  params = made.init(jax.random.key(0), X, Tokens())['params']
  np.testing.assert_array_equal(
    params['value_residual'], np.full((LAYERS - 1, 2), 0.5)
  )


def test_a_weight_of_zero_for_the_first_values_leaves_a_plain_stack():
  made = encoder(value_residual=True)
  params = init(made)['params']
  alone = jnp.tile(jnp.array([[0.0, 1.0]]), (LAYERS - 1, 1))
  found = made.apply(
    {'params': params | {'value_residual': alone}}, X, Tokens()
  )
  plain = encoder().apply({'params': params}, X, Tokens())
  np.testing.assert_allclose(found, plain, **close)


def test_a_layer_with_the_first_values_alone_does_not_read_its_own():
  made = encoder(value_residual=True)
  params = init(made)['params']
  params['value_residual'] = jnp.array([[0.0, 1.0], [1.0, 0.0]])
  grads = jax.grad(
    lambda p: (made.apply({'params': p}, X, Tokens()) ** 2).sum()
  )(params)
  of_values = [
    abs(grads[f'block_{n}']['attention']['value']['kernel']).max()
    for n in range(LAYERS)
  ]
  assert [bool(slope > 0) for slope in of_values] == [True, True, False]


# --- DeBERTa with shared projections -----------------------------------------


def test_a_table_of_deberta_through_the_matrices_of_the_layer():
  c = case(GOLDENS, 'deberta/shared')
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

  grads, weights = jax.grad(total, (0, 1), has_aux=True)(
    c['x'], jnp.asarray(c['table'])
  )
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


@pytest.mark.parametrize('terms', TERMS)
def test_a_shared_table_has_no_matrices_and_is_sown_as_it_was_used(terms):
  method = POSITIONS['deberta'](
    D, H, False, max_distance=3, share_projections=True, terms=terms
  )
  made = AttentionEncoder(LAYERS, H, F, method, jnp.float32)
  params = init(made)
  layer = params['params']['block_1']['attention']
  assert layer.keys() == {'query', 'key', 'value', 'out'}
  _, sown = made.apply(params, X, Tokens(), mutable='intermediates')
  (found,) = sown['intermediates']['block_1']['attention']['P']
  dense = layer['query' if terms == 'position_to_content' else 'key']
  table = params['params']['position']['table']
  rows = (table @ dense['kernel'] + dense['bias'][None]).reshape(-1, H, K)
  index = np.clip(np.arange(L - 1, -L, -1), -3, 2) + 3
  np.testing.assert_allclose(found, rows[index].swapaxes(0, 1), **close)


# --- in every form of a stack ------------------------------------------------

VARIANTS = {
  'headwise': {'output_gate': 'headwise'},
  'elementwise': {'output_gate': 'elementwise'},
  'value_residual': {'value_residual': True},
  'shared_projections': {
    'position': {'t5': {}, 'deberta': {'share_projections': True}}
  },
}
variants = pytest.mark.parametrize('fields', VARIANTS.values(), ids=VARIANTS)


def encoder(**given):
  """Three layers, with two query heads for each KV head."""
  fields = dict(given)
  blocks = fields.pop('position', {'alibi': {}})
  method = positions.make(blocks, D, H, fields.setdefault('causal', False))
  return AttentionEncoder(
    LAYERS, H, F, method, jnp.float32, num_kv_heads=H // 2, **fields
  )


def init(made):
  return draw(made.init, jax.random.key(0), X, Tokens())


@variants
def test_it_changes_what_is_computed(fields):
  found, plain = encoder(**fields), encoder()
  output = found.apply(init(found), X, Tokens())
  # Parameters that only the variant has are not read without it.
  assert abs(output - plain.apply(init(found), X, Tokens())).max() > 1e-2
