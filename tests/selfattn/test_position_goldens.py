"""Position methods and attention features against other libraries.

The arrays are made by scripts/make_position_goldens.py, which names the
libraries and their versions.
"""

import importlib.util
import pathlib

import golden_arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import masks
from selfattn.attention import Attention
from selfattn.backends import attend
from selfattn.positions import POSITIONS
from selfattn.positions.biases import slopes
from selfattn.positions.distances import skew
from selfattn.tokens import Tokens
from tests.conftest import at, draw, normal

ROOT = pathlib.Path(__file__).parent.parent.parent
GOLDENS = golden_arrays.stored('positions')
close = {'rtol': 1e-5, 'atol': 1e-5}
H, K = 4, 6


@pytest.mark.parametrize('width', [11, 14])
@pytest.mark.parametrize('layout', ['concatenated', 'tensor2tensor'])
def test_sinusoids_of_roformer_and_tensor2tensor(layout, width):
  method = POSITIONS['sinusoidal'](width, 1, False, layout=layout)
  found = method.encoding({}, Tokens().with_defaults(20))[0]
  np.testing.assert_allclose(
    found, GOLDENS[f'sinusoidal/{layout}_{width}'], **close
  )


@pytest.mark.parametrize('direction', ['bidirectional', 'causal'])
@pytest.mark.parametrize(
  ('buckets', 'farthest'), [(32, 128), (8, 20), (16, 64)]
)
def test_t5_buckets(direction, buckets, farthest):
  method = POSITIONS['t5'](
    H * K,
    H,
    direction == 'causal',
    num_buckets=buckets,
    max_distance=farthest,
  )
  np.testing.assert_array_equal(
    method.buckets(GOLDENS['t5/distances']),
    GOLDENS[f't5/{direction}_{buckets}_{farthest}'],
  )


@pytest.mark.parametrize('direction', ['bidirectional', 'causal'])
def test_a_layer_of_t5(direction):
  """Its bias, and its output, with queries scaled up as it does not scale."""
  case = golden_arrays.case('positions', f't5/{direction}')
  causal = direction == 'causal'
  method = POSITIONS['t5'](H * K, H, causal)
  table = {'table': case['relative_attention_bias.weight']}
  row = Tokens().with_defaults(case['x'].shape[1])
  bias = method.bias(table, row, row)
  seen = (
    np.tri(case['x'].shape[1], dtype=bool) if causal else np.ones((1, 1), bool)
  )
  np.testing.assert_allclose(
    np.where(seen, bias, 0), np.where(seen, case['bias'], 0), **close
  )
  params = {
    name: {'kernel': case[f'{key}.weight'].T * scale}
    for name, key, scale in (
      ('query', 'q', K**0.5),
      ('key', 'k', 1),
      ('value', 'v', 1),
      ('out', 'o', 1),
    )
  }
  layer = Attention(H * K, H, use_bias=False, position=method, causal=causal)
  found, _ = layer.apply({'params': params}, case['x'], position_params=table)
  np.testing.assert_allclose(found, case['output'], **close)


def test_alibi_slopes():
  for heads in range(1, 17):
    want = GOLDENS[f'alibi/slopes_{heads}']
    np.testing.assert_allclose(slopes(heads), want, rtol=1e-6)


def test_alibi_biases():
  method = POSITIONS['alibi'](12, 6, True)
  row = Tokens().with_defaults(7)
  bias = method.bias({}, row, row)[0]
  np.testing.assert_allclose(bias, GOLDENS['alibi/symmetric'], **close)
  # BLOOM's depends on the key alone, which under a causal mask is the same up
  # to a number for each query.
  keys = GOLDENS['alibi/keys'].reshape(6, 1, 7)
  hidden = np.where(np.tri(7, dtype=bool), 0, -np.inf)[None]
  np.testing.assert_allclose(
    jax.nn.softmax(bias + hidden), jax.nn.softmax(keys + hidden), **close
  )


@pytest.mark.parametrize(
  ('case', 'options'),
  [
    ('half', {}),
    ('interleaved', {'layout': 'interleaved'}),
    ('partial', {'layout': 'interleaved', 'fraction': 4 / 6}),
  ],
)
def test_rotations_with_an_offset(case, options):
  x_BLHK = GOLDENS['rotary/x'].swapaxes(1, 2)
  method = POSITIONS['rotary'](H * K, H, False, **options)
  here = at(np.arange(5, 12)[None])
  found, _ = method.rotate({}, x_BLHK, x_BLHK, here, here)
  np.testing.assert_allclose(
    found.swapaxes(1, 2), GOLDENS[f'rotary/{case}'], **close
  )


