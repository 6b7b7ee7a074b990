"""The encoders that attention is compared with, against loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, normal
from test_local import STEPS

from selfattn.baselines import (
  CELLS,
  BowEncoder,
  ConvolutionEncoder,
  RecurrentEncoder,
)
from selfattn.dropout import Dropout

B, L, D = 3, 9, 6
LENGTHS = (9, 4, 1)
IS_TOKEN = np.arange(L)[None] < np.array(LENGTHS)[:, None]
X = np.random.default_rng(1).normal(size=(B, L, D)).astype(np.float32)


def apply(encoder, x=X, padding_mask=IS_TOKEN):
  variables = draw(encoder.init, jax.random.key(0), x, padding_mask)
  outputs = jax.jit(encoder.apply)(variables, x, padding_mask)
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), variables)
  return np.asarray(outputs), params['params']


def normalised(x, params):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * params['scale'] + params['bias']


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(1, 1), (3, 2), (4, 1)])
def test_a_convolution_sums_over_neighbours(kernel_size, dilation):
  found, params = apply(
    ConvolutionEncoder(2, jnp.float32, kernel_size, dilation)
  )
  x = X.astype(np.float64)
  for layer in range(2):
    h = normalised(x, params[f'norm_{layer}'])
    conv, step = params[f'conv_{layer}'], dilation**layer
    kernel = conv['kernel'].reshape(kernel_size, D, D)
    out = np.zeros_like(x)
    for row, length in enumerate(LENGTHS):
      for place in range(length):
        for tap in range(kernel_size):
          # As many before as after; an even window has one more after.
          other = place + (tap - (kernel_size - 1) // 2) * step
          if 0 <= other < length:
            out[row, place] += h[row, other] @ kernel[tap]
    x = x + np.maximum(out + conv['bias'], 0)
  np.testing.assert_allclose(found[IS_TOKEN], x[IS_TOKEN], rtol=1e-4, atol=1e-5)


def recurrence(cell, x, params):
  """The output of a cell for each vector of a text."""
  zeros = np.zeros(len(params['hn' if cell == 'gru' else 'hi']['kernel']))
  carry = zeros if cell == 'gru' else (zeros, zeros)
  for v in x:
    carry, out = STEPS[cell](params, carry, v)
    yield out


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('cell', CELLS)
def test_a_recurrence_reads_token_by_token(cell, bidirectional):
  found, params = apply(RecurrentEncoder(2, jnp.float32, cell, bidirectional))
  for row, length in enumerate(LENGTHS):
    x = X[row, :length].astype(np.float64)
    for layer in range(2):
      both = [list(recurrence(cell, x, params[f'forward_{layer}']))]
      if bidirectional:
        back = recurrence(cell, x[::-1], params[f'backward_{layer}'])
        both.append(list(back)[::-1])
      x = np.concatenate(both, axis=-1)
    np.testing.assert_allclose(found[row, :length], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('make', [ConvolutionEncoder, RecurrentEncoder])
def test_dropout_drops_at_every_layer_and_none_without_it(make):
  encoder = make(2, jnp.float32)
  variables = draw(encoder.init, jax.random.key(0), X, IS_TOKEN)
  apply = jax.jit(
    lambda key, rate=0.5: encoder.apply(
      variables, X, IS_TOKEN, Dropout.create(key, rate)
    )
  )
  dropped = [apply(jax.random.key(k)) for k in (0, 0, 1)]
  plain = jax.jit(encoder.apply)(variables, X, IS_TOKEN)
  np.testing.assert_array_equal(dropped[0], dropped[1])
  assert not np.allclose(dropped[0], dropped[2])
  assert not np.allclose(plain, dropped[0])


@pytest.mark.parametrize(
  ('encoder', 'is_causal'),
  [
    (BowEncoder(), True),
    (RecurrentEncoder(1, jnp.float32, bidirectional=False), True),
    (RecurrentEncoder(1, jnp.float32), False),
    (ConvolutionEncoder(1, jnp.float32), False),
  ],
)
def test_one_that_says_it_is_causal_sees_nothing_later(encoder, is_causal):
  x_BLD = normal(0, (9, 5, 6))
  variables = draw(encoder.init, jax.random.key(1), x_BLD, None)
  slopes = jax.jit(
    jax.grad(lambda x: encoder.apply(variables, x, None)[:, 2].sum())
  )
  assert encoder.causal == is_causal
  assert bool((slopes(x_BLD)[:, 3:] == 0).all()) == is_causal
