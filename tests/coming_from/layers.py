"""What attention layers do, found by running them, in words.

Each method of a class is a row of the second table of docs/coming_from.md, and
returns what stands in the cell of its library.
"""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from selfattn import Attention, Dropout
from tests.coming_from.functions import is_close, of_masked_row

# Vectors of two rows of L tokens, H heads of K channels. torch has a fast path
# for even numbers of heads alone.
B, L, H, K = 2, 5, 4, 3
D = H * K
IS_TOKEN_BL = np.arange(L)[None] < np.array([[L], [2]])
CAUSAL = np.tri(L, dtype=bool)
# Letters of the axes of kernels, of a layer whose input is 7 wide.
LETTERS = {7: 'D', H: 'H', K: 'K', D: 'H K'}


def vectors(width=D):
  rng = np.random.default_rng(0)
  return rng.normal(size=(B, L, width)).astype(np.float32)


def in_letters(shape, letters):
  """A shape in words, such as (D, H K)."""
  return f'({", ".join(letters[size] for size in shape)})'


def of_rows_that_sum(weights):
  sums_to_one = is_close(np.asarray(weights).sum(axis=-1), 1)
  return 'before dropout' if sums_to_one else 'after dropout'


def initial(kernel):
  """The distribution of a large kernel (width, width)."""
  width, largest = len(kernel), float(abs(kernel).max())
  for name, outputs in ('(D, D)', width), ('(3 D, D)', 3 * width):
    bound = (6 / (width + outputs)) ** 0.5
    if 0.99 * bound < largest <= bound:
      return f'Glorot uniform, of {name}'
  assert abs(kernel.std() * width**0.5 - 1) < 0.02
  # A normal distribution that is truncated at two of its standard deviations,
  # so that what is left deviates by 0.88 of one.
  assert largest <= 2 / 0.87962566103423978 * width**-0.5
  return 'LeCun normal'


def attends(weights_LM, mask_LM):
  """Whether weights are positive where a mask is True, and nowhere else."""
  return np.array_equal(np.asarray(weights_LM) > 0, mask_LM)


