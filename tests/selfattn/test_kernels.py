"""Kernels of other libraries at lengths past their blocks, and their limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental.pallas import tpu as pallas_tpu

from selfattn.backends import attend
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens

B, H = 2, 2
# Lengths of queries and keys that fill a block, pass it, and pass two; what is
# hidden; and the width of a head.
CASES = {
  'a window and padding past two blocks': (300, 300, 'both', 8),
  'a mask of few rows': (130, 260, 'mask', 24),
  'packed rows, by token': (260, 260, 'packed', 8),
}


def hidden(L, M, kinds):
  """What attend takes to hide some keys; a row or more then sees none."""
  given = {}
  if kinds == 'packed':
    # Segments end within blocks and between them, and one is all padding.
    is_token = (jnp.arange(L) < L - 9) & (jnp.arange(L) // 50 != 3)
    segments = jnp.arange(L)[None] // jnp.array([[50], [128]])
    given['query_tokens'] = Tokens(is_token[None], segments=segments)
    given['causal'] = True
  if kinds == 'both':
    given['query_tokens'] = jnp.arange(L)[None] < jnp.array([[L - 9], [0]])
    given['window'] = (8, 8)
  if kinds == 'mask':
    mask = np.random.default_rng(1).random((L, M)) < 0.5
    mask[5], mask[:, :128] = False, False
    given |= {'mask': jnp.asarray(mask), 'key_tokens': Tokens()}
  return given


@functools.cache
def run(backend, L, M, kinds, K):
  """Gradients of everything, and the output."""
  rng = np.random.default_rng(0)
  shapes = (B, L, H, K), (B, M, 1, K), (B, M, 1, K), (1, H, L, M)
  arrays = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]
  given = hidden(L, M, kinds)

  @jax.jit
  def differentiate(*arrays):
    def total(q, k, v, bias):
      # Packed rows are compared in the kernel; a bias is an array of pairs.
      more = {} if kinds == 'packed' else {'bias': bias}
      output, _ = attend(q, k, v, backend=backend, **given, **more)
      return (output**2).sum() + output.sum(), output

    return jax.grad(total, (0, 1, 2, 3), has_aux=True)(*arrays)

  return jax.device_get(differentiate(*arrays))


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
@pytest.mark.parametrize(
  'backend', ['xla', pytest.param('pallas_tpu', marks=pytest.mark.slow)]
)
def test_hidden_rows_and_blocks_are_those_of_the_reference(
  backend, case, monkeypatch
):
  """In jax's interpreter of TPU kernels: outputs and all gradients."""
  want = run('reference', *case)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  with pallas_tpu.force_tpu_interpret_mode():
    found = run(backend, *case)
  sees_none = ~np.abs(want[1]).any(axis=(2, 3))
  assert sees_none.any()
  assert (found[1][sees_none] == 0).all()
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_mask_that_is_added_hides_in_the_kernel_of_tpus(monkeypatch):
  """The lowest number, and keys of padding too: no overflow, and no NaN."""
  L, M, K = 3, 5, 4
  rng = np.random.default_rng(0)
  shapes = (B, L, H, K), (B, M, H, K), (B, M, H, K)
  arrays = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]
  bias = np.zeros((B, 1, L, M), np.float32)
  bias[0, 0, 0] = bias[1, 0, 2, 1] = np.finfo(np.float32).min
  key = np.array([[True] * 3 + [False] * 2] * B)

  def loss(*arrays, **given):
    output, _ = attend(*arrays, key_tokens=key, **given)
    return (output**2).sum() + output.sum(), output

  def run(**given):
    differentiate = jax.grad(loss, (0, 1, 2), has_aux=True)
    return jax.jit(lambda *arrays: differentiate(*arrays, **given))(*arrays)

  want = run(mask=bias == 0)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  with pallas_tpu.force_tpu_interpret_mode():
    found = run(bias=bias, backend='pallas_tpu')
  assert not found[1][0, 0].any()
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('dtypes', ['fbb', 'bff', 'ffb', 'hbf'])
def test_keys_and_values_of_other_types_are_taken(dtypes):
  """As in the reference, the output has the type of the queries."""
  kinds = {'f': jnp.float32, 'b': jnp.bfloat16, 'h': jnp.float16}
  rng = np.random.default_rng(0)
  q, k, v = (
    jnp.asarray(rng.standard_normal((B, length, H, 8)), kinds[kind])
    for length, kind in zip((3, 5, 5), dtypes, strict=True)
  )
  want, _ = attend(q, k, v, key_tokens=Tokens())
  found, _ = attend(q, k, v, key_tokens=Tokens(), backend='xla')
  assert found.dtype == want.dtype == q.dtype
  np.testing.assert_allclose(
    found.astype(jnp.float32), want.astype(jnp.float32), atol=0.03
  )


def test_a_value_term_needs_values_as_wide_as_keys():
  """In every backend, since it is added to what the values give."""
  q, k, v = (
    jnp.ones((1, 2, 1, 8)),
    jnp.ones((1, 2, 1, 8)),
    jnp.ones((1, 2, 1, 6)),
  )
  method = POSITIONS['shaw'](8, 1, False, with_values=True)
  params = method.init(jax.random.key(0))
  for backend in ('reference', 'chunked', 'auto'):
    with pytest.raises(ValueError, match='a value term is as wide as keys, 8'):
      attend(q, k, v, position=method, position_params=params, backend=backend)


def test_cudnn_takes_a_mask_and_a_bias_that_a_vmap_shares(monkeypatch):
  """As in a group of trials: q, k and v have its axis, and the mask has not."""
  monkeypatch.setattr(cudnn, 'check_cudnn_version', lambda: 91000)
  T, L, K = 5, 6, 8
  mask, bias = jnp.ones((B, L), bool), jnp.zeros((B, H, L, L))

  def loss(*arrays, **given):
    output, _ = attend(*arrays, platform='gpu', **given)
    return (output.astype(jnp.float32) ** 2).sum()

  arrays = [jax.ShapeDtypeStruct((T, B, L, H, K), jnp.bfloat16)] * 3
  for given in ({'query_tokens': mask}, {'bias': bias}):
    grad = jax.grad(functools.partial(loss, **given), (0, 1, 2))
    traced = jax.jit(jax.vmap(grad)).trace(*arrays)
    text = traced.lower(lowering_platforms=('cuda',)).as_text()
    calls = [line for line in text.splitlines() if '@__cudnn$' in line]
    assert len(calls) == 2
    for call in calls:
      assert f'tensor<{T * B}x{H}x{L}x{L}xbf16>' in call
      assert f'tensor<{B}x{H}x{L}x{L}xbf16>' not in call
