"""Blocks against their formulas, and one of one's own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.blocks import BLOCKS, FEED_FORWARDS, NORMS, Block
from selfattn.encoders import ENCODERS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw

B, L, H, D, F = 2, 6, 4, 24, 7
X = jax.random.normal(jax.random.key(1), (B, L, D))


def encoder(num_layers=1, kind='attention', **fields):
  position = POSITIONS['rotary'](D, H, True)
  return ENCODERS[kind](
    num_layers, H, F, position, jnp.float32, causal=True, **fields
  )


def drawn(made):
  return draw(made.init, jax.random.key(0), X, Tokens())['params']


# --- formulas, in float64 ----------------------------------------------------


def dense(params, x):
  return x @ np.float64(params['kernel']) + np.float64(params['bias'])


def tanh_gelu(x):
  """The approximation by tanh (Hendrycks and Gimpel 2016)."""
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
  'gelu': tanh_gelu,
  'relu': lambda x: np.maximum(x, 0),
  'swiglu': lambda x: x / (1 + np.exp(-x)),
  'geglu': tanh_gelu,
}


def feed_forward(params, x, name):
  h = ACTIVATIONS[name](dense(params['mlp_in'], x))
  if 'mlp_gated' in params:
    h = h * dense(params['mlp_gated'], x)
  return dense(params['mlp_out'], h)


def norm(params, x, name):
  if name == 'layer':
    x = x - x.mean(axis=-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
  return x * np.float64(params['scale']) + np.float64(params.get('bias', 0))


FORMULAS = {
  'pre': lambda x, attend, fed, norms: (
    (h := x + attend(norms['norm_attention'](x))) + fed(norms['norm_mlp'](h))
  ),
  'post': lambda x, attend, fed, norms: norms['norm_mlp'](
    (h := norms['norm_attention'](x + attend(x))) + fed(h)
  ),
  'parallel': lambda x, attend, fed, norms: (
    x + attend(norms['norm'](x)) + fed(norms['norm'](x))
  ),
}


@pytest.mark.parametrize(
  ('kernel_init', 'bound'),
  [
    ('xavier', lambda fan_in, fan_out: np.sqrt(6 / (fan_in + fan_out))),
    ('torch', lambda fan_in, fan_out: 1 / np.sqrt(fan_in)),
  ],
)
def test_kernels_are_uniform_up_to_their_bound(kernel_init, bound):
  """Glorot and Bengio 2010, equation 16; the page of torch.nn.Linear."""
  block = BLOCKS['pre'](kernel_init=kernel_init)
  made = encoder(num_layers=1, block=block)
  flat = jax.tree_util.tree_leaves_with_path(
    jax.jit(made.init)(jax.random.key(0), X, Tokens())['params']
  )
  kernels = [leaf for path, leaf in flat if 'kernel' in str(path[-1])]
  assert len(kernels) == 6
  for kernel in kernels:
    largest, most = abs(kernel).max(), bound(*kernel.shape)
    assert 0.9 * most < largest <= most


@pytest.mark.matrix
@pytest.mark.parametrize('feed', FEED_FORWARDS)
@pytest.mark.parametrize('kind', NORMS)
@pytest.mark.parametrize('name', BLOCKS)
def test_a_block_is_its_formula(name, kind, feed):
  block = BLOCKS[name](feed_forward=feed, norm=kind)
  made = encoder(block=block)
  params = drawn(made)
  layer = made._attention(
    0,
    embed_dim=D,
    num_heads=H,
    position=made.position,
    causal=True,
    parent=None,
  )
  of_block = params['block_0']

  def attend(h):
    attended, _ = layer.apply(
      {'params': of_block['attention']}, jnp.asarray(h, jnp.float32)
    )
    return np.float64(attended)

  norms = {
    n: lambda x, n=n: norm(of_block[n], x, kind)
    for n in of_block
    if 'norm' in n
  }
  want = FORMULAS[name](
    np.float64(X), attend, lambda x: feed_forward(of_block, x, feed), norms
  )
  if name != 'post':
    want = norm(params['norm_out'], want, kind)
  found = made.apply({'params': params}, X, Tokens())
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


# --- a block of one's own ----------------------------------------------------


class Sandwiched(Block):
  """Norms on both sides of attention, a gate, and no bias in what is fed."""

  gate: float = 0.5

  def vectors(self, x_BLD, attend, dropout):
    h_BLD = attend(self.normalised('norm_before', x_BLD))
    x_BLD = x_BLD + self.gate * self.normalised('norm_after', h_BLD)
    h_BLF = nn.Dense(self.mlp_dim, use_bias=False, name='wide')(x_BLD)
    return x_BLD + nn.Dense(D, use_bias=False, name='narrow')(nn.relu(h_BLF))


FIELDS = {
  'num_kv_heads': 2,
  'window': ((2, 0), ()),
  'value_residual': True,
  'block': Sandwiched(norm='rms', gate=0.25),
}


def test_a_block_of_ones_own_runs_in_every_form():
  made = encoder(5, **FIELDS)
  params = drawn(made)
  assert set(params['block_4']) == {
    'attention', 'norm_before', 'norm_after', 'wide', 'narrow'
  }  # fmt: skip

  def total(params, made):
    y = made.apply({'params': params}, X, Tokens())
    return (y**2).sum(), y

  both = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    both(params, made.clone(scan=True, remat=True)),
    both(params, made),
  )


def test_a_block_of_ones_own_continues_from_a_cache():
  made = encoder(3, **FIELDS)
  params, cache = drawn(made), {}
  want = jax.jit(made.apply)({'params': params}, X, Tokens())

  @jax.jit
  def step(cache, x):
    return made.apply(
      {'params': params, **cache}, x, Tokens(), cache_len=L, mutable='cache'
    )

  for begin in range(0, L, 2):
    found, cache = step(cache, X[:, begin : begin + 2])
    np.testing.assert_allclose(
      found, want[:, begin : begin + 2], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
  'option', [{'norm': 'batch'}, {'feed_forward': 'tanh'}]
)
def test_an_option_that_does_not_exist_is_refused(option):
  ((name, value),) = option.items()
  with pytest.raises(ValueError, match=f'{name} = {value!r} must be one of'):
    BLOCKS['pre'](**option).check()
