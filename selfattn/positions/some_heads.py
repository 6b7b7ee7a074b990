"""Position methods that act on some of the heads alone."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from selfattn.layers import Layer
from selfattn.positions.calls import check_returned
from selfattn.positions.contract import Position, require

# What a method declares of itself.
_OF_METHOD = (
  'per_layer',
  'is_relative',
  'uses_positions',
  'causal_only',
  'supports_cache',
  'supports_real_positions',
  'length_option',
)


@dataclasses.dataclass(frozen=True)
class SomeHeads(Position):
  """A method on `num_heads` of its own, from `first` on; the others have none.

  The method is made for its own heads: ALiBi has the slopes of a layer of so
  few, and tables have a row for each of them.

  Attributes:
    method: the method, whose layer_heads are the heads of this one.
    first: number of the first head that it acts on.
  """

  method: Position = dataclasses.field(kw_only=True)
  first: int = dataclasses.field(default=0, kw_only=True)

  def __post_init__(self):
    for name in _OF_METHOD:
      object.__setattr__(self, name, getattr(self.method, name))

  @property
  def hooks(self):
    """The hooks of the method."""
    return self.method.hooks

  @property
  def has_encoding(self):
    """Whether the method has one."""
    return self.method.has_encoding

  @property
  def rotated_dim(self):
    """The width that the method turns to."""
    return self.method.rotated_dim

  def rotated_dtype(self, dtype):
    return self.method.rotated_dtype(dtype)

  def max_length(self):
    return self.method.max_length()

  def at(self, layer: Layer):
    return dataclasses.replace(self, method=self.method.at(layer))

  def init(self, key):
    return self.method.init(key)

  def init_model(self, key):
    return self.method.init_model(key)

  def init_layer(self, key):
    return self.method.init_layer(key)

  def state(self, params, x_BLD, tokens):
    return self.method.state(params, x_BLD, tokens)

  def rows(self, params):
    return self.method.rows(params)

  def encoding(self, params, tokens):
    """A term of the scores of all heads, or what its heads have else."""
    P = self.method.encoding(self._with_rows(params), tokens)
    return self._padded(P, 1) if P.ndim == 4 else P

  def rotate(self, params, q_BLHK, k_BMGK, query, key):
    k_BMHK = jnp.repeat(k_BMGK, self.num_heads // k_BMGK.shape[2], axis=2)
    turned_q, turned_k = self.method.rotate(
      params, self._some(q_BLHK, 2), self._some(k_BMHK, 2), query, key
    )
    for x_BLHK, turned in ((q_BLHK, turned_q), (k_BMHK, turned_k)):
      sizes = *x_BLHK.shape[:2], self.method.num_heads, self.rotated_dim
      check_returned(self.method, 'rotate', turned, *sizes)
    return self._among(q_BLHK, turned_q), self._among(k_BMHK, turned_k)

  def content(self, params, q_BLHK, k_BMHK, query, key):
    q_BLHK, k_BMHK = self._some(q_BLHK, 2), self._some(k_BMHK, 2)
    params = self._with_rows(params)
    term_BHLM = self.method.content(params, q_BLHK, k_BMHK, query, key)
    return self._all('content', term_BHLM, query, key)

  def bias(self, params, query, key):
    term_BHLM = self.method.bias(self._with_rows(params), query, key)
    return self._all('bias', term_BHLM, query, key)

  def scores(self, params, q_BLHK, content_BHLM, bias_BHLM, mask, query, key):
    term_BHLM = self.method.scores(
      self._with_rows(params),
      self._some(q_BLHK, 2),
      self._some(content_BHLM, 1),
      self._some(bias_BHLM, 1),
      self._some(mask, 1),
      query,
      key,
    )
    return self._all('scores', term_BHLM, query, key)

  def value(self, params, weights_BHLM, query, key):
    B, _, L, _ = weights_BHLM.shape
    weights_BHLM = self._some(weights_BHLM, 1)
    term_BLHK = self.method.value(params, weights_BHLM, query, key)
    sizes = B, L, self.method.num_heads, self.head_dim
    check_returned(self.method, 'value', term_BLHK, *sizes)
    return self._padded(term_BLHK, 2)

  @property
  def _end(self) -> int:
    return self.first + self.method.num_heads

  def _some(self, x, axis: int):
    """Its heads of an array; one that broadcasts over heads, or None, stays."""
    if x is None or x.shape[axis] != self.num_heads:
      return x
    return jnp.moveaxis(
      jnp.moveaxis(x, axis, 0)[self.first : self._end], 0, axis
    )

  def _all(self, hook: str, term, query, key):
    """A term (1 or B, H, L, M) of its heads, which a hook returned, of all."""
    rows = jnp.shape(term)[:1] or (1,)
    sizes = (x.positions.shape[1] for x in (query, key))
    heads = self.method.num_heads
    check_returned(self.method, hook, term, rows, heads, *sizes)
    return self._padded(term, 1)

  def _padded(self, term, axis: int):
    """A term of its heads with zeros for the others."""
    if term is None:
      return None
    missing = [(0, 0)] * term.ndim
    missing[axis] = (self.first, self.num_heads - self._end)
    return jnp.pad(term, missing)

  def _among(self, x_BLHK, turned_BLHK):
    """Vectors of all heads, as wide as those of its heads."""
    missing = turned_BLHK.shape[-1] - x_BLHK.shape[-1]
    x_BLHK = jnp.pad(x_BLHK, [(0, 0)] * 3 + [(0, missing)])
    x_BLHK = x_BLHK.astype(turned_BLHK.dtype)
    before, after = x_BLHK[:, :, : self.first], x_BLHK[:, :, self._end :]
    return jnp.concatenate([before, turned_BLHK, after], axis=2)

  def _with_rows(self, params):
    """Parameters with the projections of `rows` by its heads."""
    rows = ('query_rows', 'key_rows')
    return {n: self._some(x, 0) if n in rows else x for n, x in params.items()}


def limited(method: Position, first: int) -> Position:
  """A method on as many heads as it has `heads`, from `first` on.

  Raises:
    ValueError: so many are not left, or the method acts on all heads at once.
  """
  heads, left = method.heads, method.num_heads - first
  if not heads:
    return method
  require(
    type(heads) is int and 0 < heads <= left,
    'heads',
    heads,
    f'from 1 to {left}, the heads that are left of {method.num_heads}, or 0 '
    'for all',
  )
  embeds, scales = 'embed' in method.hooks, method.scale != 1
  require(
    bool(method.hooks) and not embeds and not scales,
    'heads',
    heads,
    '0, all: it acts on no heads by themselves',
  )
  inner = dataclasses.replace(
    method, num_heads=heads, heads=0, layer_heads=method.num_heads
  )
  return SomeHeads(
    method.embed_dim,
    method.num_heads,
    method.causal,
    vocab_size=method.vocab_size,
    head_width=method.head_width,
    method=inner,
    first=first,
  )
