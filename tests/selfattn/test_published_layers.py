"""Options of attention and of the classifier that published models have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.attention import Attention
from selfattn.classifier import TextClassifier
from selfattn.encoders import AttentionEncoder
from selfattn.positions import POSITIONS
from tests.conftest import draw, normal

B, L, D, H, G, K = 2, 6, 10, 4, 2, 6
X = normal(3, (B, L, D))
PLAIN = {'num_heads': H, 'num_kv_heads': G, 'head_dim': K, 'scale': 0.3}


def formula(params, fields):
  """Attention of every head by itself, in float64."""
  params = jax.tree.map(np.float64, params)
  x, eps = np.float64(X), 1e-6

  def projected(name):
    y = x @ params[name]['kernel'] + params[name].get('bias', 0)
    return y if name == 'out' else y.reshape(B, L, -1, K)

  def clipped(y):
    c = fields.get('clip_qkv')
    return np.clip(y, -c, c) if c else y

  def normed(y, name):
    over = fields.get('qk_norm_over', 'head')
    flat = y.reshape(B, L, -1) if over == 'all_heads' else y
    size = np.sqrt((flat**2).mean(axis=-1, keepdims=True) + eps)
    flat = flat / size * params.get(name, {}).get('scale', 1.0)
    return flat.reshape(y.shape)

  q, k, v = (clipped(projected(name)) for name in ('query', 'key', 'value'))
  if fields.get('qk_norm'):
    q, k = normed(q, 'query_norm'), normed(k, 'key_norm')
  k, v = (np.repeat(y, H // G, axis=2) for y in (k, v))
  scores = np.einsum('blhk,bmhk->bhlm', q, k) * fields['scale']
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  y = np.einsum('bhlm,bmhk->blhk', weights, v)
  if 'gate' in params:
    gate = x @ params['gate']['kernel'] + params['gate'].get('bias', 0)
    y *= np.log1p(np.exp(gate)).reshape(B, L, H, -1)
  y = y.reshape(B, L, -1) @ params['out']['kernel']
  return y + params['out'].get('bias', 0)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'use_out_bias': False},
    {'use_bias': False, 'use_out_bias': True},
    {'use_key_bias': False, 'clip_qkv': 0.4},
    {'qk_norm': True, 'qk_norm_over': 'all_heads'},
    {'qk_norm': True, 'qk_norm_over': 'each_head'},
    {'qk_norm': True, 'qk_norm_kind': 'rms_plain'},
    {'output_gate': 'headwise', 'gate_activation': 'softplus'},
    {'output_gate': 'elementwise', 'gate_activation': 'softplus'},
  ],
  ids=str,
)
def test_attention_is_its_formula(options):
  fields = PLAIN | options
  layer = Attention(D, **fields)
  params = draw(layer.init, jax.random.key(0), X)['params']
  expected = {
    'query': fields.get('use_bias', True),
    'key': fields.get('use_key_bias', fields.get('use_bias', True)),
    'out': fields.get('use_out_bias', fields.get('use_bias', True)),
  }
  assert {name: 'bias' in params[name] for name in expected} == expected
  found, _ = layer.apply({'params': params}, X)
  np.testing.assert_allclose(
    found, formula(params, fields), rtol=1e-4, atol=1e-5
  )


def classifier(position, **fields):
  made = POSITIONS[position](D, 2, False)
  encoder = AttentionEncoder(2, 2, 7, made, jnp.float32, parent=None)
  return TextClassifier(9, 3, D, encoder, **fields)


@pytest.mark.parametrize(
  'position',
  [
    pytest.param('learned', marks=pytest.mark.slow),
    pytest.param('sinusoidal', marks=pytest.mark.slow),
    'rotary',
    't5',
  ],
)
def test_padding_on_either_side_gives_the_same_logits(position):
  """Positions count from the first token of a row."""
  model = classifier(position)
  ids = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
  mask = np.array([[True] * 4, [True, True, False, False]])
  params = draw(model.init, jax.random.key(0), ids, mask)
  right = jax.jit(model.apply)(params, ids, mask)
  rolled = [np.stack([x[0], np.roll(x[1], 2)]) for x in (ids, mask)]
  for run in (model.apply, jax.jit(model.apply)):
    np.testing.assert_allclose(
      run(params, *rolled), right, rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('count', 'separator', 'rows'),
  [(-1, None, 0), (-1, 2, 2), (0, 2, 0), (1, 2, 1), (2, None, 2)],
)
def test_token_types_are_as_many_as_the_model_has(count, separator, rows):
  model = classifier('none', num_token_types=count, separator=separator)
  ids = np.array([[1, 2, 3, 2]])
  params = draw(model.init, jax.random.key(0), ids, ids > 0)['params']
  assert len(params.get('token_type', {'embedding': ()})['embedding']) == rows
  if rows == 2:
    types = np.array([[0, 0, 1, 1]]) if separator else np.zeros((1, 4), int)
    given = model.apply({'params': params}, ids, ids > 0, token_types_BL=types)
    found = model.apply({'params': params}, ids, ids > 0)
    np.testing.assert_array_equal(found, given)
    other = model.apply(
      {'params': params}, ids, ids > 0, token_types_BL=1 - types
    )
    assert not np.allclose(found, other)


def test_embeddings_may_be_narrower_than_layers_and_normalised():
  position = POSITIONS['learned'](4, 2, False, head_width=D // 2)
  encoder = AttentionEncoder(
    1, 2, 7, position, jnp.float32, embed_dim=D, token_dim=4, input_norm=True,
    input_scale=3.0, parent=None,
  )  # fmt: skip
  model = TextClassifier(9, 3, D, encoder)
  ids = np.array([[1, 2, 3]])
  params = draw(model.init, jax.random.key(0), ids, ids > 0)['params']
  assert params['embed']['embedding'].shape == (9, 4)
  assert params['encoder']['in']['kernel'].shape == (4, D)
  # Embeddings and positions, normalised, through the map: blocks see the same.
  table = np.float64(params['encoder']['position']['table'])[:3]
  x = np.float64(params['embed']['embedding'][ids[0]]) * 3 + table
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  host = jax.tree.map(np.float64, params['encoder'])
  norm, into = host['norm_in'], host['in']
  x = (x * norm['scale'] + norm['bias']) @ into['kernel'] + into['bias']
  position = POSITIONS['none'](D, 2, False)
  inner = AttentionEncoder(1, 2, 7, position, jnp.float32)
  rest = {
    n: p
    for n, p in params['encoder'].items()
    if n not in ('in', 'norm_in', 'position')
  }
  want = inner.apply({'params': rest}, jnp.asarray(x, jnp.float32)[None])
  found = encoder.apply(
    {'params': params['encoder']}, params['embed']['embedding'][ids]
  )
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