class Ours:
  def run(self, *vectors, fields=None, **arguments):
    """Output, weights and parameters of a layer."""
    layer = Attention(D, H, **fields or {})
    variables = layer.init(jax.random.key(0), vectors[0])
    output, weights = layer.apply(
      variables, *vectors, return_weights=True, **arguments
    )
    return output, weights, variables['params']

  def width(self):
    _, _, params = self.run(vectors(7), fields={'head_dim': 6})
    assert params['query']['kernel'].shape == (7, H * 6)
    assert params['out']['kernel'].shape == (H * 6, D)
    return '`embed_dim`: output; `num_heads` times `head_dim`: all heads'

  def axes(self):
    _, weights, _ = self.run(vectors())
    assert weights.shape == (B, H, L, L)
    return '(B, L, D)'

  def self_attention(self):
    x_BLD = vectors()
    assert is_close(self.run(x_BLD)[0], self.run(x_BLD, x_BLD, x_BLD)[0])
    return '`layer(x)`'

  def padding(self):
    _, weights, _ = self.run(vectors(), query_tokens=IS_TOKEN_BL)
    assert attends(weights[:, 0, 0], IS_TOKEN_BL)
    return '`query_tokens` (B, L): True at tokens'

  def mask(self):
    _, weights, _ = self.run(vectors(), mask=CAUSAL[None, None])
    assert attends(weights[1, 2], CAUSAL)
    return '`mask`, broadcasting to (B, H, L, M): True attends'

  def causal(self):
    _, weights, _ = self.run(vectors(), fields={'causal': True})
    assert attends(weights[1, 2], CAUSAL)
    return '`causal=True`, a field'

  def fully_masked_row(self):
    _, weights, _ = self.run(vectors(), query_tokens=np.zeros((B, L), bool))
    return of_masked_row(weights[1, 2, 3], L)

  def weights(self):
    _, weights, _ = self.run(vectors())
    assert weights.shape == (B, H, L, L)
    return '`return_weights=True`: (B, H, L, M)'

  def weights_with_dropout(self):
    dropout = Dropout.create(jax.random.key(1), 0.5)
    return of_rows_that_sum(self.run(vectors(), dropout=dropout)[1])

  def dropout(self):
    outputs = [
      self.run(vectors(), dropout=dropout)[0]
      for dropout in (None, Dropout.create(jax.random.key(1), 0.5))
    ]
    assert not is_close(*outputs)
    return '`dropout=Dropout.create(key, rate)`, in the call'

  def what_is_dropped(self):
    x_BLD = np.broadcast_to(vectors()[:1], (B, L, D))
    dropout = Dropout.create(jax.random.key(1), 0.5)
    first, second = self.run(x_BLD, dropout=dropout)[0]
    assert not is_close(first, second)
    assert not Attention(D, H).broadcast_dropout
    return 'others in each row and head'

  def biases(self):
    _, _, params = self.run(vectors())
    assert all('bias' in params[name] for name in params)
    _, _, params = self.run(vectors(), fields={'use_bias': False})
    assert not any('bias' in params[name] for name in params)
    return '`use_bias=True`'

  def initial_kernels(self):
    init = jax.jit(Attention(512, 1).init)
    params = init(jax.random.key(0), np.zeros((1, 1, 512)))['params']
    of_output = initial(params['out']['kernel'])
    assert of_output == initial(params['query']['kernel'])
    return of_output

  def kernel_of_queries(self):
    shape = self.run(vectors(7))[2]['query']['kernel'].shape
    return f"`['query']['kernel']` {in_letters(shape, LETTERS)}"

  def kernel_of_output(self):
    layer = Attention(7, H, head_dim=K)
    params = layer.init(jax.random.key(0), vectors(7))['params']
    shape = params['out']['kernel'].shape
    return f"`['out']['kernel']` {in_letters(shape, LETTERS)}"

  def kv_heads(self):
    _, _, params = self.run(vectors(), fields={'num_kv_heads': 1})
    assert params['key']['kernel'].shape == (D, K)
    return '`num_kv_heads`'

  def cache(self):
    layer, x_BLD = Attention(D, H, causal=True), vectors()
    variables = layer.init(jax.random.key(0), x_BLD)
    whole, _ = layer.apply(variables, x_BLD)
    for part_BLD in (x_BLD[:, :3], x_BLD[:, 3:]):
      (last, _), cache = layer.apply(
        variables, part_BLD, mutable=['cache'], cache_len=L
      )
      variables |= cache
    assert is_close(last, whole[:, 3:])
    return "`mutable=['cache'], cache_len=N`"

  def norm_of_queries(self):
    _, _, params = self.run(vectors(), fields={'qk_norm': True})
    assert params['query_norm'].keys() == {'scale'}
    return '`qk_norm=True`: RMS'


