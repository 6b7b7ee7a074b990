"""Several position methods at once keep what each of them promises alone."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.masks import Tokens
from selfattn.positions import POSITIONS, Position
from selfattn.positions.contract import HOOKS, distances
from tests.conftest import draw, is_causal_only

pytestmark = pytest.mark.matrix

B, L, H, K = 2, 5, 3, 6
D = H * K
SCATTERED = np.array([[0, 1, 5, 2, 11]])
X = jax.random.normal(jax.random.key(3), (B, L, D))
PROJECTIONS = draw(Attention(D, H).init, jax.random.key(1), X)['params']


def make(names):
  causal = is_causal_only('+'.join(names))
  return positions.make({name: {} for name in names}, D, H, causal, 9)


RELATIVE = [name for name in POSITIONS if make([name]).is_relative]
ROTATING = [name for name in POSITIONS if 'rotate' in make([name]).hooks]
PAIRS = [
  pair
  for pair in itertools.combinations(RELATIVE, 2)
  if not set(pair) <= set(ROTATING)
]


def test_second_names_are_names_also_in_python():
  assert positions.make({'rope': {}}, 8, 2, False) == positions.make(
    {'rotary': {}}, 8, 2, False
  )
  with pytest.raises(ValueError, match="name = 'rop' must be one of alibi"):
    positions.make({'rop': {}}, 8, 2, False)


@pytest.mark.parametrize('names', PAIRS, ids='+'.join)
def test_joined_relative_methods_see_differences_only(names):
  method = make(names)
  assert method.is_relative
  layer = Attention(
    D, H, position=method, causal=method.causal, in_encoder=True
  )
  shared = {'position_params': draw(method.init_model, jax.random.key(0))}
  of_layer = draw(method.init_layer, jax.random.key(1))
  params = PROJECTIONS | ({'position': of_layer} if of_layer else {})

  @jax.jit
  def output(places):
    query = Tokens(positions=places)
    return layer.apply({'params': params}, X, query=query, **shared)[0]

  near, far = output(SCATTERED), output(SCATTERED + 100)
  np.testing.assert_allclose(near, far, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('hook', HOOKS)
def test_hooks_of_several_methods_are_called_on_each(hook):
  both = make(['sinusoidal', 'alibi'])
  with pytest.raises(TypeError, match=f'call {hook} on each part'):
    getattr(both, hook)({}, X, Tokens())


def test_two_methods_that_rotate_do_not_join():
  assert len(ROTATING) > 1
  for names in itertools.combinations(ROTATING, 2):
    with pytest.raises(ValueError, match=rf"name = '{names[0]}\+{names[1]}'"):
      make(names)


@dataclasses.dataclass(frozen=True)
class BothKinds(Position):
  """A slope that layers share times a slope of each layer's own."""

  is_relative = True

  def init_model(self, key):
    return {'slope': jnp.full((), 2.0)}

  def init_layer(self, key):
    return {'own': jnp.full((), 3.0)}

  def bias(self, params, query, key):
    distance = abs(distances(query, key))
    slope = params['slope'] * params['own']
    return -slope * jnp.asarray(distance, jnp.float32)[:, None]


def test_a_part_keeps_its_parameters_of_the_model_and_of_the_layer():
  both = BothKinds(D, H, False)
  joined = positions.Combined(
    D, H, False, (('both', both), ('t5', make(['t5'])))
  )
  table = {'t5': {'table': jnp.zeros((32, H))}}
  weights = []
  for method, more in ((both, {}), (joined, table)):
    layer = Attention(D, H, position=method)
    shared = method.init_model(jax.random.key(0)) | more
    variables = layer.init(jax.random.key(1), X, position_params=shared)
    _, found = layer.apply(
      variables, X, position_params=shared, return_weights=True
    )
    weights.append(found)
  np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-6)
