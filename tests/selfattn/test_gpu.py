"""cuDNN's attention on an NVIDIA GPU against the reference in float32.

JAX_PLATFORMS=cuda bash scripts/run.sh pytest -m gpu
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.backends import attend
from selfattn.tokens import Tokens

pytestmark = [
  pytest.mark.gpu,
  pytest.mark.skipif(jax.default_backend() != 'gpu', reason='needs a GPU'),
]
B, L, H, K = 2, 130, 4, 32
IS_TOKEN = np.arange(L) < np.array([[L], [L - 41]])
SEGMENTS = np.broadcast_to(np.arange(L) // 50, (B, L))
# Options of attend, the position method, and the number of heads of keys.
CASES = {
  'all keys': ({}, '', H),
  'causal': ({'causal': True}, '', H),
  'padding': ({'query_tokens': Tokens(IS_TOKEN)}, '', H),
  'causal and padding': (
    {'query_tokens': Tokens(IS_TOKEN), 'causal': True},
    '',
    H,
  ),
  'padding on the right': (
    {'query_tokens': Tokens(IS_TOKEN, is_right_padded=True)},
    '',
    H,
  ),
  'causal, and padding on the right': (
    {
      'query_tokens': Tokens(IS_TOKEN, is_right_padded=True),
      'causal': True,
    },
    '',
    H,
  ),
  'a bias, and padding on the right': (
    {'query_tokens': Tokens(IS_TOKEN, is_right_padded=True)},
    'alibi',
    H,
  ),
  'packed': (
    {'query_tokens': Tokens(segments=SEGMENTS), 'causal': True},
    '',
    H,
  ),
  'a window': ({'window': (8, 8)}, '', H),
  'two heads of keys': ({'causal': True}, '', 2),
  'rotations': ({'causal': True}, 'rotary', H),
  'a bias': ({'causal': True}, 'alibi', H),
  'a term of the content': ({}, 'shaw', H),
}


def make(case, *, dtype, num_trials=0):
  """A function of arrays to the output and gradients, and its arrays."""
  options, name, num_kv_heads = CASES[case]
  method, params = None, {}
  if name:
    causal = options.get('causal', False)
    method = positions.make({name: {}}, H * K, H, causal)
    params = method.init(jax.random.key(0))
  rng = np.random.default_rng(0)
  trials = (num_trials,) * (num_trials > 0)
  heads = (H, num_kv_heads, num_kv_heads, H)
  # Rounded once, so that both types compute from the same numbers.
  arrays = [
    jnp.asarray(rng.standard_normal((*trials, B, L, h, K)), jnp.bfloat16)
    for h in heads
  ]

  def run(q, k, v, cotangent, backend):
    def output(q, k, v):
      return attend(
        q,
        k,
        v,
        position=method,
        position_params=params,
        backend=backend,
        platform='gpu',
        **({'query_tokens': Tokens()} | options),
      )[0]

    out, gradient = jax.vjp(output, q, k, v)
    return out, *gradient(cotangent)

  return run, [x.astype(dtype) for x in arrays]


def error(got, want):
  """The norm of the difference, relative to that of what is right."""
  got, want = (np.asarray(x, np.float64) for x in (got, want))
  return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize('case', CASES)
def test_cudnn_is_the_reference_to_the_precision_of_bfloat16(case):
  """Output and gradients; 'auto' takes cuDNN."""
  with jax.default_matmul_precision('highest'):
    run, arrays = make(case, dtype=jnp.float32)
    want = jax.jit(run, static_argnums=4)(*arrays, 'reference')
  run, arrays = make(case, dtype=jnp.bfloat16)
  program = jax.jit(run, static_argnums=4).lower(*arrays, 'auto').compile()
  assert '__cudnn$fmha' in program.as_text()
  for got, right in zip(program(*arrays), want, strict=True):
    assert error(got, right) < 1e-2


@pytest.mark.parametrize('is_right_padded', [False, True])
def test_a_row_that_sees_no_key_is_zero(is_right_padded):
  _, arrays = make('padding', dtype=jnp.bfloat16)
  tokens = Tokens(np.zeros((B, L), bool), is_right_padded=is_right_padded)
  output, _ = attend(*arrays[:3], query_tokens=tokens, backend='cudnn')
  assert not np.asarray(output, np.float32).any()


@pytest.mark.parametrize(
  'case', ['causal', 'padding', 'a bias', 'causal, and padding on the right']
)
def test_a_group_of_trials_is_each_alone(case):
  """vmap over queries, keys and values, as in a sweep."""
  run, arrays = make(case, dtype=jnp.bfloat16, num_trials=3)

  def cudnn(*arrays):
    return run(*arrays, 'cudnn')

  together = jax.jit(jax.vmap(cudnn))(*arrays)
  for trial in range(3):
    alone = jax.jit(cudnn)(*(x[trial] for x in arrays))
    for got, want in zip(together, alone, strict=True):
      assert error(got[trial], want) < 1e-2
