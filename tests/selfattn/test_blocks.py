"""Blocks against their formulas."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from selfattn import pretrained
from selfattn.blocks import BLOCKS, FEED_FORWARDS, PreNorm
from selfattn.dropout import Dropout
from selfattn.encoders import ENCODERS
from selfattn.norms import NORMS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, normal

B, L, H, D, F = 2, 6, 4, 24, 7
X = normal(1, (B, L, D))


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


def silu(x):
  return x / (1 + np.exp(-x))


def exact_gelu(x):
  return 0.5 * x * (1 + special.erf(x / np.sqrt(2)))


def relu(x):
  return np.maximum(x, 0)


def clamped(gate, up):
  """gpt-oss, its reference code: swiglu with limits and 1 beside the second."""
  gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
  return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def xielu(x, alpha_p, alpha_n):
  """Huang and Schlag 2024, equation 10, with beta = 0.5."""
  right, left = np.log1p(np.exp(alpha_p)), 0.5 + np.log1p(np.exp(alpha_n))
  fallen = left * (np.expm1(np.minimum(x, 0)) - x)
  return np.where(x > 0, right * x**2, fallen) + 0.5 * x


ACTIVATIONS = {
  'gelu': tanh_gelu,
  'gelu_exact': exact_gelu,
  'relu': relu,
  'relu2': lambda x: relu(x) ** 2,
  'silu': silu,
  'xielu': xielu,
  'swiglu': lambda gate, up: silu(gate) * up,
  'geglu': lambda gate, up: tanh_gelu(gate) * up,
  'geglu_exact': lambda gate, up: exact_gelu(gate) * up,
  'reglu': lambda gate, up: relu(gate) * up,
  'swiglu_clamped': clamped,
}


def feed_forward(params, x, name):
  maps = [params[m] for m in ('mlp_in', 'mlp_gated') if m in params]
  scalars = params.get(f'mlp_{name}', {})
  h = ACTIVATIONS[name](*(dense(of_map, x) for of_map in maps), **scalars)
  return dense(params['mlp_out'], h)


def norm(params, x, name):
  if name.startswith('layer'):
    x = x - x.mean(axis=-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
  scale = np.float64(params.get('scale', 0 if name.endswith('offset') else 1))
  scale = 1 + scale if name.endswith('offset') else scale
  return x * scale + np.float64(params.get('bias', 0))


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
  'branch': lambda x, attend, fed, norms: (
    (h := x + norms['norm_attention'](attend(x))) + norms['norm_mlp'](fed(h))
  ),
  'sandwich': lambda x, attend, fed, norms: (
    (h := x + norms['norm_attention_out'](attend(norms['norm_attention'](x))))
    + norms['norm_mlp_out'](fed(norms['norm_mlp'](h)))
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
@pytest.mark.parametrize(
  ('name', 'kind', 'feed'),
  [
    *itertools.product(BLOCKS, NORMS, ['gelu']),
    *((name, 'layer', feed) for name, feed in zip(
      itertools.cycle(BLOCKS), [*FEED_FORWARDS][1:], strict=False)),
  ],
)  # fmt: skip
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

  names = ('norm', 'norm_attention', 'norm_mlp', 'norm_attention_out')
  norms = {
    n: lambda x, n=n: norm(of_block.get(n, {}), x, kind)
    for n in (*names, 'norm_mlp_out')
  }
  want = FORMULAS[name](
    np.float64(X), attend, lambda x: feed_forward(of_block, x, feed), norms
  )
  if name != 'post':
    want = norm(params.get('norm_out', {}), want, kind)
  found = made.apply({'params': params}, X, Tokens())
  np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'option', [{'norm': 'batch'}, {'feed_forward': 'tanh'}]
)
def test_an_option_that_does_not_exist_is_refused(option):
  ((name, value),) = option.items()
  with pytest.raises(ValueError, match=f'{name} = {value!r} must be one of'):
    BLOCKS['pre'](**option).check()


class FedForward(PreNorm):
  """The feed-forward network of a block alone."""

  @nn.compact
  def __call__(self, x, dropout=None):
    return self.fed_forward(x, dropout)


def test_dropout_may_spare_the_hidden_layer():
  x = normal(0, (1, 50, 8))
  dropout = Dropout.create(jax.random.key(1), 0.5)
  for drops_hidden in (True, False):
    model = FedForward(
      mlp_dim=16, dtype=jnp.float32, hidden_dropout=drops_hidden
    )
    variables = model.init(jax.random.key(0), x)
    dropped = model.apply(variables, x, dropout)
    is_equal = (dropped == model.apply(variables, x)).all()
    assert is_equal != drops_hidden


@pytest.mark.parametrize(
  ('kind', 'drops_hidden'), [('bert', False), ('llama', False), ('t5', True)]
)
def test_published_models_drop_where_they_were_trained_to(kind, drops_hidden):
  sizes = {'hidden_size': 8, 'num_hidden_layers': 1, 'num_attention_heads': 2}
  sizes |= {'intermediate_size': 16, 'vocab_size': 9, 'd_model': 8, 'd_kv': 4}
  sizes |= {'d_ff': 16, 'num_layers': 1, 'num_heads': 2}
  model = pretrained.model_of({'model_type': kind} | sizes)
  assert model.block.options['hidden_dropout'] == drops_hidden
