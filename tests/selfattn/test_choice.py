"""What `auto` is on each platform, found by lowering for it, and chunks."""

import itertools
import re
import types

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from selfattn import choice, positions
from selfattn.backends import attend
from selfattn.choice import choose
from selfattn.dropout import Dropout
from selfattn.encoders import AttentionEncoder
from selfattn.kernels import platform_of, unsupported_reason
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens

B, L, H, K = 2, 130, 3, 8
CALLS = {'tpu': 'tpu_custom_call', 'gpu': '__cudnn$fmha'}
# As jax names them when it lowers.
LOWERED = {'tpu': 'tpu', 'gpu': 'cuda', 'rocm': 'rocm', 'cpu': 'cpu'}


@pytest.fixture(autouse=True)
def has_cudnn(monkeypatch):
  """As on a machine with an NVIDIA GPU."""
  monkeypatch.setattr(cudnn, 'check_cudnn_version', lambda: 91000)


def shapes(length=L, dtype=jnp.bfloat16):
  return [jax.ShapeDtypeStruct((B, length, H, K), dtype)] * 3


def lowered(lower_for, arrays=None, **given):
  """A call and its gradient as text, lowered for a platform."""

  def total(*arrays):
    output, _ = attend(*arrays, **given)
    return output.astype(jnp.float32).sum()

  traced = jax.jit(jax.grad(total, (0, 1, 2))).trace(*arrays or shapes())
  return traced.lower(lowering_platforms=(LOWERED[lower_for],)).as_text()


def kernels(text):
  return {name for name in CALLS.values() if name in text}


@pytest.mark.parametrize('platform', ['tpu', 'gpu', 'rocm', 'cpu'])
def test_auto_is_the_kernel_of_the_platform_it_is_compiled_for(platform):
  found = kernels(lowered(platform, platform=platform))
  assert found == ({CALLS[platform]} if platform in CALLS else set())


@pytest.fixture(params=['tpu', 'gpu'])
def own(request, monkeypatch):
  """The platform of the first device, as it seems to this process."""
  monkeypatch.setattr(choice, 'platform_of', lambda device: request.param)
  return request.param


def test_auto_without_a_platform_is_no_kernel(own):
  assert kernels(lowered(own)) == set()


def test_the_platform_is_one_of_those_listed():
  cuda, gpu = (lowered('gpu', platform=name) for name in ('cuda', 'gpu'))
  assert cuda == gpu
  message = "'nonsense' is not one of .*'cpu', 'gpu', 'tpu', 'rocm'.*'cuda'"
  for call in (
    lambda: lowered('cpu', platform='nonsense'),
    lambda: chosen(platform='nonsense'),
    lambda: unsupported_reason(**facts(platform='nonsense')),
  ):
    with pytest.raises(ValueError, match=message):
      call()


@pytest.mark.parametrize(
  ('capability', 'backend'),
  [('7.0', 'reference'), ('7.5', 'reference'), ('8.0', 'cudnn')],
)
def test_auto_is_not_cudnn_on_gpus_before_ampere(
  capability, backend, monkeypatch
):
  device = types.SimpleNamespace(compute_capability=capability)
  monkeypatch.setattr(jax, 'local_devices', lambda: [device])
  found = chosen(platform='gpu')
  assert found.backend == backend
  assert (found.reason is None) == (backend == 'cudnn')
  assert backend == 'cudnn' or f'process has {capability}' in found.reason


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_program_of_a_cpu_is_that_of_the_reference(dtype):
  given = {'arrays': shapes(dtype=dtype), 'causal': True}
  want = lowered('cpu', backend='reference', **given)
  assert lowered('cpu', **given) == want
  assert lowered('cpu', platform='cpu', **given) == want


def test_padding_segments_and_order_form_no_array_of_pairs_on_a_tpu():
  """They are compared within the kernel; a bias has an element a pair."""
  tokens = Tokens(jnp.ones((B, L), bool), segments=jnp.zeros((B, L), jnp.int32))
  given = {'platform': 'tpu', 'query_tokens': tokens, 'causal': True}
  pairs = re.compile(r'tensor<(?:\d+x){1,3}(?:130x130|256x256)xb?f')
  assert not pairs.search(lowered('tpu', **given))
  assert pairs.search(lowered('tpu', **given, bias=jnp.zeros((L, L))))


def test_order_alone_forms_no_array_of_pairs_on_a_gpu():
  given = {'platform': 'gpu', 'causal': True}
  assert 'fmhaSoftmax' in lowered('gpu', **given)
  assert 'fmhaScaleBias' in lowered('gpu', **given, mask=jnp.ones(L, bool))


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('rows', [1, B])
def test_padding_on_the_right_forms_no_array_of_pairs_on_a_gpu(causal, rows):
  """The kernel reads the number of tokens of each row."""
  given = {'platform': 'gpu', 'causal': causal}
  tokens = Tokens(jnp.ones((rows, L), bool), is_right_padded=True)
  text = lowered('gpu', query_tokens=tokens, **given)
  assert 'fmhaSoftmax' in text
  assert 'PADDING_CAUSAL' in text if causal else 'PADDING' in text
  anywhere = tokens.replace(is_right_padded=False)
  segments = tokens.replace(segments=jnp.zeros((B, L), jnp.int32))
  for tokens in anywhere, segments:
    assert 'fmhaScaleBias' in lowered('gpu', query_tokens=tokens, **given)


