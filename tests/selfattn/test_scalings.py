"""Scalings of rotary positions: what no factor may change, and cached texts."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import Attention
from selfattn.positions import POSITIONS
from selfattn.positions.frequencies import SCALINGS
from selfattn.pretrained.fields import Config, rope, rope_parameters
from selfattn.tokens import Tokens
from tests.conftest import at, normal

D, H, R = 64, 2, 32
PAIRS = tuple(np.linspace(1, 8, R // 2).tolist())
# Options that every scaling needs beside its factor.
OPTIONS = {'longrope': {'pair_factors': (1.0,) * (R // 2)}}
# That of dynamic grows with the text, whatever its factor is.
SCALED = [name for name in SCALINGS if name not in ('none', 'dynamic')]


def rotary(scaling='none', **options):
  options = OPTIONS.get(scaling, {}) | options
  return POSITIONS['rotary'](D, H, True, scaling=scaling, **options)


def encoding(method, *positions):
  return np.asarray(method.encoding({}, at(np.array([positions]))))


@pytest.mark.parametrize('scaling', SCALED)
def test_a_factor_of_1_changes_no_bit(scaling):
  method = rotary(scaling, original_length=1024)
  np.testing.assert_array_equal(method.rates(), rotary().rates())
  positions = 0, 1, 127, 128, 511
  found, usual = (encoding(m, *positions) for m in (method, rotary()))
  np.testing.assert_array_equal(found, usual)


def test_even_positions_at_half_the_rate_are_those_between_in_training():
  half = encoding(rotary('linear', factor=2.0), 0, 2, 14, 998)
  np.testing.assert_array_equal(half, encoding(rotary(), 0, 1, 7, 499))
  half = encoding(rotary('linear', factor=2.0), 1, 3, 999)
  np.testing.assert_array_equal(half, encoding(rotary(), 0.5, 1.5, 499.5))


@pytest.mark.parametrize('scaling', ['yarn', 'llama3', 'ntk'])
def test_rates_are_between_those_of_training_and_interpolated_ones(scaling):
  usual = rotary().rates()
  rates = rotary(scaling, factor=8.0, original_length=128).rates()
  assert (rates <= usual * (1 + 1e-12)).all()
  assert (rates >= usual / 8 * (1 - 1e-12)).all()
  assert rates[0] == usual[0]
  np.testing.assert_allclose(rates[-1], usual[-1] / 8)


@pytest.mark.parametrize(
  ('scaling', 'options'),
  [
    ('dynamic', {}),
    ('longrope', {'pair_factors': PAIRS, 'short_factors': (1.0,) * (R // 2),
                  'amplitude': 1.0}),
  ],
)  # fmt: skip
def test_texts_of_the_length_of_training_keep_every_bit(scaling, options):
  method = rotary(scaling, factor=8.0, original_length=128, **options)
  short, long = range(100, 128), range(100, 129)
  np.testing.assert_array_equal(
    encoding(method, *short), encoding(rotary(), *short)
  )
  longer = encoding(method, *long) - encoding(rotary(), *long)
  assert abs(longer).max() > 1e-3


@pytest.mark.parametrize('length', [2, 16, 40])
def test_dynamic_is_ntk_by_the_length_of_the_text(length):
  dynamic = rotary('dynamic', factor=3.0, original_length=16)
  # bloc97 (2023): alpha L / L' - (alpha - 1).
  grown = max(3.0 * length / 16 - 2, 1)
  positions = np.arange(length)
  wanted = encoding(rotary('ntk', factor=grown), *positions)
  np.testing.assert_array_equal(encoding(dynamic, *positions), wanted)
  traced = jax.jit(dynamic.encoding)({}, at(jnp.asarray(positions[None])))
  np.testing.assert_allclose(traced, wanted, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('scaling', 'options'),
  [
    ('dynamic', {'factor': 4.0}),
    ('longrope', {'pair_factors': PAIRS, 'short_factors': (1.0,) * (R // 2)}),
  ],
)
def test_a_text_does_not_depend_on_its_batch(scaling, options):
  method = rotary(scaling, original_length=8, **options)
  layer = Attention(D, H, causal=True, position=method)
  x_BLD = normal(0, (3, 20, D))
  # A short text, padding on either side, and a long one.
  padding_mask = np.zeros((3, 20), bool)
  padding_mask[0, :6] = padding_mask[1, 14:] = padding_mask[2] = True
  positions = np.maximum(np.cumsum(padding_mask, axis=1) - 1, 0)
  tokens = Tokens(padding_mask=padding_mask, positions=positions)
  variables = layer.init(jax.random.key(0), x_BLD)
  for apply in (layer.apply, jax.jit(layer.apply)):
    together, _ = apply(variables, x_BLD, query_tokens=tokens)
    for row, at_text in enumerate(padding_mask):
      alone, _ = layer.apply(variables, x_BLD[row : row + 1, at_text])
      np.testing.assert_allclose(
        together[row, at_text], alone[0], atol=2e-5, err_msg=str(row)
      )


def test_some_queries_have_the_frequencies_of_all_keys():
  method = rotary('dynamic', factor=4.0, original_length=8)
  layer = Attention(D, H, causal=True, position=method)
  x_BLD = normal(0, (1, 20, D))
  variables = layer.init(jax.random.key(0), x_BLD)
  whole, _ = layer.apply(variables, x_BLD)
  some, _ = layer.apply(variables, x_BLD[:, :5], x_BLD)
  np.testing.assert_allclose(some, whole[:, :5], atol=2e-5)


@pytest.mark.slow
def test_a_cache_has_the_frequencies_of_one_call():
  layer = Attention(
    D, H, causal=True, position=rotary('dynamic', factor=4.0, original_length=8)
  )
  x_BLD = normal(0, (2, 20, D))
  variables = layer.init(jax.random.key(0), x_BLD)
  cache = {}
  for index in range(20):
    (found, _), cache = layer.apply(
      {**variables, **cache},
      x_BLD[:, index : index + 1],
      cache_len=24,
      mutable='cache',
    )
    if index in (5, 11, 19):
      one_call, _ = layer.apply(variables, x_BLD[:, : index + 1])
      np.testing.assert_allclose(found[:, 0], one_call[:, -1], atol=2e-5)


# --- checkpoints -------------------------------------------------------------

LONG = {'long_factor': list(PAIRS), 'short_factor': [1.25] * (R // 2)}
PUBLISHED = [
  {'rope_type': 'linear', 'factor': 4.0},
  {'rope_type': 'dynamic', 'factor': 2.0},
  {'rope_type': 'yarn', 'factor': 8.0},
  {'rope_type': 'yarn', 'factor': 8.0, 'truncate': False, 'beta_fast': 16.0},
  {'rope_type': 'yarn', 'factor': 8.0, 'attention_factor': 1.5},
  {'rope_type': 'yarn', 'factor': 8.0, 'mscale': 0.707, 'mscale_all_dim': 1.0},
  {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,
   'high_freq_factor': 4.0},
  {'rope_type': 'longrope', 'factor': 8.0, **LONG},
  {'rope_type': 'longrope', 'attention_factor': 1.2, **LONG},
]  # fmt: skip


def fields_of(given, fraction):
  """Fields of a config.json for texts of 1,024 tokens, trained on 128."""
  given = {'rope_theta': 5e4, 'partial_rotary_factor': fraction} | given
  width = int(R * fraction) // 2
  for name in ('long_factor', 'short_factor'):
    if name in given:
      given[name] = given[name][:width]
  longest = 128
  if given['rope_type'] in ('yarn', 'llama3', 'longrope'):
    given['original_max_position_embeddings'] = 128
    longest = 1024
  return {
    'hidden_size': D,
    'num_attention_heads': H,
    'max_position_embeddings': longest,
    'rope_parameters': given,
  }


@pytest.mark.parametrize('given', PUBLISHED, ids=lambda g: '-'.join(g))
def test_options_of_a_file_are_given_back(given):
  fields = fields_of(given, 0.5)
  options = rope(Config(fields), fraction=1.0)
  written = rope_parameters(options, fields['max_position_embeddings'])
  again = fields | written
  assert rope(Config(again), fraction=1.0) == options


@pytest.mark.oracle
@pytest.mark.parametrize('length', [64, 128, 500])
@pytest.mark.parametrize('fraction', [1.0, 0.5])
@pytest.mark.parametrize('given', PUBLISHED, ids=lambda g: '-'.join(g))
def test_rates_and_amplitudes_are_those_of_transformers(
  given, fraction, length
):
  if importlib.util.find_spec('transformers') is None:
    pytest.skip('transformers is not installed')
  from transformers import LlamaConfig
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  fields = fields_of(given, fraction)
  config = LlamaConfig(**fields)
  function = ROPE_INIT_FUNCTIONS[given['rope_type']]
  rates, amplitude = function(config, 'cpu', seq_len=length)
  options = rope(Config(fields), fraction=1.0)
  method = POSITIONS['rotary'](D, H, True, **options)
  cos, sin = np.split(encoding(method, *range(length))[0], 2, axis=-1)
  angle = np.arange(length)[:, None] * rates.double().numpy()[None]
  np.testing.assert_allclose(cos, amplitude * np.cos(angle), atol=2e-4)
  np.testing.assert_allclose(sin, amplitude * np.sin(angle), atol=2e-4)


def test_a_scaling_that_is_not_known_is_one_line():
  with pytest.raises(ValueError, match="rope_type = 'su' is not supported"):
    rope(Config(fields_of({'rope_type': 'su'}, 1.0)))
