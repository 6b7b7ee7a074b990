"""What functions of attention do, found by running them, in words.

Each method of a class is a row of the first table of docs/coming_from.md, and
returns what stands in the cell of its library.
"""

import inspect

import jax
import numpy as np

from selfattn import Dropout, Tokens, attend

# Keys are as wide as there are of them, so that values may be the identity, and
# the output is then the weights.
B, L, M, H = 2, 3, 5, 4
SIZES = {'B': B, 'L': L, 'M': M, 'H': H, 'K': M}


def zeros(axes):
  return np.zeros([SIZES[axis] for axis in axes], np.float32)


def vectors():
  """Queries, keys and values."""
  rng = np.random.default_rng(0)
  shapes = (B, L, H, M), (B, M, H, M), (B, M, H, M)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def is_close(found, want):
  return np.allclose(found, want, atol=1e-5)


def of_masked_row(weights_M, num_keys=M):
  """What the output of a fully masked row is, by its weights."""
  if np.isnan(weights_M).all():
    return 'NaN'
  kinds = {'zero': 0, 'the mean of all values': 1 / num_keys}
  return next(name for name in kinds if is_close(weights_M, kinds[name]))


class Function:
  """One library.

  Attributes:
    mask, bias, scale, causal: names of arguments.
    parameters: of the function.
  """

  mask, bias, scale, causal = 'mask', 'bias', 'scale', 'is_causal'
  parameters = ()

  def call(self, q, k, v, **options):
    """The output, as NumPy, of arrays in the layout of the library."""
    raise NotImplementedError

  def run(self, q_BLHK, k_BMGK, v_BMGK, **options):
    return self.call(q_BLHK, k_BMGK, v_BMGK, **options)

  def weights(self, q_BLHK=None, k_BMHK=None, **options):
    """Weights (B, L, H, M); uniform without queries and keys."""
    q_BLHK = zeros('BLHK') if q_BLHK is None else q_BLHK
    k_BMHK = zeros('BMHK') if k_BMHK is None else k_BMHK
    v_BMHK = np.broadcast_to(np.eye(M)[None, :, None], k_BMHK.shape)
    return self.run(q_BLHK, k_BMHK, v_BMHK.astype(np.float32), **options)

  def has(self, *names):
    return any(name in self.parameters for name in names)

  def layout(self):
    for of_queries, of_keys in ('BLHK', 'BMHK'), ('BHLK', 'BHMK'):
      try:
        output = self.call(zeros(of_queries), zeros(of_keys), zeros(of_keys))
      except (ValueError, RuntimeError):
        continue
      assert output.shape == zeros(of_queries).shape
      return f'({", ".join(of_queries)})'
    raise AssertionError('no layout is accepted')

  def true_in_a_mask(self):
    mask = np.ones((1, 1, 1, M), bool)
    mask[..., 2] = False
    weights = self.weights(**{self.mask: mask})
    hides_false = is_close(weights[..., 2], 0)
    assert hides_false != is_close(weights[..., [0, 1, 3, 4]], 0)
    return f'`{self.mask}`: ' + ('may attend' if hides_false else 'is masked')

  def numbers_added(self):
    q, k, _ = vectors()
    bias = np.random.default_rng(1).normal(size=(1, 1, L, M)).astype(np.float32)
    found = self.weights(q, k, **{self.bias: bias, self.scale: 0.5})
    scores = np.einsum('blhk,bmhk->blhm', q, k)
    bias = bias.swapaxes(1, 2)
    sums = {'after': 0.5 * scores + bias, 'before': 0.5 * (scores + bias)}
    when = next(
      name for name in sums if is_close(found, jax.nn.softmax(sums[name]))
    )
    return f'`{self.bias}`, {when} scaling'

  def scale_of_scores(self):
    q, k, _ = vectors()
    scores = np.einsum('blhk,bmhk->blhm', q, k)
    assert is_close(self.weights(q, k), jax.nn.softmax(scores * M**-0.5))
    found = self.weights(q, k, **{self.scale: 0.25})
    assert is_close(found, jax.nn.softmax(scores * 0.25))
    return f'`{self.scale}`; K^-1/2'

  def fully_masked_row(self):
    mask = np.ones((1, 1, L, M), bool)
    mask[:, :, 1] = False
    return of_masked_row(self.weights(**{self.mask: mask})[:, 1])

  def row_of_infinities(self):
    bias = np.zeros((1, 1, L, M), np.float32)
    bias[:, :, 1] = -np.inf
    return of_masked_row(self.weights(**{self.bias: bias})[:, 1])

  def causal_mask(self):
    sees = self.weights(**{self.causal: True})[0, :, 0] > 0
    corners = {'top left': 0, 'bottom right': M - L}
    found = [
      name
      for name, first in corners.items()
      if np.array_equal(sees, np.tri(L, M, first, dtype=bool))
    ]
    return f'`{self.causal}=True`, aligned {found[0]}'

  def nan_at_padding(self):
    """By the mask of pairs, where a library has none of padding."""
    raise NotImplementedError

  def of_nan(self, **options):
    q, k, v = vectors()
    v[:, -1] = np.nan
    return 'NaN' if np.isnan(self.run(q, k, v, **options)).any() else 'ignored'

  def kv_heads(self, **options):
    q, k, v = vectors()
    k, v = k[:, :, :2], v[:, :, :2]
    found = self.run(q, k, v, **options)
    each = [self.run(q, *(x[:, :, [g] * H] for x in (k, v))) for g in range(2)]
    of_head = [
      next(g for g in range(2) if is_close(found[:, :, h], each[g][:, :, h]))
      for h in range(H)
    ]
    assert of_head == [h // (H // 2) for h in range(H)]
    return 'head h reads h // (H / G)'

  def width_of_values(self):
    q, k, v = vectors()
    try:
      output = self.run(q, k, v[..., :2])
    except ValueError:
      return 'K'
    assert output.shape == (B, L, H, 2)
    return 'any'


class Ours(Function):
  causal = 'causal'
  parameters = inspect.signature(attend).parameters

  def call(self, q, k, v, **options):
    return np.asarray(attend(q, k, v, **options)[0])

  def causal_mask(self):
    words = super().causal_mask()
    last = Tokens(index=np.arange(M - L, M)[None])
    weights = self.weights(causal=True, query_tokens=last, key_tokens=Tokens())
    assert np.array_equal(weights[0, :, 0] > 0, np.tri(L, M, M - L, dtype=bool))
    return f'{words}; by `Tokens(index=...)`, anywhere'

  def window(self):
    weights = self.weights(window=(2, 1))[0, :, 0]
    assert (weights > 0).sum(axis=-1).tolist() == [2, 3, 4]
    return '`window=(left, right)`, itself not counted'

  def padding(self):
    is_token = np.arange(M)[None] < np.array([[M], [2]])
    weights = self.weights(key_tokens=is_token)
    assert np.array_equal(weights[:, 0, 0] > 0, is_token)
    same = self.weights(zeros('BMHK'), query_tokens=is_token)
    assert np.array_equal(same, weights[:, [0] * M])
    return '`query_tokens`, `key_tokens`: True at tokens'

  def nan_at_padding(self):
    is_token = np.arange(M)[None] < M - 1
    return self.of_nan(key_tokens=is_token)

  def kv_heads(self, **options):
    return f'by shape; {super().kv_heads(**options)}'

  def dropout(self):
    dropout = Dropout.create(jax.random.key(0), 0.5)
    assert (self.weights(dropout=dropout) == 0).any()
    return '`dropout=Dropout.create(key, rate)`'

  def weights_returned(self):
    q, k, v = vectors()
    _, weights = attend(q, k, v, return_weights=True)
    assert weights is not None
    assert weights.shape == (B, H, L, M)
    return '`return_weights=True`: (B, H, L, M)'


class Jax(Function):
  parameters = inspect.signature(jax.nn.dot_product_attention).parameters

  def call(self, q, k, v, **options):
    return np.asarray(jax.nn.dot_product_attention(q, k, v, **options))

  def window(self):
    weights = self.weights(local_window_size=(2, 1))[0, :, 0]
    assert (weights > 0).sum(axis=-1).tolist() == [2, 3, 4]
    return '`local_window_size=(left, right)`, itself not counted'

  def padding(self):
    weights = self.weights(key_value_seq_lengths=np.array([M, 2]))
    assert (weights[:, 0, 0] > 0).sum(axis=-1).tolist() == [M, 2]
    return '`key_value_seq_lengths`: numbers of keys'

  def nan_at_padding(self):
    return self.of_nan(key_value_seq_lengths=np.array([M - 1, M - 1]))

  def kv_heads(self, **options):
    return f'by shape; {super().kv_heads(**options)}'

  def dropout(self):
    assert not self.has('dropout', 'dropout_rate', 'dropout_p')
    return 'none'

  def weights_returned(self):
    assert not self.has('return_weights', 'need_weights')
    return 'none'


class Torch(Function):
  mask = bias = 'attn_mask'

  def call(self, q, k, v, **options):
    import torch

    arrays = [torch.tensor(np.asarray(x)) for x in (q, k, v)]
    options = {
      name: torch.tensor(x) if isinstance(x, np.ndarray) else x
      for name, x in options.items()
    }
    attention = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
      return attention(*arrays, **options).numpy()

  def run(self, q_BLHK, k_BMGK, v_BMGK, **options):
    arrays = (x.swapaxes(1, 2) for x in (q_BLHK, k_BMGK, v_BMGK))
    return self.call(*arrays, **options).swapaxes(1, 2)

  @property
  def parameters(self):
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    # Its docstring begins with its signature, which inspect does not know.
    return attention.__doc__.strip().splitlines()[0].split('(')[1]

  def window(self):
    assert not self.has('window')
    return 'none'

  def padding(self):
    assert not self.has('padding', 'lengths')
    return 'none'

  def nan_at_padding(self):
    mask = np.broadcast_to(np.arange(M) < M - 1, (L, M))
    return self.of_nan(attn_mask=mask.copy())

  def kv_heads(self, **options):
    words = super().kv_heads(enable_gqa=True, **options)
    return f'`enable_gqa=True`; {words}'

  def dropout(self):
    assert (self.weights(dropout_p=0.5) == 0).any()  # without any mode
    return '`dropout_p`, in evaluation, too'

  def weights_returned(self):
    assert not self.has('return', 'need_weights')
    return 'none'


ROWS = {
  'queries': 'layout',
  'True in a boolean mask': 'true_in_a_mask',
  'additive mask, or bias': 'numbers_added',
  'scale, and its default': 'scale_of_scores',
  'a fully masked row': 'fully_masked_row',
  'a row of -inf in the additive mask': 'row_of_infinities',
  'causal, for L < M': 'causal_mask',
  'window': 'window',
  'padding': 'padding',
  'NaN in values at padding': 'nan_at_padding',
  'grouped queries (GQA), G < H': 'kv_heads',
  'width of values': 'width_of_values',
  'dropout': 'dropout',
  'weights': 'weights_returned',
}
COLUMNS = {
  '`selfattn.attend`': Ours(),
  '`jax.nn.dot_product_attention`': Jax(),
  "torch's `scaled_dot_product_attention`": Torch(),
}