@pytest.mark.parametrize('tokens', [None, jnp.ones((B, L + 1), bool)])
def test_a_text_of_an_odd_length_has_a_gradient_on_a_gpu(tokens):
  tokens = Tokens(tokens, is_right_padded=True)
  given = {'platform': 'gpu', 'causal': True, 'query_tokens': tokens}
  assert kernels(lowered('gpu', arrays=shapes(L + 1), **given)) == set()


def test_padding_on_the_right_has_a_rule_for_groups_of_trials():
  tokens = Tokens(jnp.ones((B, L), bool), is_right_padded=True)

  def attention(*arrays):
    output, _ = attend(*arrays, query_tokens=tokens, platform='gpu')
    return (output.astype(jnp.float32) ** 2).sum()

  arrays = [jax.ShapeDtypeStruct((5, *x.shape), x.dtype) for x in shapes()]
  traced = jax.jit(jax.vmap(jax.grad(attention, (0, 1, 2)))).trace(*arrays)
  text = traced.lower(lowering_platforms=('cuda',)).as_text()
  assert f'tensor<{5 * B}xi32>' in text
  assert 'fmhaSoftmax' in text


def test_the_encoder_of_a_long_text_has_cudnn_on_a_gpu():
  encoder = AttentionEncoder(
    num_layers=2,
    num_heads=H,
    mlp_dim=5,
    position=POSITIONS['rotary'](H * 64, H, False),
    platform='gpu',
    dtype=jnp.bfloat16,
  )
  shape = 4, 8_192, H * 64
  found = encoder.attention_choices(shape, drops_weights=False)
  assert [str(one) for one in found] == ['cudnn', 'cudnn']


def facts(**changes):
  """Those of a call that a kernel reads."""
  return {
    'backend': 'auto',
    'platform': 'tpu',
    'dtype': jnp.bfloat16,
    'head_dim': 64,
    'has_dropout': False,
    'has_softcap': False,
    'hooks': frozenset(),
    'rotated_dim': 64,
    'normaliser': None,
    'value_dim': 64,
  } | changes


def chosen(shape=(4, H, 256, 256), **changes):
  given = {'has_pairs': False, 'has_token_masks': True} | changes
  return choose(shape=shape, **facts(**given))


@pytest.mark.parametrize(
  ('platforms', 'changes', 'reason'),
  [
    ('tpu gpu', {'has_dropout': True}, 'no dropout on the weights'),
    ('tpu gpu', {'has_softcap': True}, 'no soft cap'),
    ('tpu gpu', {'hooks': {'value'}}, 'the value hook'),
    ('tpu gpu', {'hooks': {'scores'}}, 'the scores hook'),
    ('tpu gpu', {'normaliser': NORMALISERS['sigmoid'](H)}, 'not Sigmoid'),
    ('tpu gpu', {'returns_weights': True}, 'which are returned'),
    ('gpu', {'dtype': jnp.float32}, 'not float32'),
    ('gpu', {'rotated_dim': 68}, '8, 16, ... 256 wide, not 68'),
    ('gpu', {'rotated_dim': 136}, '128 wide, as these of 136'),
    ('gpu', {'shape': (4, H, 256, 255)}, 'even lengths, not 256 and 255'),
    (
      'gpu',
      {'shape': (4, H, 255, 255), 'has_token_masks': False},
      'even lengths, not 255 and 255',
    ),
    ('tpu', {'shape': (4, H, 99, 256)}, 'hold 128 tokens, more than 99'),
  ],
)
def test_auto_says_why_it_is_not_the_kernel(platforms, changes, reason):
  for platform in platforms.split():
    found = chosen(platform=platform, **changes)
    assert found.backend == 'reference'
    assert reason in found.reason
    assert f'({choice._KERNEL_OF[platform]}: ' in str(found)
    assert chosen(platform=platform).reason is None


