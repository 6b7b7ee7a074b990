"""Experts against a loop over tokens and their experts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.blocks import BLOCKS
from selfattn.encoders import ENCODERS
from selfattn.feed_forward import (
  FEED_FORWARDS,
  GATED,
  SCORINGS,
  ExpertNetwork,
  Experts,
  Maps,
)
from selfattn.positions import POSITIONS
from selfattn.projections import KERNEL_INITS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, D, F = 2, 6, 8, 7
X = normal(4, (B, L, D))


def network(experts, kind, use_bias, dtype=jnp.float32):
  maps = Maps(kind, use_bias, KERNEL_INITS['xavier'], dtype)
  made = ExpertNetwork(experts, maps, F)
  return made, draw(made.init, jax.random.key(0), X)['params']


def loop(params, experts, kind, x):
  """Outputs of each token, from those of its experts one by one."""

  def fed(x, name, index):
    bias = params.get(f'{name}_bias', np.zeros(experts.count))
    return x @ params[name][index] + bias[index]

  def hidden(x, *maps):
    names = maps if kind in GATED else maps[:1]
    return np.asarray(FEED_FORWARDS[kind](*(run(x) for run in names)))

  logits = x @ params['router']['kernel'] + params['router'].get('bias', 0)
  scores = np.asarray(SCORINGS[experts.scoring](logits))
  ranked = logits if experts.correction == 'logits' else scores
  ranked = ranked + params.get('correction', 0)
  out = np.zeros_like(x)
  for token, vector in enumerate(x):
    chosen = np.argsort(-ranked[token], kind='stable')[: experts.chosen]
    weights = scores[token][chosen]
    if experts.renormalises:
      weights = weights / weights.sum()
    for index, weight in zip(chosen, weights * experts.scale, strict=True):
      h = hidden(
        vector,
        lambda x, n=index: fed(x, 'in', n),
        lambda x, n=index: fed(x, 'gated', n),
      )
      out[token] += weight * fed(h, 'out', index)
    if experts.shared_dim:
      h = hidden(
        vector,
        lambda x: x @ params['shared_in']['kernel'],
        lambda x: x @ params['shared_gated']['kernel'],
      )
      shared = h @ params['shared_out']['kernel']
      if experts.shared_gate:
        gate = vector @ params['shared_gate']['kernel']
        shared = shared / (1 + np.exp(-gate))
      out[token] += shared
  return out


CASES = {
  'softmax': (Experts(5, 2), 'swiglu', False),
  'sigmoid': (
    Experts(
      4, 3, scoring='sigmoid', correction='scores', scale=2.5, shared_dim=6,
      shared_gate=True,
    ), 'geglu', False,
  ),
  'biases': (
    Experts(4, 1, correction='logits', renormalises=False, router_bias=True),
    'gelu', True,
  ),
  'clamped': (Experts(3, 3), 'swiglu_clamped', True),
}  # fmt: skip


@pytest.mark.parametrize(
  'case',
  [
    pytest.param(case, marks=[pytest.mark.slow] * (case != 'sigmoid'))
    for case in CASES
  ],
)
def test_experts_are_a_loop_over_tokens(case):
  experts, kind, use_bias = CASES[case]
  made, params = network(experts, kind, use_bias)
  found = made.apply({'params': params}, X)
  host = jax.tree.map(np.asarray, params)
  want = loop(host, experts, kind, np.asarray(X).reshape(-1, D))
  np.testing.assert_allclose(
    np.asarray(found).reshape(-1, D), want, rtol=1e-4, atol=1e-4
  )
  of_rows = jax.vmap(lambda x: made.apply({'params': params}, x[None])[0])(X)
  np.testing.assert_allclose(of_rows, found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_gradients_are_those_of_a_loop(case):
  experts, kind, use_bias = CASES[case]
  made, params = network(experts, kind, use_bias)
  of_output = normal(7, X.shape)
  change = jax.tree.map(lambda leaf: normal(8, leaf.shape), params)
  if 'correction' in change:
    # It changes the choice alone.
    change['correction'] = np.zeros(experts.count, np.float32)

  def total(step):
    moved = jax.tree.map(
      lambda p, d: np.float64(p) + step * np.float64(d), params, change
    )
    y = loop(moved, experts, kind, np.float64(X).reshape(-1, D))
    return (y * np.reshape(of_output, y.shape)).sum()

  grads = jax.grad(
    lambda params: (made.apply({'params': params}, X) * of_output).sum()
  )(params)
  products = jax.tree.map(lambda g, d: (g * d).sum(), grads, change)
  want = (total(1e-3) - total(-1e-3)) / 2e-3
  np.testing.assert_allclose(sum(jax.tree.leaves(products)), want, rtol=1e-3)


def test_gradients_reach_chosen_experts_alone_and_no_correction():
  experts = Experts(5, 1, correction='scores')
  made, params = network(experts, 'swiglu', False)
  x = X[:1, :1]
  grads = jax.grad(
    lambda params: (made.apply({'params': params}, x) ** 2).sum()
  )(params)
  used = abs(np.asarray(grads['in'])).max(axis=(1, 2)) > 0
  assert used.sum() == 1
  assert not np.asarray(grads['correction']).any()


def test_experts_compute_in_bfloat16_with_a_router_in_float32():
  experts, kind, use_bias = CASES['softmax']
  made, params = network(experts, kind, use_bias, jnp.bfloat16)
  found = made.apply({'params': params}, X.astype(jnp.bfloat16))
  assert found.dtype == jnp.bfloat16
  other, _ = network(experts, kind, use_bias)
  want = other.apply({'params': params}, X)
  np.testing.assert_allclose(
    np.asarray(found, np.float32), want, rtol=0.1, atol=0.1
  )


@pytest.mark.slow
@pytest.mark.parametrize('form', ['scan', 'remat'])
def test_dense_layers_have_the_parameters_and_values_of_unrolled_blocks(form):
  def encoder(**fields):
    position = POSITIONS['rotary'](D, 2, True)
    block = BLOCKS['pre'](feed_forward='swiglu', parent=None)
    return ENCODERS['attention'](
      4, 2, F, position, jnp.float32, causal=True, block=block,
      experts=Experts(3, 2, dense_layers=(0,)), **fields,
    )  # fmt: skip

  unrolled = encoder()
  params = draw(unrolled.init, jax.random.key(0), X, Tokens())['params']
  assert 'mlp_in' in params['block_0']
  assert 'experts' in params['block_1']
  other = encoder(**{form: True})
  shapes = jax.eval_shape(other.init, jax.random.key(0), X, Tokens())['params']
  assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
  found = other.apply({'params': params}, X, Tokens())
  want = unrolled.apply({'params': params}, X, Tokens())
  np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_kernels_of_experts_begin_as_those_of_one_network():
  for name, bound in (('xavier', (6 / (D + F)) ** 0.5), ('torch', D**-0.5)):
    maps = Maps('swiglu', False, KERNEL_INITS[name], jnp.float32)
    made = ExpertNetwork(Experts(50, 2), maps, F)
    kernel_EDF = made.init(jax.random.key(0), X)['params']['in']
    assert kernel_EDF.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert abs(kernel_EDF).max() == pytest.approx(bound, rel=0.1)
    assert not np.array_equal(kernel_EDF[0], kernel_EDF[1])


@pytest.mark.parametrize(
  'option', [{'chosen': 9}, {'count': 0}, {'scoring': 'x'}, {'correction': 'x'}]
)
def test_an_option_out_of_range_is_refused(option):
  ((name, value),) = option.items()
  with pytest.raises(ValueError, match=f'{name} = {value!r} must be'):
    Experts(**option).check()