class Flax:
  """`nnx.MultiHeadAttention`, and Linen's layer of the same parameters."""

  def layer(self, width=D, **fields):
    fields = {'decode': False, 'rngs': nnx.Rngs(0)} | fields
    return nnx.MultiHeadAttention(H, width, **fields)

  def sowing(self, layer, *vectors, **arguments):
    """Output and weights."""
    call = nnx.capture(layer, nnx.Intermediate)
    output, sown = call(*vectors, sow_weights=True, **arguments)
    return output, sown['attention_weights'][0]

  def both(self, *vectors, fields=None, **arguments):
    """Outputs and weights, equal in NNX and Linen, and parameters."""
    layer = self.layer(vectors[0].shape[-1], **fields or {})
    params = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    output, weights = self.sowing(layer, *vectors, **arguments)
    linen = nn.MultiHeadDotProductAttention(H, **fields or {})
    same, state = linen.apply(
      {'params': params},
      *vectors,
      sow_weights=True,
      mutable=['intermediates'],
      **arguments,
    )
    sown = state['intermediates']['attention_weights'][0]
    np.testing.assert_allclose(output, same, atol=1e-5)
    np.testing.assert_allclose(weights, sown, atol=1e-5)
    return output, weights, params

  def width(self):
    fields = {'qkv_features': H * 6, 'out_features': D}
    _, _, params = self.both(vectors(7), fields=fields)
    assert params['query']['kernel'].shape == (7, H, 6)
    assert params['out']['kernel'].shape == (H, 6, D)
    return '`out_features`: output; `qkv_features`: all heads'

  def axes(self):
    _, weights, _ = self.both(vectors())
    assert weights.shape == (B, H, L, L)
    return '(B, L, D)'

  def self_attention(self):
    x_BLD = vectors()
    assert is_close(self.both(x_BLD)[0], self.both(x_BLD, x_BLD, x_BLD)[0])
    return '`layer(x)`'

  def padding(self):
    _, weights, _ = self.both(vectors(), mask=IS_TOKEN_BL[:, None, None])
    assert attends(weights[:, 0, 0], IS_TOKEN_BL)
    return '`mask` (B, 1, 1, M): True at tokens'

  def mask(self):
    _, weights, _ = self.both(vectors(), mask=CAUSAL[None, None])
    assert attends(weights[1, 2], CAUSAL)
    return '`mask`, broadcasting to (B, H, L, M): True attends'

  def causal(self):
    mask = nn.make_causal_mask(np.ones((B, L)))
    want, weights, _ = self.both(vectors(), mask=mask)
    assert attends(weights[1, 2], CAUSAL)
    assert is_close(self.layer()(vectors(), is_causal=True), want)
    return '`is_causal=True`, in the call; Linen: `mask=nn.make_causal_mask(x)`'

  def fully_masked_row(self):
    mask = np.zeros((B, 1, L, L), bool)
    return of_masked_row(self.both(vectors(), mask=mask)[1][1, 2, 3], L)

  def weights(self):
    _, weights, _ = self.both(vectors())
    assert weights.shape == (B, H, L, L)
    return '`sow_weights=True`: (B, H, L, M), `attention_weights`'

  def dropped(self, x_BLD):
    """Output and weights with dropout, in NNX."""
    fields = {'dropout_rate': 0.5, 'deterministic': False}
    layer = self.layer(**fields)
    output, weights = self.sowing(layer, x_BLD, rngs=nnx.Rngs(1))
    linen = nn.MultiHeadDotProductAttention(H, **fields)
    _, state = linen.apply(
      {'params': nnx.to_pure_dict(nnx.state(layer, nnx.Param))},
      x_BLD,
      sow_weights=True,
      mutable=['intermediates'],
      rngs={'dropout': jax.random.key(1)},
    )
    sown = state['intermediates']['attention_weights'][0]
    assert of_rows_that_sum(weights) == of_rows_that_sum(sown)
    return output, weights

  def weights_with_dropout(self):
    return of_rows_that_sum(self.dropped(vectors())[1])

  def dropout(self):
    fields = {'dropout_rate': 0.5, 'deterministic': True}
    evaluated, _, _ = self.both(vectors(), fields=fields)
    assert is_close(evaluated, self.both(vectors())[0])
    assert not is_close(evaluated, self.dropped(vectors())[0])
    return '`dropout_rate`, a field, unless `deterministic`'

  def what_is_dropped(self):
    x_BLD = np.broadcast_to(vectors()[:1], (B, L, D))
    first, second = self.dropped(x_BLD)[0]
    assert is_close(first, second)
    assert nn.MultiHeadDotProductAttention(H).broadcast_dropout
    return 'the same in all rows and heads'

  def biases(self):
    _, _, params = self.both(vectors())
    assert all('bias' in params[name] for name in params)
    _, _, params = self.both(vectors(), fields={'use_bias': False})
    assert not any('bias' in params[name] for name in params)
    return '`use_bias=True`'

  def initial_kernels(self):
    layer = nnx.MultiHeadAttention(1, 512, decode=False, rngs=nnx.Rngs(0))
    of_output = initial(layer.out.kernel[...][0])
    assert of_output == initial(layer.query.kernel[...][:, 0])
    return of_output

  def kernel_of_queries(self):
    _, _, params = self.both(vectors(7), fields={'qkv_features': D})
    shape = params['query']['kernel'].shape
    return f"`['query']['kernel']` {in_letters(shape, LETTERS)}"

  def kernel_of_output(self):
    _, _, params = self.both(vectors(7), fields={'qkv_features': D})
    shape = params['out']['kernel'].shape
    return f"`['out']['kernel']` {in_letters(shape, LETTERS)}"

  def kv_heads(self):
    layer = self.layer(num_kv_heads=1)
    assert layer.key.kernel.shape == (D, 1, K)
    fields = inspect.signature(nn.MultiHeadDotProductAttention).parameters
    assert 'num_kv_heads' not in fields
    return '`num_kv_heads`; Linen: none'

  def cache(self):
    layer, x_BLD = self.layer(), vectors()
    whole = layer(x_BLD, is_causal=True)
    layer.init_cache(x_BLD.shape)
    outputs = [layer(x_BLD[:, n : n + 1], decode=True) for n in range(L)]
    assert is_close(jnp.concatenate(outputs, axis=1), whole)
    return '`decode=True`, a token a call'

  def norm_of_queries(self):
    layer = self.layer(normalize_qk=True)
    assert isinstance(layer.query_ln, nnx.LayerNorm)
    return '`normalize_qk=True`: LayerNorm'