@pytest.mark.parametrize(
  ('theirs', 'ours'),
  [('linear', 'linear'), ('yarn', 'yarn'), ('dynamic', 'ntk')],
)
def test_scaled_rotations(theirs, ours):
  method = POSITIONS['rotary'](128, 2, False, scaling=ours, factor=4.0)
  np.testing.assert_allclose(
    method.rates(), GOLDENS[f'rotary_scaling/{theirs}_rates'], rtol=2e-6
  )
  plain = POSITIONS['rotary'](128, 2, False)
  assert abs(method.rates() / plain.rates() - 1).max() > 0.7
  # The amplitude of queries and keys: cosine squared plus sine squared.
  cos, sin = jnp.split(method.encoding({}, at(np.array([[3]]))), 2, axis=-1)
  factor = GOLDENS[f'rotary_scaling/{theirs}_factor']
  np.testing.assert_allclose(
    cos**2 + sin**2, np.full(cos.shape, factor**2), rtol=1e-5
  )


def test_shaw_keys_of_wav2vec2_bert():
  method = POSITIONS['shaw'](H * K, H, False, max_distance=3)
  q_BLHK = GOLDENS['shaw/q'].swapaxes(1, 2)
  params = {'keys': GOLDENS['shaw/table']}
  want = GOLDENS['shaw/scores']
  query, key = (Tokens().with_defaults(n) for n in want.shape[2:])
  for found in (
    method.content(params, q_BLHK, None, query, key),
    jax.jit(method.content)(params, q_BLHK, None, query, key),
  ):
    np.testing.assert_allclose(found * K**-0.5, want, **close)


def test_the_shift_of_xlnet():
  x, want = GOLDENS['skew/x'], GOLDENS['skew/shifted']
  # Its columns run over distances -L to L - 1, ours from 1 - L.
  np.testing.assert_array_equal(skew(jnp.asarray(x[..., 1:])), want)


@pytest.mark.parametrize('backend', ['reference', 'chunked', 'xla'])
def test_grouped_heads_of_pytorch(backend):
  q, k, v = (
    jnp.asarray(GOLDENS[f'attention/{n}']).swapaxes(1, 2) for n in 'qkv'
  )
  grouped, _ = attend(q, k, v, backend=backend)
  np.testing.assert_allclose(grouped, GOLDENS['attention/grouped'], **close)
  one, _ = attend(q, k[:, :, :1], v[:, :, :1], backend=backend)
  np.testing.assert_allclose(one, GOLDENS['attention/multi_query'], **close)


@pytest.mark.parametrize('backend', ['reference', 'chunked'])
def test_the_soft_cap_of_gemma_2(backend):
  q, k, v = (
    jnp.asarray(GOLDENS[f'attention/{n}']).swapaxes(1, 2) for n in 'qkv'
  )
  found, _ = attend(q, k, v, softcap=0.7, backend=backend)
  np.testing.assert_allclose(found, GOLDENS['attention/softcap'], **close)
  plain, _ = attend(q, k, v)
  assert abs(found - plain).max() > 1e-2


def test_query_and_key_norms_of_qwen_3():
  layer = Attention(H * K, H, qk_norm=True)
  x_BLD = normal(0, (2, 5, H * K))
  params = draw(layer.init, jax.random.key(1), x_BLD)['params']
  scales = {'scale': GOLDENS['attention/norm_scale']}
  params = params | {'query_norm': scales, 'key_norm': scales}
  _, weights = layer.apply({'params': params}, x_BLD, return_weights=True)

  def normalised(name):
    x = x_BLD @ params[name]['kernel'] + params[name]['bias'][None, None]
    x = x.reshape(2, 5, H, K)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * scales['scale'][None, None, None]

  scores = jnp.einsum('blhk,bmhk->bhlm', normalised('query'), normalised('key'))
  np.testing.assert_allclose(weights, jax.nn.softmax(scores * K**-0.5), **close)
  # The same formula on the library's own input.
  q = GOLDENS['attention/q']
  q = q / np.sqrt((q**2).mean(-1, keepdims=True) + 1e-6) * scales['scale']
  np.testing.assert_allclose(q, GOLDENS['attention/norm'], **close)


def test_windows_of_transformers():
  tokens = Tokens().with_defaults(7)
  both = masks.visible(tokens, tokens, window=(2, 2))[0, 0]
  np.testing.assert_array_equal(both, GOLDENS['attention/window_2_2'])
  # Its overlay for causal models hides nothing ahead: the causal mask does.
  left = masks.visible(tokens, tokens, window=(2, -1))[0, 0]
  np.testing.assert_array_equal(left, GOLDENS['attention/window_2_left'])


@pytest.mark.oracle
def test_the_libraries_still_give_these_arrays():
  """Needs what scripts/make_position_goldens.py imports."""
  pytest.importorskip('transformers')
  pytest.importorskip('x_transformers')
  pytest.importorskip('rotary_embedding_torch')
  path = ROOT / 'scripts/make_position_goldens.py'
  spec = importlib.util.spec_from_file_location('make_goldens', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  for name, array in module.make().items():
    np.testing.assert_allclose(GOLDENS[name], array, rtol=1e-6, atol=1e-6)
