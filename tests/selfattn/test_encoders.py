"""Exact identities of the encoders, the classifier and what they sow."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.attention import Attention
from selfattn.baselines import BowEncoder, ConvolutionEncoder, RecurrentEncoder
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.encoders import ENCODERS, AttentionEncoder
from selfattn.linear import LinearAttentionEncoder
from selfattn.masks import Tokens
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from tests.conftest import draw, is_causal_only

pytestmark = pytest.mark.matrix

# All different, so that no axis can stand in for another.
B, L, H, V, F, C, LAYERS = 4, 11, 6, 19, 23, 5, 2
D = 42
LENGTHS = jnp.array([11, 6, 1, 3])
IS_TOKEN = jnp.arange(L)[None] < LENGTHS[:, None]
TOKENS = jax.random.randint(jax.random.key(3), (B, L), 0, V)


def attention(position='sinusoidal', num_layers=LAYERS, **fields):
  causal = fields.setdefault('causal', is_causal_only(position))
  method = POSITIONS[position](D, H, causal, vocab_size=V)
  return AttentionEncoder(num_layers, H, F, method, jnp.float32, **fields)


def linear_attention(position='rotary', **fields):
  causal = fields.setdefault('causal', False)
  method = POSITIONS[position](D, H, causal, vocab_size=V)
  return LinearAttentionEncoder(LAYERS, H, F, method, jnp.float32, **fields)


def classifier(encoder=None, pool='mean', **fields):
  encoder = encoder or attention()
  return TextClassifier(V, C, D, encoder, POOLS[pool](), **fields)


def init(model):
  return draw(model.init, jax.random.key(0), TOKENS, IS_TOKEN)


# How each encoder is made here: one row a name.
ROWS = {
  'attention': attention,
  'linear_attention': linear_attention,
  'cnn': functools.partial(ConvolutionEncoder, LAYERS, jnp.float32, 3, 2),
  'rnn': functools.partial(RecurrentEncoder, 2, jnp.float32),
  'bow': BowEncoder,
}
# Other forms of them, for the same checks.
VARIANTS = (
  functools.partial(ConvolutionEncoder, 1, jnp.float32, 4),
  functools.partial(RecurrentEncoder, 1, jnp.float32, 'gru', False),
  functools.partial(linear_attention, 'sinusoidal', causal=True),
)


def test_every_encoder_has_a_row():
  assert set(ROWS) == set(ENCODERS)


@pytest.mark.parametrize(
  ('make', 'pool'),
  [
    *((make, pool) for make in ROWS.values() for pool in POOLS),
    *((make, 'mean') for make in VARIANTS),
    *((functools.partial(attention, name, 1), 'mean') for name in POSITIONS),
    (functools.partial(attention, window=(2, 3)), 'mean'),
    (functools.partial(attention, causal=True, backend='chunked'), 'max'),
  ],
)
def test_padding_never_changes_logits(make, pool):
  model = classifier(make(), pool=pool)
  variables = init(model)
  apply = jax.jit(model.apply)
  logits = apply(variables, TOKENS, IS_TOKEN)
  # What stands in the padding, and how much of it there is, are no matter.
  other = jnp.where(IS_TOKEN, TOKENS, (TOKENS + 7) % V)
  np.testing.assert_array_equal(apply(variables, other, IS_TOKEN), logits)
  alone = apply(variables, TOKENS[1:2, :6], jnp.ones((1, 6), bool))
  np.testing.assert_allclose(alone[0], logits[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', ROWS)
def test_a_masked_token_has_exactly_zero_gradient(name):
  encoder = ROWS[name]()
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  variables = draw(encoder.init, jax.random.key(0), x_BLD, IS_TOKEN)

  def real_output(x_BLD):
    y_BLD = encoder.apply(variables, x_BLD, IS_TOKEN)
    return (jnp.where(IS_TOKEN[..., None], y_BLD, 0) ** 2).sum()

  grad = jax.jit(jax.grad(real_output))(x_BLD)
  assert (grad[~IS_TOKEN] == 0).all()
  assert (grad[IS_TOKEN] != 0).any(axis=-1).all()


@pytest.mark.parametrize('make', [attention, linear_attention])
def test_causal_tokens_never_see_the_future(make):
  encoder = make(causal=True)
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  variables = draw(encoder.init, jax.random.key(0), x_BLD, IS_TOKEN)

  @jax.jit
  @jax.grad
  def gradient(x_BLD, token):
    return encoder.apply(variables, x_BLD, IS_TOKEN)[0, token].sum()

  for token in (0, 3, 10):
    grad = gradient(x_BLD, token)[0]
    assert (grad[token + 1 :] == 0).all()
    assert (grad[: token + 1] != 0).any(axis=-1).all()


PERMUTATION = jax.random.permutation(jax.random.key(9), L)


@pytest.mark.parametrize('make', [attention, linear_attention])
@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_without_positions_the_encoder_is_permutation_equivariant(norm, make):
  encoder = make('none', norm=norm)
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  everything = jnp.ones((B, L), bool)
  variables = draw(encoder.init, jax.random.key(0), x_BLD, everything)
  apply = jax.jit(encoder.apply)
  y_BLD = apply(variables, x_BLD, everything)
  moved = apply(variables, x_BLD[:, PERMUTATION], everything)
  np.testing.assert_allclose(moved, y_BLD[:, PERMUTATION], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', sorted(set(POSITIONS) - {'none', 'dape'}))
def test_with_positions_it_is_not(name):
  encoder = attention(name, 1)
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  # The same word everywhere, for what depends on words.
  everything = Tokens(ids=jnp.zeros((B, L), jnp.int32))
  variables = draw(encoder.init, jax.random.key(0), x_BLD, everything)
  apply = jax.jit(encoder.apply)
  y_BLD = apply(variables, x_BLD, everything)
  moved = apply(variables, x_BLD[:, PERMUTATION], everything)
  assert abs(moved - y_BLD[:, PERMUTATION]).max() > 1e-3


@pytest.mark.parametrize('pool', ['mean', 'max'])
@pytest.mark.parametrize('encoder', [attention('none'), BowEncoder()])
def test_a_bag_gives_the_same_logits_to_every_order(encoder, pool):
  model = classifier(encoder, pool=pool)
  variables = init(model)
  everything = jnp.ones((B, L), bool)
  apply = jax.jit(model.apply)
  np.testing.assert_allclose(
    apply(variables, TOKENS[:, PERMUTATION], everything),
    apply(variables, TOKENS, everything),
    rtol=1e-5,
    atol=1e-5,
  )


@pytest.mark.parametrize('pool', POOLS)
@pytest.mark.parametrize('name', ROWS)
def test_an_empty_text_has_finite_logits_and_gradients(name, pool):
  model = classifier(ROWS[name](), pool=pool)
  nothing = jnp.zeros((B, L), bool)

  def total(params):
    return model.apply({'params': params}, TOKENS, nothing).sum()

  differentiate = jax.jit(jax.value_and_grad(total))
  value, grads = differentiate(init(model)['params'])
  assert np.isfinite(value)
  assert all(np.isfinite(grad).all() for grad in jax.tree.leaves(grads))


def variants():
  return {
    'plain': {},
    'scan': {'scan': True},
    'remat': {'remat': True},
    'both': {'scan': True, 'remat': True},
  }


@pytest.mark.parametrize(
  'position',
  # One method each without parameters, with those of the model, of a layer,
  # and of both.
  ['sinusoidal', 't5', 'shaw', 'fire'],
)
def test_scan_and_remat_equal_the_plain_stack(position):
  """Parameters, outputs and gradients, with every dropout on."""
  results = {}
  chosen = variants()
  if position != 'sinusoidal':
    # Both together are what could go wrong; each alone is slow to compile.
    chosen = {name: chosen[name] for name in ('plain', 'both')}
  for name, fields in chosen.items():
    model = classifier(attention(position, **fields))
    variables = init(model)

    def total(params, model=model):
      drops = [
        Dropout.create(jax.random.key(seed), rate)
        for seed, rate in ((5, 0.3), (6, 0.2))
      ]
      logits = model.apply({'params': params}, TOKENS, IS_TOKEN, *drops)
      return (logits**2).sum(), logits

    grads, logits = jax.jit(jax.grad(total, has_aux=True))(variables['params'])
    results[name] = (variables['params'], logits, grads)
  plain = results.pop('plain')
  for result in results.values():
    assert jax.tree.structure(result) == jax.tree.structure(plain)
    jax.tree.map(np.testing.assert_array_equal, result[0], plain[0])
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
      result[1:],
      plain[1:],
    )


@pytest.mark.parametrize('pool', POOLS)
def test_eager_equals_jit(pool):
  model = classifier(pool=pool)
  variables = init(model)
  np.testing.assert_allclose(
    jax.jit(model.apply)(variables, TOKENS, IS_TOKEN),
    model.apply(variables, TOKENS, IS_TOKEN),
    rtol=1e-5,
    atol=1e-5,
  )


# --- what is sown ------------------------------------------------------------


def apply_and_sow(model, variables):
  apply = jax.jit(
    lambda v: model.apply(v, TOKENS, IS_TOKEN, mutable='intermediates')
  )
  logits, sown = apply(variables)
  return logits, sown['intermediates']['encoder']


@pytest.mark.parametrize('fields', variants().values(), ids=variants())
def test_sown_values_appear_under_jit_remat_and_scan(fields):
  model = classifier(attention(**fields))
  variables = init(model)
  _, sown = apply_and_sow(model, variables)
  (P,) = sown['P']
  assert P.shape == (1, L, D)
  assert P.dtype == jnp.float32
  if fields.get('scan'):
    (weights,) = sown['blocks']['attention']['weights']
  else:
    weights = jnp.stack(
      [sown[f'block_{n}']['attention']['weights'][0] for n in range(LAYERS)]
    )
  assert weights.shape == (LAYERS, B, H, L, L)
  np.testing.assert_allclose(
    weights.sum(-1), np.ones((LAYERS, B, H, L)), rtol=1e-5
  )
  plain = apply_and_sow(classifier(), variables)[1]
  np.testing.assert_allclose(
    weights[-1],
    plain[f'block_{LAYERS - 1}']['attention']['weights'][0],
    atol=1e-6,
  )


@pytest.mark.parametrize('backend', ['reference', 'xla'])
def test_asking_for_weights_changes_no_output(backend):
  model = classifier(attention(backend=backend))
  variables = init(model)
  asked, _ = model.apply(variables, TOKENS, IS_TOKEN, mutable='intermediates')
  silent = model.apply(variables, TOKENS, IS_TOKEN)
  np.testing.assert_array_equal(asked, silent)
  # Compiled, the two programs fuse differently, so equality is to rounding.
  asked, _ = apply_and_sow(model, variables)
  silent = jax.jit(model.apply)(variables, TOKENS, IS_TOKEN)
  np.testing.assert_allclose(asked, silent, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize('backend', ['reference', 'xla'])
def test_not_asking_leaves_the_program_as_without_sow(backend, monkeypatch):
  def compiled():
    model = classifier(attention(backend=backend))
    variables = jax.eval_shape(lambda: init(model))

    def forward(variables):
      return model.apply(variables, TOKENS, IS_TOKEN)

    return jax.jit(forward).lower(variables).as_text()

  with_sow = compiled()
  monkeypatch.setattr(nn.Module, 'sow', lambda *args, **kwargs: False)
  assert with_sow == compiled()
  assert 'sine' in with_sow or 'constant' in with_sow  # it is a program


@pytest.mark.parametrize('variant', ['plain', 'both'])
@pytest.mark.parametrize('name', POSITIONS)
def test_every_method_sows_what_it_used(name, variant):
  encoder = attention(name, **variants()[variant])
  variables = init(classifier(encoder))
  _, sown = apply_and_sow(classifier(encoder), variables)
  method, params = encoder.position, variables['params']['encoder']
  row = Tokens(ids=TOKENS).with_defaults(L)
  if method.hooks and not method.has_encoding:
    of_text = [P for path, P in leaves(sown) if 'P' in path]
    shape = (L, D) if 'embed' in method.hooks else (H, L, L)
    # A bias of distances alone may be that of all texts.
    shapes = [(1, *shape), (B, *shape)]
    assert all(P.shape[-1 - len(shape) :] in shapes for P in of_text)
    assert of_text
    return
  expected = None
  if not method.per_layer and method.has_encoding:
    expected = method.encoding(params.get('position', {}), row)
  found = sown.get('P', (None,))
  assert_is_encoding(found, expected)
  for layer in range(LAYERS):
    of_layer = params[f'block_{layer}']['attention'].get('position', {})
    expected = None
    if method.per_layer:
      expected = method.encoding(params.get('position', {}) | of_layer, row)
    if variant == 'both':
      found = sown['blocks']['attention'].get('P', (None,))
      found = [P if P is None else P[layer] for P in found]
    else:
      found = sown[f'block_{layer}']['attention'].get('P', (None,))
    assert_is_encoding(found, expected)


def leaves(tree):
  return [
    ([entry.key for entry in path if hasattr(entry, 'key')], leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def assert_is_encoding(found, expected):
  """Sown once, with these values, in a shape that the encoder promises."""
  (P,) = found
  if expected is None:
    assert P is None
    return
  assert P.dtype == jnp.float32
  np.testing.assert_allclose(P, expected, rtol=1e-5, atol=1e-5)
  tables = [(heads, 2 * L - 1, D // H) for heads in (1, H)]
  turns = [(1, L, width) for width in range(2, 2 * D // H + 1, 2)]
  shapes = [
    (1, L, D),
    (1, H, L, L),
    (B, H, L, L),
    (1, L, 2 * H * (D // H // 2)),
  ]
  assert P.shape in [*shapes, *turns, *tables]


@pytest.mark.parametrize('names', ['rotary', 't5', 'shaw', 'rotary+shaw+fire'])
def test_a_layer_alone_sows_what_it_used(names):
  method = positions.make({name: {} for name in names.split('+')}, D, H, False)
  layer = Attention(D, H, position=method)
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  shared = draw(method.init_model, jax.random.key(0))
  variables = draw(
    lambda key: layer.init(key, x_BLD, position_params=shared),
    jax.random.key(0),
  )
  _, sown = layer.apply(
    variables, x_BLD, position_params=shared, mutable='intermediates'
  )
  (P,) = sown['intermediates']['P']
  P = P if isinstance(P, dict) else {names: P}
  of_layer = variables['params'].get('position', {})
  assert set(P) == set(names.split('+'))
  for name, found in P.items():
    part = POSITIONS[name](D, H, False)
    params = shared | of_layer
    params = params.get(name, {}) if '+' in names else params
    assert_is_encoding(
      (found,), part.encoding(params, Tokens().with_defaults(L))
    )


@pytest.mark.parametrize('name', ['none', 'sinusoidal', 'learned'])
def test_a_layer_sows_nothing_of_what_its_encoder_adds(name):
  method = POSITIONS[name](D, H, False)
  layer = Attention(D, H, position=method, in_encoder=True)
  x_BLD = jnp.ones((B, L, D))
  variables = draw(layer.init, jax.random.key(0), x_BLD)
  _, sown = layer.apply(variables, x_BLD, mutable='intermediates')
  assert set(sown['intermediates']) == {'weights'}


@pytest.mark.parametrize('names', ['learned', 'complex_order', 'sinusoidal+t5'])
def test_a_layer_alone_refuses_what_only_an_encoder_adds(names):
  blocks = {name: {} for name in names.split('+')}
  layer = Attention(D, H, position=positions.make(blocks, D, H, False, V))
  with pytest.raises(ValueError, match=r'\w+ adds positions to the input of'):
    layer.init(jax.random.key(0), jnp.ones((B, L, D)))


@pytest.mark.parametrize('names', ['t5', 'rotary', 'shaw+forgetting'])
@pytest.mark.parametrize('causal', [False, True])
def test_a_method_is_as_causal_as_its_layer(names, causal):
  blocks = {name: {} for name in names.split('+')}
  layer = Attention(
    D, H, position=positions.make(blocks, D, H, not causal), causal=causal
  )
  message = f'has causal = {causal}; make them the same'
  with pytest.raises(ValueError, match=message):
    layer.init(jax.random.key(0), jnp.ones((B, L, D)))


def test_a_kernel_is_refused_by_the_width_of_heads_after_rotation():
  """Not by that of the model: PoPE doubles it."""
  fields = {'num_layers': 1, 'num_heads': 1, 'mlp_dim': F}
  for names, allowed in (('rotary', True), ('pope', False), ('pope+t5', False)):
    method = positions.make(
      {name: {} for name in names.split('+')}, 136, 1, False
    )
    encoder = AttentionEncoder(
      **fields, position=method, dtype=jnp.bfloat16, backend='cudnn'
    )
    check = functools.partial(
      encoder.check, 136, drops_weights=False, platform='gpu'
    )
    if allowed:
      check()
    else:
      with pytest.raises(ValueError, match='256 wide, not 272'):
        check()


def test_weights_of_chosen_layers_only():
  model = classifier()
  variables = init(model)
  _, everything = apply_and_sow(model, variables)
  chosen = {'sow_layers': (1,), 'mutable': 'intermediates'}
  _, sown = jax.jit(lambda v: model.apply(v, TOKENS, IS_TOKEN, **chosen))(
    variables
  )
  sown = sown['intermediates']['encoder']
  assert set(sown) == {'P', 'block_1'}
  (found,) = sown['block_1']['attention']['weights']
  (want,) = everything['block_1']['attention']['weights']
  np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
  scanned = classifier(attention(scan=True))
  with pytest.raises(ValueError, match='sow_layers needs scan=False'):
    scanned.apply(variables, TOKENS, IS_TOKEN, **chosen)


def test_P_is_sown_once_and_is_what_was_added():
  """The blocks are cut off, so the encoder only adds P and normalises."""
  encoder = AttentionEncoder(
    0, H, F, POSITIONS['sinusoidal'](D, H, False), jnp.float32, norm='post'
  )
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D))
  y_BLD, sown = encoder.apply({}, x_BLD, IS_TOKEN, mutable='intermediates')
  (P,) = sown['intermediates']['P']
  np.testing.assert_allclose(
    (y_BLD - x_BLD)[IS_TOKEN],
    np.broadcast_to(P, x_BLD.shape)[IS_TOKEN],
    atol=1e-6,
  )


@pytest.mark.parametrize('name', ROWS)
def test_init_holds_parameters_only(name):
  assert set(init(classifier(ROWS[name]()))) == {'params'}


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_elsewhere():
  encoder = AttentionEncoder(
    LAYERS, H, F, POSITIONS['sinusoidal'](D, H, False), jnp.bfloat16
  )
  model = classifier(encoder, dtype=jnp.bfloat16)
  variables = init(model)
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
  logits, sown = apply_and_sow(model, variables)
  assert logits.dtype == jnp.float32
  assert sown['P'][0].dtype == jnp.float32
  assert sown['block_0']['attention']['weights'][0].dtype == jnp.float32
  text = jax.jit(model.apply).lower(variables, TOKENS, IS_TOKEN).as_text()
  assert 'bf16' in text
  full = classifier().apply(variables, TOKENS, IS_TOKEN)
  np.testing.assert_allclose(logits, full, atol=0.1)
  assert (np.asarray(logits) != np.asarray(full)).any()


def test_models_are_hashable():
  assert hash(classifier()) == hash(classifier())


@pytest.mark.parametrize('name', POSITIONS)
def test_every_method_runs_in_bfloat16(name):
  """Compiled, with positions that are known and that are traced."""
  encoder = dataclasses.replace(attention(name, 1), dtype=jnp.bfloat16)
  x_BLD = jax.random.normal(jax.random.key(1), (B, L, D), jnp.bfloat16)
  known = Tokens(IS_TOKEN, ids=TOKENS)
  variables = draw(encoder.init, jax.random.key(0), x_BLD, known)

  @jax.jit
  def both(places):
    traced = known.replace(positions=places)
    return [encoder.apply(variables, x_BLD, given) for given in (known, traced)]

  for output in both(np.arange(L)[None]):
    assert output.dtype == jnp.bfloat16
    assert np.isfinite(output.astype(jnp.float32)).all()
