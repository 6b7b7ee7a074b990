"""Convolutions and recurrences, against loops in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, D = 3, 8, 6
close = {'rtol': 1e-5, 'atol': 1e-5}
X = normal(0, (B, L, D))
IS_TOKEN = np.arange(L)[None] < np.array([[8], [5], [0]])
SEGMENTS = np.broadcast_to(np.array([0, 0, 0, 1, 1, 1, 1, 1]), (B, L))
# test_matrix packs rows, with every method.
FORMS = [(False, True), (True, False)]
forms = pytest.mark.parametrize(('causal', 'packed'), FORMS)


def tokens(packed):
  return Tokens(
    jnp.asarray(IS_TOKEN), segments=jnp.asarray(SEGMENTS) if packed else None
  )


def is_there(b, i, t, packed):
  """Whether token t of text b stands in the same segment as token i."""
  if not 0 <= t < L or not IS_TOKEN[b, t]:
    return False
  return not packed or SEGMENTS[b, t] == SEGMENTS[b, i]


def made(name, causal, options):
  method = POSITIONS[name](D, 1, causal, **options)
  params = draw(method.init, jax.random.key(1))
  exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return method, params, exact


def gelu(x):
  erf = np.vectorize(math.erf)
  return x * 0.5 * (1 + erf(x / np.sqrt(2)))


@forms
@pytest.mark.parametrize(
  'options',
  [
    {},
    {'kernel_size': 4, 'num_groups': 3},
    {'kernel_size': 3, 'activation': 'none'},
  ],
  ids=str,
)
def test_a_convolution_reads_the_tokens_around(options, causal, packed):
  method, params, exact = made('convolutional', causal, options)
  found = jax.jit(method.embed)(params, X, tokens(packed))
  size, kernel = method.kernel_size, exact['kernel']
  after = 0 if causal else (size - 1) // 2
  x = np.asarray(X, np.float64)
  for b, i in np.ndindex(B, L):
    if not IS_TOKEN[b, i]:
      continue
    read = exact['bias'].copy()
    for tap in range(size):
      t = i - (size - 1 - after) + tap
      if is_there(b, i, t, packed):
        groups = x[b, t].reshape(kernel.shape[1], -1)
        read += np.einsum('gi,gio->go', groups, kernel[tap]).reshape(D)
    read = read if method.activation == 'none' else gelu(read)
    np.testing.assert_allclose(found[b, i], x[b, i] + read, **close)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def lstm(cell, carry, x):
  """Hochreiter and Schmidhuber 1997, with a forget gate (Gers et al. 2000)."""
  c, h = carry

  def gate(name):
    h_part = h @ cell[f'h{name}']['kernel'] + cell[f'h{name}']['bias']
    return x @ cell[f'i{name}']['kernel'] + h_part

  c = sigmoid(gate('f')) * c + sigmoid(gate('i')) * np.tanh(gate('g'))
  h = sigmoid(gate('o')) * np.tanh(c)
  return (c, h), h


def gru(cell, h, x):
  """Cho et al. 2014, with the reset gate after the product."""

  def of_x(name):
    return x @ cell[f'i{name}']['kernel'] + cell[f'i{name}']['bias']

  reset = sigmoid(of_x('r') + h @ cell['hr']['kernel'])
  update = sigmoid(of_x('z') + h @ cell['hz']['kernel'])
  of_h = h @ cell['hn']['kernel'] + cell['hn']['bias']
  h = (1 - update) * np.tanh(of_x('n') + reset * of_h) + update * h
  return h, h


STEPS = {'lstm': lstm, 'gru': gru}


@forms
@pytest.mark.parametrize(
  'options',
  [
    {},
    {'cell': 'gru', 'residual': False},
    {'window': 3},
    {'cell': 'gru', 'window': 2},
  ],
  ids=str,
)
def test_a_recurrence_reads_the_text_or_a_window(options, causal, packed):
  method, params, exact = made('recurrent', causal, options)
  found = jax.jit(method.embed)(params, X, tokens(packed))
  width = D if causal else D // 2
  x = np.asarray(X, np.float64)
  for b, i in np.ndindex(B, L):
    if not IS_TOKEN[b, i]:
      continue
    read = []
    for name in sorted(params, reverse=True):  # forward, then backward
      step = 1 if name == 'forward' else -1
      first = 0 if step == 1 else L - 1
      if method.window:
        first = i - step * (method.window - 1)
      carry = np.zeros(width)
      carry = (carry, carry) if method.cell == 'lstm' else carry
      for t in range(first, i + step, step):
        if is_there(b, i, t, packed):
          carry, out = STEPS[method.cell](exact[name], carry, x[b, t])
      read.append(out)
    want = np.concatenate(read) + (x[b, i] if method.residual else 0)
    np.testing.assert_allclose(found[b, i], want, **close)


@pytest.mark.parametrize(
  'causal', [True, pytest.param(False, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
  ('segments', 'mask', 'kept'),
  [
    ([1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [0, 1, 3, 4]),
    ([1, 1, 2, 1, 1], [1, 1, 1, 1, 1], [0, 1, 3, 4]),
    ([1, 2, 1, 2, 1], [1, 1, 1, 1, 1], [0, 2, 4]),
  ],
)
def test_a_recurrence_goes_on_behind_what_is_not_of_its_text(
  segments, mask, kept, causal
):
  position = POSITIONS['recurrent'](8, 2, causal)
  params, x = position.init(jax.random.key(1)), normal(0, (1, 5, 8))

  def read(x, **tokens):
    return position.embed(
      params, x, Tokens(**tokens).with_defaults(x.shape[1], 1)
    )

  want = read(x[:, np.array(kept)])
  found = read(
    x, segments=np.array([segments]), padding_mask=np.array([mask], bool)
  )
  np.testing.assert_allclose(found[:, np.array(kept)], want, atol=1e-6)
