"""Statistics of attention against closed forms, and gates against what a
model without the head computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, normal

import selfattn
from selfattn import analysis
from selfattn.positions import NoPosition
from selfattn.positions.absolute import Sinusoidal
from selfattn.tokens import Tokens

L = 7
ALL = jnp.ones((1, L, L), bool)
NONE = jnp.zeros((1, L), bool)


def statistics(weights_LM, is_visible=ALL, is_separator=NONE):
  found = analysis.head_statistics(
    jnp.asarray(weights_LM, jnp.float32)[None, None], is_visible, is_separator
  )
  assert list(found) == list(analysis.STATISTICS)
  return {name: float(value[0, 0]) for name, value in found.items()}


def test_uniform_attention_has_all_the_entropy_and_even_shares():
  found = statistics(np.full((L, L), 1 / L))
  assert found['entropy'] == pytest.approx(1)
  # The mean of |i - j| over a square of n x n is (n^2 - 1) / 3n.
  assert found['distance'] == pytest.approx((L**2 - 1) / (3 * L))
  assert found['self'] == pytest.approx(1 / L)
  assert found['first'] == pytest.approx(1 / L)
  # The first token has none before it, the last one none after it.
  assert found['previous'] == pytest.approx((L - 1) / L**2)
  assert found['next'] == pytest.approx((L - 1) / L**2)
  assert found['separators'] == 0


@pytest.mark.parametrize(
  ('shift', 'name'), [(0, 'self'), (-1, 'previous'), (1, 'next'), (3, None)]
)
def test_a_shifted_diagonal_has_its_distance_and_its_share(shift, name):
  weights = np.eye(L, k=shift)
  seen = jnp.asarray(weights.any(axis=1))[None, :, None] & ALL
  found = statistics(weights, seen)
  assert found['distance'] == abs(shift)
  assert found['entropy'] == 0
  shares = {n: found[n] for n in ('self', 'previous', 'next')}
  assert shares == {n: float(n == name) for n in shares}


def test_separators_and_the_first_token_get_what_goes_there():
  weights = np.zeros((L, L))
  weights[:, 0], weights[:, 2], weights[:, 5] = 0.5, 0.3, 0.2
  found = statistics(weights, is_separator=NONE.at[0, [2, 5]].set(True))
  assert found['first'] == pytest.approx(0.5)
  assert found['separators'] == pytest.approx(0.5)


def test_padding_and_lone_keys_are_left_out():
  n = 4
  weights = np.zeros((L, L))
  weights[:n, :n] = np.tri(n) / np.arange(1, n + 1)[:, None]
  seen = np.zeros((1, L, L), bool)
  seen[0, :n, :n] = np.tri(n, dtype=bool)
  found = statistics(weights, jnp.asarray(seen))
  # A causal mean over i + 1 keys: entropy is full wherever there is a choice.
  assert found['entropy'] == pytest.approx(1)
  assert found['distance'] == pytest.approx(np.mean(np.arange(n) / 2))
  assert found['first'] == pytest.approx(np.mean(1 / np.arange(1, n + 1)))
  empty = statistics(weights, ~ALL)
  assert all(np.isnan(value) for value in empty.values())


def test_rollout_of_uniform_layers_is_known():
  layers, heads = 3, 2
  weights = jnp.full((layers, 1, heads, L, L), 1 / L)
  # I/2 + J/2n keeps the mean and halves what is beside it, once a layer.
  even = np.full((L, L), 1 / L)
  expected = even + (np.eye(L) - even) / 2**layers
  np.testing.assert_allclose(analysis.rollout(weights)[0], expected, rtol=1e-5)


def test_rollout_multiplies_from_the_first_layer_on():
  rng = np.random.default_rng(0)
  weights = rng.dirichlet(np.ones(L), size=(2, 3, 4, L))
  half = [(w.mean(axis=1) + np.eye(L)) / 2 for w in weights]
  found = analysis.rollout(jnp.asarray(weights, jnp.float32))
  np.testing.assert_allclose(found, half[1] @ half[0], rtol=1e-5)


@pytest.fixture(scope='module')
def encoder():
  module = selfattn.AttentionEncoder(
    num_layers=2,
    num_heads=3,
    mlp_dim=10,
    position=NoPosition(12, 3, False),
    dtype=jnp.float32,
  )
  x = normal(1, (2, L, 12))
  tokens = jnp.arange(L)[None] < jnp.array([[L], [4]])
  params = draw(module.init, jax.random.key(0), x, tokens)['params']
  run = jax.jit(lambda params: module.apply({'params': params}, x, tokens))
  return params, run


def test_a_gate_of_zero_is_deleting_rows_of_the_output_projection(encoder):
  params, run = encoder
  width = 12 // 3
  gated = analysis.gate_heads(params, jnp.ones((2, 3)).at[1, 2].set(0))
  deleted = jax.tree.map(np.array, params)
  out = deleted['block_1']['attention']['out']
  out['kernel'][2 * width :] = 0
  np.testing.assert_array_equal(run(gated), run(deleted))
  assert abs(run(gated) - run(params)).max() > 1e-3
  # The same as a head whose values are zero, which nothing can be read from.
  silent = jax.tree.map(np.array, params)
  value = silent['block_1']['attention']['value']
  value['kernel'][:, 2 * width :], value['bias'][2 * width :] = 0, 0
  np.testing.assert_allclose(run(gated), run(silent), atol=1e-5)


def test_the_rotation_identity_holds_for_sinusoids_and_not_for_others():
  P = np.asarray(
    Sinusoidal(10, 1, False).encoding({}, Tokens().with_defaults(30))
  )[0]
  for offset in (0, 1, 7, 29):
    error = analysis.rotation_error(P, offset)
    assert error.shape == (30 - offset,)
    assert error.max() < 2e-7
  assert analysis.rotation_error(P, 1, base=9_000.0).max() > 1e-3
  other = np.random.default_rng(0).normal(size=(30, 10))
  assert analysis.rotation_error(other, 3).min() > 0.1


def test_what_is_sown_is_found_in_the_order_of_layers_whatever_their_name():
  tree = {
    f'mix_{n}': {'inner': {'weights': (n,), 'P': ({'t5': 10 * n},)}}
    for n in (10, 9, 2)
  }
  assert analysis.sown({'P': (7,), **tree}, 'weights') == [
    ((f'mix_{n}', 'inner'), (), n) for n in (2, 9, 10)
  ]
  assert analysis.sown({'P': (7,), **tree}, 'P') == [
    ((), (), 7),
    *(((f'mix_{n}', 'inner'), ('t5',), 10 * n) for n in (2, 9, 10)),
  ]


def test_gates_reach_the_layers_of_attention_wherever_they_are():
  def layer(width):
    dense = {'kernel': jnp.ones((4, width)), 'bias': jnp.ones(width)}
    return dict.fromkeys(('query', 'key', 'value', 'out'), dense)

  params = {'mix_10': {'a': layer(3)}, 'mix_9': layer(5), 'out': {'key': 1}}
  gated = analysis.gate_heads(params, jnp.array([[2.0, 3.0], [4.0, 5.0]]))
  rows = gated['mix_9']['out']['kernel'][:, 0]
  np.testing.assert_array_equal(rows, [2, 2, 3, 3])
  rows = gated['mix_10']['a']['out']['kernel'][:, 0]
  np.testing.assert_array_equal(rows, [4, 4, 5, 5])
  assert (gated['mix_9']['query']['kernel'] == 1).all()
  assert gated['out'] == {'key': 1}


@pytest.mark.parametrize('factor', [0.05, 0.9])
def test_weights_that_do_not_sum_to_one_are_taken_as_shares(factor):
  """Those of a sigmoid, or of a softmax with sinks."""
  weights = np.random.default_rng(0).dirichlet(np.ones(L), L)
  for name, value in statistics(factor * weights).items():
    assert value == pytest.approx(statistics(weights)[name], rel=1e-5)
  whole = jnp.asarray(weights, jnp.float32)[None, None, None]
  np.testing.assert_allclose(
    analysis.rollout(factor * whole), analysis.rollout(whole), rtol=1e-5
  )
