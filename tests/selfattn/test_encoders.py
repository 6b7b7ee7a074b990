"""Exact identities of the encoders, the classifier and what they sow."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import choice
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.encoders import AttentionEncoder
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, is_causal_only

pytestmark = pytest.mark.matrix

# All different, so that no axis can stand in for another.
B, L, H, V, F, C, LAYERS = 4, 11, 6, 19, 23, 5, 2
D = 42
LENGTHS = jnp.array([11, 6, 1, 3])
IS_TOKEN = jnp.arange(L)[None] < LENGTHS[:, None]
TOKENS = np.random.default_rng(3).integers(0, V, (B, L))


def attention(position='sinusoidal', num_layers=LAYERS, **fields):
  causal = fields.setdefault('causal', is_causal_only(position))
  method = POSITIONS[position](D, H, causal, vocab_size=V)
  return AttentionEncoder(num_layers, H, F, method, jnp.float32, **fields)


def classifier(encoder=None, pool='mean', **fields):
  encoder = encoder or attention()
  return TextClassifier(V, C, D, encoder, POOLS[pool](), **fields)


def init(model):
  return draw(model.init, jax.random.key(0), TOKENS, IS_TOKEN)


VARIANTS = {'plain': {}, 'both': {'scan': True, 'remat': True}}


def test_scan_and_remat_draw_the_dropout_of_the_plain_stack():
  """Parameters, outputs and gradients; of the model, and of each layer."""
  results = []
  for fields in VARIANTS.values():
    model = classifier(attention('fire', **fields))
    variables = init(model)

    def total(params, model=model):
      drops = [
        Dropout.create(jax.random.key(seed), rate)
        for seed, rate in ((5, 0.3), (6, 0.2))
      ]
      logits = model.apply({'params': params}, TOKENS, IS_TOKEN, *drops)
      return (logits**2).sum(), logits

    grads, logits = jax.jit(jax.grad(total, has_aux=True))(variables['params'])
    results.append((variables['params'], logits, grads))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    *results,
  )


# --- what is sown ------------------------------------------------------------


def apply_and_sow(model, variables):
  apply = jax.jit(
    lambda v: model.apply(v, TOKENS, IS_TOKEN, mutable='intermediates')
  )
  logits, sown = apply(variables)
  return logits, sown['intermediates']['encoder']


@pytest.fixture(scope='module')
def plain():
  """A model, its variables, and logits and what is sown together."""
  model = classifier(attention(backend='xla'))
  variables = init(model)
  return model, variables, *apply_and_sow(model, variables)


def weights_of(sown, layer):
  (weights,) = sown[f'block_{layer}']['attention']['weights']
  return weights


def test_weights_are_sown_under_jit_remat_and_scan(plain):
  _, variables, _, want = plain
  _, sown = apply_and_sow(classifier(attention(**VARIANTS['both'])), variables)
  for layer in range(LAYERS):
    weights = weights_of(sown, layer)
    assert weights.shape == (B, H, L, L)
    np.testing.assert_allclose(weights, weights_of(want, layer), atol=1e-6)


def test_what_chunks_sow_is_what_the_reference_does(monkeypatch):
  monkeypatch.setattr(choice, '_CHUNK_OF_CPU', (3, 0))
  variables = init(classifier(attention('cope')))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    *(
      apply_and_sow(classifier(attention('cope', backend=backend)), variables)
      for backend in ('chunked', 'reference')
    ),
  )


def test_asking_for_weights_changes_no_output(plain):
  model, variables, asked, _ = plain
  # Two programs fuse differently, so equality is to rounding.
  silent = jax.jit(model.apply)(variables, TOKENS, IS_TOKEN)
  np.testing.assert_allclose(asked, silent, rtol=2e-6, atol=2e-6)


def test_not_asking_leaves_the_program_as_without_sow(monkeypatch):
  def compiled():
    model = classifier()
    variables = jax.eval_shape(lambda: init(model))

    def forward(variables):
      return model.apply(variables, TOKENS, IS_TOKEN)

    return jax.jit(forward).lower(variables).as_text()

  with_sow = compiled()
  monkeypatch.setattr(nn.Module, 'sow', lambda *args, **kwargs: False)
  assert with_sow == compiled()
  assert 'sine' in with_sow or 'constant' in with_sow  # it is a program


@pytest.mark.parametrize('name', POSITIONS)
def test_every_method_sows_what_it_used(name):
  encoder = attention(name, **VARIANTS['both'])
  x_BLD = np.random.default_rng(0).standard_normal((B, L, D), np.float32)
  tokens = Tokens(IS_TOKEN, ids=TOKENS)
  variables = draw(encoder.init, jax.random.key(0), x_BLD, tokens)
  _, sown = jax.jit(
    lambda v: encoder.apply(v, x_BLD, tokens, mutable='intermediates')
  )(variables)
  sown, params = sown['intermediates'], variables['params']
  method = encoder.position
  row = Tokens(ids=TOKENS).with_defaults(L)
  if method.hooks and not method.has_encoding:
    of_text = [P for path, P in leaves(sown) if 'P' in path]
    shape = (L, D) if 'embed' in method.hooks else (H, L, L)
    # A bias of distances alone may be that of all texts.
    shapes = [(1, *shape), (B, *shape)]
    assert all(P.shape[-1 - len(shape) :] in shapes for P in of_text)
    # A rotation adds nothing that could be sown.
    is_sown = not method.hooks <= {'state', 'rotate'}
    assert bool(of_text) == is_sown, (
      f'hooks {sorted(method.hooks)} without `encoding` must '
      f'{"" if is_sown else "not "}sow what they add to a text'
    )
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


def test_weights_of_chosen_layers_only(plain):
  model, variables, _, everything = plain
  chosen = {'sow_layers': (1,), 'mutable': 'intermediates'}
  _, sown = jax.jit(lambda v: model.apply(v, TOKENS, IS_TOKEN, **chosen))(
    variables
  )
  sown = sown['intermediates']['encoder']
  assert set(sown) == {'P', 'block_1'}
  np.testing.assert_allclose(
    weights_of(sown, 1), weights_of(everything, 1), rtol=1e-5, atol=1e-6
  )
  scanned = classifier(attention(scan=True))
  with pytest.raises(ValueError, match='sow_layers needs scan=False'):
    scanned.apply(variables, TOKENS, IS_TOKEN, **chosen)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_elsewhere(plain):
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
  full = plain[2]
  np.testing.assert_allclose(logits, full, atol=0.1)
  assert (np.asarray(logits) != np.asarray(full)).any()