class Torch:
  def layer(self, **fields):
    import torch

    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(D, H, batch_first=True, **fields)

  def run(self, layer=None, x_BLD=None, **arguments):
    """Output and weights."""
    import torch

    x = torch.tensor(vectors() if x_BLD is None else x_BLD)
    arguments = {
      name: torch.tensor(value) if isinstance(value, np.ndarray) else value
      for name, value in arguments.items()
    }
    return (layer or self.layer())(x, x, x, **arguments)

  def width(self):
    layer = self.layer()
    assert layer.head_dim * H == layer.embed_dim == D
    return '`embed_dim`: both'

  def axes(self):
    import torch

    x = torch.zeros(2, 5, D)
    by_default = torch.nn.MultiheadAttention(D, H)
    assert by_default(x, x, x)[1].shape == (5, 2, 2)
    assert self.run()[1].shape == (B, L, L)
    return '(L, B, D); with `batch_first=True`, (B, L, D)'

  def self_attention(self):
    arguments = inspect.signature(self.layer().forward).parameters
    required = [
      name for name, one in arguments.items() if one.default is one.empty
    ]
    assert required == ['query', 'key', 'value']
    return '`layer(x, x, x)`'

  def padding(self):
    weights = self.run(key_padding_mask=~IS_TOKEN_BL)[1].detach()
    assert attends(weights[:, 0], IS_TOKEN_BL)
    return '`key_padding_mask` (B, M): True at padding'

  def mask(self):
    for mask in ~CAUSAL, np.broadcast_to(~CAUSAL, (B * H, L, L)).copy():
      weights = self.run(attn_mask=mask)[1].detach()
      assert attends(weights[1], CAUSAL)
    return '`attn_mask`, (L, M) or (B H, L, M): True is masked'

  def causal(self):
    with pytest.raises(RuntimeError, match='Need attn_mask'):
      self.run(is_causal=True)
    for mask in ~CAUSAL, np.zeros((L, L), bool):
      weights = self.run(attn_mask=mask, is_causal=True)[1].detach()
      assert attends(weights[1], ~mask)
    return '`attn_mask`; `is_causal=True` beside it is a hint'

  def fully_masked_row(self):
    import torch

    layer, found = self.layer(), set()
    everything = np.ones((B, L), bool)
    for in_training in (True, False):
      for has_gradients in (True, False):
        for needs_weights in (True, False):
          layer.train(in_training)
          with torch.set_grad_enabled(has_gradients):
            output, _ = self.run(
              layer, key_padding_mask=everything, need_weights=needs_weights
            )
          is_zero = is_close(output.detach(), layer.out_proj.bias.detach())
          assert is_zero or output.isnan().all()
          is_fast = not in_training and not has_gradients
          found.add((needs_weights or is_fast, is_zero))
    assert found == {(True, False), (False, True)}
    finding = '../findings/multihead_attention_without_keys.sh'
    return f'[NaN, or zero]({finding})'

  def weights(self):
    mean = self.run()[1].detach()
    by_head = self.run(average_attn_weights=False)[1].detach()
    assert by_head.shape == (B, H, L, L)
    assert is_close(by_head.mean(dim=1), mean)
    return 'the mean over heads; `average_attn_weights=False`: (B, H, L, M)'

  def weights_with_dropout(self):
    layer = self.layer(dropout=0.5)
    weights = self.run(layer, average_attn_weights=False)[1]
    return of_rows_that_sum(weights.detach())

  def dropout(self):
    layer = self.layer(dropout=0.5)
    assert layer.training
    assert not is_close(*(self.run(layer)[0].detach() for _ in range(2)))
    layer.eval()
    assert is_close(*(self.run(layer)[0].detach() for _ in range(2)))
    return '`dropout`, a field, in `train()`'

  def what_is_dropped(self):
    x_BLD = np.broadcast_to(vectors()[:1], (B, L, D)).copy()
    first, second = self.run(self.layer(dropout=0.5), x_BLD)[0].detach()
    assert not is_close(first, second)
    return 'others in each row and head'

  def biases(self):
    kernels = {'in_proj_weight', 'out_proj.weight'}
    biases = {'in_proj_bias', 'out_proj.bias'}
    assert set(self.layer().state_dict()) == kernels | biases
    assert set(self.layer(bias=False).state_dict()) == kernels
    return '`bias=True`'

  def initial_kernels(self):
    import torch

    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(512, 1)
    of_queries = initial(layer.in_proj_weight.detach().numpy()[:512])
    largest = float(abs(layer.out_proj.weight.detach()).max())
    assert 0.99 < largest * 512**0.5 <= 1
    return f'{of_queries}; of the output, uniform up to D^-1/2'

  def kernel_of_queries(self):
    assert self.layer().in_proj_weight.shape == (3 * D, D)
    apart = self.layer(kdim=6)
    assert apart.q_proj_weight.shape == (D, D)
    assert apart.k_proj_weight.shape == (D, 6)
    return '`in_proj_weight[:D]` (D, D); with `kdim`, `q_proj_weight`'

  def kernel_of_output(self):
    assert self.layer().out_proj.weight.shape == (D, D)
    return '`out_proj.weight` (D, D)'

  def kv_heads(self):
    fields = inspect.signature(type(self.layer())).parameters
    # A bias of keys and values is no number of heads.
    assert not any('kv' in name for name in fields if name != 'add_bias_kv')
    return 'none'

  def cache(self):
    arguments = inspect.signature(self.layer().forward).parameters
    assert not any('cache' in name or 'past' in name for name in arguments)
    return 'none'

  def norm_of_queries(self):
    fields = inspect.signature(type(self.layer())).parameters
    assert not any('norm' in name for name in fields)
    return 'none'


ROWS = {
  'widths': 'width',
  'input': 'axes',
  'self-attention': 'self_attention',
  'padding': 'padding',
  'a mask of pairs': 'mask',
  'causal': 'causal',
  'a fully masked row, before the output projection': 'fully_masked_row',
  'weights': 'weights',
  'weights in training are those': 'weights_with_dropout',
  'dropout': 'dropout',
  'the mask of dropout': 'what_is_dropped',
  'biases': 'biases',
  'initial weights (kernels)': 'initial_kernels',
  'weight of queries': 'kernel_of_queries',
  'weight of the output': 'kernel_of_output',
  'grouped queries (GQA)': 'kv_heads',
  'cache': 'cache',
  'QK norm': 'norm_of_queries',
}
COLUMNS = {
  '`selfattn.Attention`': Ours(),
  'Flax `nnx.MultiHeadAttention`': Flax(),
  "torch's `nn.MultiheadAttention`": Torch(),
}