@pytest.mark.parametrize(
  ('backend', 'changes', 'reason'),
  [
    ('xla', {'has_dropout': True}, 'no dropout'),
    ('xla', {'has_softcap': True}, 'no soft cap'),
    ('xla', {'hooks': {'value'}}, 'value hook'),
    ('xla', {'platform': 'cpu', 'dtype': jnp.float16}, 'do not compile'),
    ('cudnn', {'platform': 'cpu'}, 'needs an NVIDIA GPU, and this is a cpu'),
    ('cudnn', {'value_dim': 68, 'platform': 'gpu'}, 'not 68'),
    ('cudnn', {'rotated_dim': 272, 'platform': None}, 'not 272'),
    ('pallas_tpu', {'platform': 'gpu'}, 'needs a TPU, and this is a gpu'),
  ],
)
def test_a_backend_that_cannot_serve_says_why(backend, changes, reason):
  given = {'backend': backend} | changes
  assert reason in unsupported_reason(**facts(**given))
  assert unsupported_reason(**facts(backend=backend, platform=None)) is None
  for other in ('auto', 'reference', 'chunked'):
    assert unsupported_reason(**facts(**given | {'backend': other})) is None


@pytest.mark.parametrize(
  ('platform', 'changes', 'backend'),
  [
    ('tpu', {}, 'pallas_tpu'),
    ('tpu', {'has_pairs': True}, 'chunked'),
    ('tpu', {'hooks': {'bias'}}, 'chunked'),
    ('gpu', {}, 'chunked'),
    ('gpu', {'has_token_masks': False}, 'cudnn'),
    ('cpu', {}, 'chunked'),
  ],
)
def test_auto_forms_no_mask_or_bias_of_many_elements(
  platform, changes, backend
):
  given = {'platform': platform} | changes
  assert (chosen(**given).backend == 'reference') == (platform == 'cpu')
  assert chosen((1, H, 32_768, 32_768), **given).backend == backend


@pytest.mark.parametrize('platform', ['tpu', 'gpu', 'rocm'])
def test_chunks_have_at_least_as_many_rows_as_matmuls_need(platform):
  rows = {}
  for batch, length in itertools.product((1, 32), (64, 300, 2_048, 32_768)):
    for name in ('cpu', platform):
      found = chosen(
        (batch, 8, length, length), backend='chunked', platform=name
      )
      rows[name, batch, length] = found.rows
  assert rows['cpu', 32, 2_048] == 64
  assert rows['cpu', 1, 300] == 218
  assert rows[platform, 32, 2_048] == 128
  assert rows[platform, 1, 32_768] == 128
  assert rows[platform, 1, 2_048] == 1_024
  assert rows[platform, 32, 64] == 64


def test_the_loop_of_a_lowered_program_has_the_chunks_of_its_platform(
  monkeypatch,
):
  monkeypatch.setattr(choice, '_CHUNK_OF_CPU', (50, 0))
  monkeypatch.setattr(choice, '_CHUNK_OF_ACCELERATORS', (128, 0))
  for platform, rows in (('cpu', 50), ('tpu', 128)):
    text = lowered(platform, platform=platform, backend='chunked')
    assert f'tensor<{-(-L // rows)}x{B}x{rows}x{H}x{K}xbf16>' in text


def test_an_encoder_passes_its_platform_on():
  """Without a device call: the platform is that of its program."""
  for drops, want in ((False, {'tpu_custom_call'}), (True, set())):
    encoder = AttentionEncoder(
      num_layers=1,
      num_heads=H,
      mlp_dim=5,
      position=POSITIONS['rotary'](H * K, H, False),
      dtype=jnp.float32,
      platform='tpu',
    )
    x = jax.ShapeDtypeStruct((B, L, H * K), jnp.float32)
    mask = jax.ShapeDtypeStruct((B, L), bool)
    params = jax.eval_shape(encoder.init, jax.random.key(0), x, mask)
    dropout = Dropout.create(jax.random.key(1), 0.1) if drops else None
    traced = jax.jit(
      lambda *given, encoder=encoder, dropout=dropout: encoder.apply(
        *given, attention_dropout=dropout
      )
    ).trace(params, x, mask)
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
    assert kernels(text) == want
    (chosen,) = encoder.attention_choices(x.shape, drops_weights=drops)
    assert (chosen.backend == 'pallas_tpu') == bool(want)


def test_each_layer_of_a_pattern_has_its_choice():
  sizes = H * K, H, False
  encoder = AttentionEncoder(
    num_layers=3,
    num_heads=H,
    mlp_dim=5,
    position=positions.layered(
      [
        {'rotary': POSITIONS['rotary'](*sizes)},
        {'cope': POSITIONS['cope'](*sizes)},
      ]
    ),
    dtype=jnp.float32,
    platform='tpu',
  )
  choices = encoder.attention_choices((B, L, H * K), drops_weights=False)
  assert [c.backend == 'pallas_tpu' for c in choices] == [True, False, True]
  kernel, reference = choice.by_layer(choices).split('; ')
  assert kernel.endswith(' in layers 0, 2')
  assert reference.endswith(' in layers 1')
  assert choice.by_layer(choices[::2]) == str(choices[0])


def test_a_device_of_another_vendor_is_used_as_a_cpu_is():
  class Other:
    platform = 'METAL'

  assert platform_of(Other()) == 'cpu'
