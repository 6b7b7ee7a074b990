"""What docs/library.md says about Flax NNX and plain functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import errors, nnx
from flax import linen as nn

from selfattn import (
  Attention,
  AttentionEncoder,
  Dropout,
  Tokens,
  attend,
  positions,
)
from selfattn.feed_forward import Experts
from selfattn.positions.calls import with_state

SIZES = {'embed_dim': 16, 'num_heads': 2, 'causal': True}
SHAW = positions.make({'shaw': {}}, **SIZES)
LAYER = Attention(position=SHAW, **SIZES)
X_BLD = jax.random.normal(jax.random.key(0), (2, 6, 16))


def bridged(module=LAYER):
  return nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0))


@pytest.fixture
def model():
  return bridged().lazy_init(X_BLD)


def call(model, x_BLD):
  return model(x_BLD)[0]


def sow(model, x_BLD):
  return model(x_BLD, mutable=['intermediates'])[0]


def extend(model, x_BLD):
  return model(x_BLD, cache_len=6, mutable=['cache'])[0]


def params_of(model):
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def test_the_parameters_are_those_of_linen(model):
  key = jax.random.key(0)
  params = LAYER.init(key, X_BLD)['params']
  fresh = nnx.bridge.ToNNX(LAYER, rngs=key).lazy_init(X_BLD)
  for module in (model, fresh):
    kernel = params_of(module)['query']['kernel']
    assert (kernel != params['query']['kernel']).any()
  assert isinstance(model.query['kernel'], nnx.Param)
  assert isinstance(model.position['keys'], nnx.Param)
  assert not hasattr(model, 'num_heads')
  assert model.to_nnx__module.num_heads == 2
  nnx.update(model, params)
  jax.tree.map(np.testing.assert_array_equal, params_of(model), params)
  want, _ = LAYER.apply({'params': params}, X_BLD)
  np.testing.assert_array_equal(call(model, X_BLD), want)
  early = bridged()
  nnx.update(early, params)
  with pytest.raises(ValueError, match='Cannot infer collection name'):
    call(early, X_BLD)


def test_an_optimizer_that_is_made_before_lazy_init_knows_no_parameter():
  model = bridged()
  optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
  model.lazy_init(X_BLD)
  gradients = nnx.grad(lambda model: call(model, X_BLD).sum())(model)
  with pytest.raises(ValueError, match='structure'):
    optimizer.update(model, gradients)


def test_tables_are_trained_as_params_alone():
  t5 = positions.make({'t5': {}}, **SIZES)

  class Model(nnx.Module):
    def __init__(self, kind):
      self.attention = bridged(Attention(position=t5, **SIZES))
      tables = t5.init_model(jax.random.key(1))
      self.tables = nnx.data(jax.tree.map(kind, tables))

    def __call__(self, x_BLD):
      return self.attention(x_BLD, position_params=self.tables)[0]

  for kind, is_trained in ((nnx.Param, True), (jnp.asarray, False)):
    model = nnx.bridge.lazy_init(Model(kind), X_BLD)
    gradients = nnx.grad(lambda model: (model(X_BLD) ** 2).sum())(model)
    assert ('tables' in gradients) == is_trained
  assert 'position' not in params_of(model)['attention']


def test_dropout_is_an_argument_alone(model):
  model.eval()
  dropped = model(X_BLD, dropout=Dropout.create(jax.random.key(0), 0.5))[0]
  assert (dropped != call(model, X_BLD)).any()


@pytest.mark.parametrize(
  'transform',
  [jax.jit, nnx.jit, jax.vmap, lambda function: jax.grad(function)],
  ids=['jit', 'nnx.jit', 'vmap', 'grad'],
)
def test_a_closure_needs_a_model_without_rngs(transform, model):
  function = transform(lambda shift: call(model, X_BLD + shift).sum())
  shift = jnp.zeros(3) if transform is jax.vmap else 0.0
  with pytest.raises(errors.TraceContextError):
    function(shift)
  model.to_nnx__rngs = None
  assert np.isfinite(function(shift)).all()


def test_what_is_sown_piles_up_until_it_is_popped(model):
  output, weights = model(X_BLD, mutable=['intermediates'])
  assert (output.shape, weights) == ((2, 6, 16), None)
  traced = []

  @nnx.jit
  def piling(model):
    traced.append(len(getattr(model, 'weights', ())))
    return sow(model, X_BLD)

  for _ in range(3):
    piling(model)
  assert traced == [1, 2, 3]
  sown = nnx.pop(model, nnx.Intermediate)
  assert [x.shape for x in sown['weights'].get_value()] == [(2, 2, 6, 6)] * 4

  @nnx.jit
  def popping(model):
    traced.append('popping')
    sow(model, X_BLD)
    return nnx.pop(model, nnx.Intermediate)['weights'][0]

  np.testing.assert_array_equal(popping(model), sown['weights'][0])
  popping(model)
  assert traced.count('popping') == 1


@pytest.mark.slow
def test_a_loss_pops_what_is_measured():
  experts = Experts(count=3, chosen=1)
  encoder = AttentionEncoder(
    2, 2, 8, position=SHAW, dtype=jnp.float32, causal=True, experts=experts
  )
  model = bridged(encoder).lazy_init(X_BLD)
  measured = nnx.variable_type_from_name('measured', allow_register=True)

  def loss_of(model):
    model(X_BLD, mutable=['measured'])
    sown = nnx.pop(model, measured)
    return (sown['block_1']['experts']['logits'][0] ** 2).sum()

  loss, gradients = nnx.value_and_grad(loss_of)(model)
  router = nnx.to_pure_dict(gradients)['block_1']['experts']['router']
  assert loss > 0
  assert any(x.any() for x in jax.tree.leaves(router))


@pytest.mark.parametrize('module', [LAYER, nn.Dense(4)], ids=['layer', 'dense'])
def test_capture_breaks_a_bridged_module(module):
  model = bridged(module).lazy_init(X_BLD)
  for run in (nnx.capture(model, nnx.Intermediate), model):
    with pytest.raises(ValueError, match='Cannot infer collection name'):
      run(X_BLD)


@pytest.mark.slow
def test_the_cache_is_state_of_the_module(model):
  traced = []

  @nnx.jit
  def compiled(model, x_BLD):
    traced.append(x_BLD.shape)
    return extend(model, x_BLD)

  def one_by_one(function):
    steps = [function(model, X_BLD[:, [n]]) for n in range(6)]
    return jnp.concatenate(steps, axis=1)

  want = call(model, X_BLD)
  for function in (extend, compiled):
    np.testing.assert_allclose(one_by_one(function), want, atol=1e-5)
    with pytest.raises(ValueError, match='do not fit'):
      extend(model, X_BLD[:, :1])
    assert jnp.isnan(compiled(model, X_BLD[:, :1])).all()
    nnx.pop(model, nnx.Cache)
  assert len(traced) == 2
  alone = one_by_one(jax.jit(extend))
  assert abs(alone - want).max() > 0.1
  assert not nnx.to_flat_state(nnx.state(model, nnx.Cache))


def test_methods_that_are_joined_have_no_parameters_in_init():
  joined = positions.make({'t5': {}, 'shaw': {}}, **SIZES)
  key = jax.random.key(0)
  assert joined.init(key) == {}
  assert joined.init_model(key).keys() == {'t5'}
  assert joined.init_layer(key).keys() == {'shaw'}


@pytest.mark.slow
def test_attend_calls_neither_embed_nor_state():
  q_BLHK = X_BLD.reshape(2, 6, 2, 8)
  qkv = (q_BLHK,) * 3
  sinusoidal = positions.make({'sinusoidal': {}}, **SIZES)
  with_position, _ = attend(*qkv, causal=True, position=sinusoidal)
  np.testing.assert_array_equal(with_position, attend(*qkv, causal=True)[0])
  path = positions.make({'path': {}}, **SIZES)
  params = path.init_layer(jax.random.key(0))
  options = {'position': path, 'position_params': params, 'causal': True}
  with pytest.raises(ValueError, match='with_state makes it'):
    attend(*qkv, **options)
  tokens = with_state(path, params, X_BLD, Tokens().with_defaults(6, 2))
  assert attend(*qkv, query_tokens=tokens, **options)[0].shape == (2, 6, 2, 8)
