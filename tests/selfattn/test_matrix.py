"""Every position method, normaliser and encoder through every property.

Entries are found in the tables. Of each, one program reads everything about a
row as arrays, so that a layout of a row (padding, order, segments, positions)
costs no compilation.
"""

import dataclasses
import functools

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import choice, positions
from selfattn.blocks import Block, Parallel
from selfattn.encoders import ENCODERS, AttentionEncoder
from selfattn.normalisers import NORMALISERS
from selfattn.positions import POSITIONS
from selfattn.tokens import Tokens
from tests.conftest import draw, is_causal_only

B, L, H, K, V, F = 2, 6, 2, 6, 9, 7
D = H * K
X = np.asarray(jax.random.normal(jax.random.key(1), (B, L, D)))
IDS = np.asarray(jax.random.randint(jax.random.key(2), (B, L), 0, V + 2))
few = functools.partial(
  hypothesis.settings, deadline=None, derandomize=True, database=None
)


def assert_near(found, want, sentence, tolerance=1e-4):
  """Trees of arrays that are near; fails with what was expected of them."""
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, rtol=tolerance, atol=tolerance, err_msg=sentence
    ),
    found,
    want,
  )


# --- what there is -----------------------------------------------------------


class Sandwiched(Block):
  """A block of one's own: norms on both sides of attention, and a gate."""

  gate: float = 0.5

  def vectors(self, x_BLD, attend, dropout):
    h_BLD = attend(self.normalised('norm_before', x_BLD))
    x_BLD = x_BLD + self.gate * self.normalised('norm_after', h_BLD)
    h_BLF = nn.Dense(self.mlp_dim, use_bias=False, name='wide')(x_BLD)
    return x_BLD + nn.Dense(D, use_bias=False, name='narrow')(nn.gelu(h_BLF))


@dataclasses.dataclass(frozen=True)
class Entry:
  """An encoder by its options.

  Attributes:
    encoder: a name of ENCODERS.
    blocks: options by name of POSITIONS; several such are a pattern over
      layers.
    fields: further fields of the encoder.
    normaliser: a name of NORMALISERS.
  """

  encoder: str = 'attention'
  blocks: dict | tuple = dataclasses.field(default_factory=lambda: {'none': {}})
  fields: dict = dataclasses.field(default_factory=dict)
  normaliser: str = 'softmax'

  @property
  def has_attention(self):
    return self.encoder == 'attention'

  @property
  def has_blocks(self):
    return self.encoder in ('attention', 'linear_attention')

  @property
  def pattern(self):
    """Options by name, of each of the first layers."""
    return self.blocks if isinstance(self.blocks, tuple) else (self.blocks,)

  @property
  def names(self):
    """Of POSITIONS."""
    return [name for of_layer in self.pattern for name in of_layer]

  @property
  def is_causal(self):
    needs = NORMALISERS[self.normaliser].causal_only
    return needs or is_causal_only('+'.join(self.names))

  @property
  def reads_neighbours(self):
    """Whether what is next to a token in the row matters."""
    if self.encoder == 'cnn':
      return True
    return self.has_blocks and not self.made().position.supports_cache

  def made(self, **fields):
    """The module, with one layer unless its fields say otherwise."""
    kind = ENCODERS[self.encoder]
    fields = {'num_layers': 1, 'dtype': jnp.float32} | self.fields | fields
    if self.has_blocks:
      causal = fields.setdefault('causal', self.is_causal)
      fields |= {'num_heads': H, 'mlp_dim': F}
      fields['position'] = positions.layered(
        [
          {
            name: POSITIONS[name](D, H, causal, vocab_size=V, **options)
            for name, options in of_layer.items()
          }
          for of_layer in self.pattern
        ]
      )
    if self.has_attention:
      fields['normaliser'] = NORMALISERS[self.normaliser](H, head_dim=K)
    known = kind.__dataclass_fields__
    return kind(**{k: v for k, v in fields.items() if k in known})

  def params(self, **fields):
    made = self.made(**fields)
    drawn = draw(made.init, jax.random.key(0), X, self.read(full()))
    return drawn.get('params', {})

  def read(self, tokens):
    """Without what the encoder refuses."""
    is_one_text = self.encoder in ('cnn', 'rnn')
    return tokens.replace(segments=None) if is_one_text else tokens


def alone(name):
  """A method of one's own may act in later layers only."""
  fields = {'num_layers': 3} if ':' in name else {}
  return Entry(blocks={name: {}}, fields=fields)


ENTRIES = {
  **{name: alone(name) for name in POSITIONS},
  # Its first layers are rotary.
  'repo': Entry(blocks={'repo': {}}, fields={'num_layers': 3}),
  'shaw with values': Entry(
    blocks={'shaw': {'max_distance': 3, 'with_values': True}}
  ),
  'deberta shared': Entry(blocks={'deberta': {'share_projections': True}}),
  'deberta of version 2': Entry(
    blocks={'deberta': {'projection_bias': 'both', 'table_norm': True}},
    fields={'use_key_bias': False},
  ),
  'path of single tokens': Entry(blocks={'path': {'kernel_size': 1}}),
  'selective of single tokens': Entry(
    blocks={'selective': {'kernel_size': 1, 'gated': True}}
  ),
  'convolutional in each layer': Entry(
    blocks={'convolutional': {'every_layer': True}}
  ),
  'recurrent in each layer': Entry(
    blocks={'recurrent': {'every_layer': True, 'window': 3}}
  ),
  'rotary+kerple+dape': Entry(blocks={'rotary': {}, 'kerple': {}, 'dape': {}}),
  'cope+forgetting': Entry(blocks={'cope': {}, 'forgetting': {}}),
  **{
    name: Entry(blocks={'alibi': {}}, normaliser=name)
    for name in NORMALISERS
    if name != 'softmax'
  },
  'variants': Entry(
    blocks={'rotary': {}},
    fields={
      'num_layers': 2,
      'num_kv_heads': 1,
      'window': (3, 2),
      'softcap': 5.0,
      'qk_norm': True,
      'output_gate': 'elementwise',
      'value_residual': True,
    },
  ),
  'rotary, then t5, then none': Entry(
    blocks=({'rotary': {}}, {'t5': {}, 'kerple': {}}, {'none': {}}),
    fields={
      'num_layers': 4,
      'window': ((3, 0), ()),
      'block': Parallel(feed_forward='swiglu', norm='rms'),
    },
  ),
  'one head each': Entry(
    blocks={'rotary': {'heads': 1}, 'transformer_xl': {'heads': 1}}
  ),
  'stateful head': Entry(blocks={'path': {'heads': 1, 'kernel_size': 1}}),
  'headwise': Entry(
    blocks={'shaw': {}},
    fields={'output_gate': 'headwise', 'block': Sandwiched(gate=0.25)},
  ),
  'linear_attention': Entry('linear_attention', {'rotary': {}}),
  'linear_attention causal': Entry(
    'linear_attention', {'sinusoidal': {}}, {'causal': True}
  ),
  'cnn': Entry('cnn'),
  'rnn': Entry('rnn', fields={'num_layers': 2}),
  'rnn causal': Entry('rnn', fields={'bidirectional': False, 'cell': 'gru'}),
  'bow': Entry('bow'),
}
BLOCKS = {name: e for name, e in ENTRIES.items() if e.has_blocks}
pytestmark = pytest.mark.matrix
entries = pytest.mark.parametrize('name', ENTRIES)
with_blocks = pytest.mark.parametrize('name', BLOCKS)


def full(**arrays):
  """Tokens with every array that an encoder may read."""
  row = np.tile(np.arange(L), (B, 1))
  arrays = {
    'padding_mask': np.ones((B, L), bool),
    'positions': row,
    'index': row,
    'segments': np.zeros((B, L), int),
    'ids': IDS,
  } | arrays
  return Tokens(**{k: jnp.asarray(v) for k, v in arrays.items()})


@functools.cache
def program(name):
  """Outputs, 0 at padding, and gradients of their sum with fixed weights.

  Of parameters, vectors, these weights (B, L, D) and Tokens.
  """
  entry = ENTRIES[name]
  made = entry.made()

  def outputs(params, x, weight, tokens):
    y = made.apply({'params': params}, x, entry.read(tokens))
    y = jnp.where(tokens.padding_mask[..., None], y, 0)
    return (y * weight).sum(), y

  both = jax.value_and_grad(outputs, argnums=(0, 1), has_aux=True)

  @jax.jit
  def run(*arrays):
    (_, y), grads = both(*arrays)
    return y, grads

  return run, entry.params()


WEIGHT = np.asarray(jax.random.normal(jax.random.key(3), (B, L, D)))


def run(name, x, weight, tokens):
  apply, params = program(name)
  return jax.device_get(apply(params, x, weight, tokens))


@functools.cache
def forward(name):
  """A function of x and tokens to vectors, which is compiled in less time."""
  entry, params = ENTRIES[name], program(name)[1]
  made = entry.made()
  return jax.jit(
    lambda x, tokens: made.apply({'params': params}, x, entry.read(tokens))
  )


# --- layouts of a row --------------------------------------------------------


def laid(rows, x, fill):
  """What stands at `rows[b][i]` in place of row i; `fill` elsewhere."""
  out = np.full((B, L, *x.shape[2:]), fill, x.dtype)
  for b, slots in enumerate(rows):
    out[b, slots] = x[b, : len(slots)]
  return out


def text(rows, fill_x=0.0, fill=0, **more):
  """Arguments of `run` for texts whose tokens stand in these slots."""
  where = np.tile(np.arange(L), (B, 1))
  arrays = {
    'padding_mask': laid(rows, np.ones((B, L), bool), False),
    'positions': laid(rows, more.get('positions', where), fill),
    'index': laid(rows, where, 0),
    'ids': laid(rows, IDS, fill),
  }
  return laid(rows, X, fill_x), laid(rows, WEIGHT, 0.0), full(**arrays)


def assert_same(rows, found, plain_rows, plain, sentence):
  """Tokens have the same vectors and gradients, and so have parameters."""
  for one, other in ((found[0], plain[0]), (found[1][1], plain[1][1])):
    for b, slots in enumerate(rows):
      assert np.isfinite(one[b, slots]).all(), f'{sentence}: it is not finite'
      assert_near(one[b, slots], other[b, plain_rows[b]], sentence)
  assert_near(
    found[1][0], plain[1][0], f'gradients of parameters: {sentence}', 1e-3
  )


@st.composite
def slots(draw):
  """Of each row, the slots of its tokens, in order; and the side of padding."""
  side = draw(st.sampled_from(['left', 'right', 'inside']))
  rows = []
  for _ in range(B):
    n = draw(st.integers(0, L))
    if side == 'inside':
      kept = draw(st.permutations(range(L)))[:n]
      rows.append(sorted(kept))
    else:
      rows.append(list(range(L))[L - n :] if side == 'left' else list(range(n)))
  return side, rows


@entries
@few(max_examples=6)
@hypothesis.given(layout=slots(), data=st.data())
def test_what_and_where_padding_is_never_matters(name, layout, data):
  """Vectors of NaN, ids that are none, positions far away."""
  side, rows = layout
  hypothesis.assume(side != 'inside' or not ENTRIES[name].reads_neighbours)
  fill_x = data.draw(st.sampled_from([np.nan, np.inf, 1e30]))
  fill = data.draw(st.sampled_from([-1, 2**31 - 1, V + 1]))
  if 'window' in ENTRIES[name].fields and side == 'inside':
    return  # a window counts padding
  found = run(name, *text(rows, fill_x, fill))
  plain_rows = [list(range(len(slots))) for slots in rows]
  plain = run(name, *text(plain_rows))
  sentence = (
    f'{name}: what stands at padding, and on which side it is, must change no '
    'token'
  )
  assert_same(rows, found, plain_rows, plain, sentence)
  is_token = laid(rows, np.ones((B, L), bool), False)
  assert (found[1][1][~is_token] == 0).all(), (
    f'{name}: vectors at padding must have gradients of 0'
  )


@entries
@few(max_examples=2)
@hypothesis.given(order=st.permutations(range(L)))
def test_the_order_is_that_of_the_index(name, order):
  entry = ENTRIES[name]
  if entry.reads_neighbours or not (entry.has_blocks or name == 'bow'):
    return
  rows = [order, order[::-1]]
  found = run(name, *text(rows))
  plain_rows = [list(range(L))] * B
  assert_same(
    rows,
    found,
    plain_rows,
    run(name, *text(plain_rows)),
    f'{name}: order must be that of query.index and key.index, wherever tokens '
    'stand in the row',
  )


@with_blocks
@few(max_examples=2)
@hypothesis.given(n=st.integers(1, L - 1))
def test_packed_texts_equal_each_on_its_own(name, n):
  """Positions and index may begin anew in each segment, and be counted."""
  where = np.array([[*range(n), *range(L - n)]] * B)
  tokens = full(
    segments=(np.arange(L) >= n).astype(int)[None].repeat(B, 0),
    positions=where,
    index=where,
  )
  forms = [run(name, X, WEIGHT, tokens)[0]]
  if any(part.is_relative for _, part in BLOCKS[name].made().position.parts):
    forms.append(forward(name)(X, tokens.replace(is_consecutive=True)))
  for part in (slice(0, n), slice(n, L)):
    mask = np.zeros((B, L), bool)
    mask[:, : len(X[0, part])] = True
    x, ids = np.zeros_like(X), np.zeros_like(IDS)
    x[mask], ids[mask] = X[:, part].reshape(-1, D), IDS[:, part].ravel()
    alone, _ = run(name, x, WEIGHT, full(padding_mask=mask, ids=ids))
    for packed in forms:
      assert_near(
        packed[:, part],
        alone[mask].reshape(B, -1, D),
        f'{name}: a text must have the vectors of a row of its own beside '
        'another in one row; hooks that mix tokens must read segments',
      )


def changed_by(name, positions):
  tokens = full(positions=np.broadcast_to(positions, (B, L)))
  plain = run(name, X, WEIGHT, full())[0]
  return abs(run(name, X, WEIGHT, tokens)[0] - plain).max()


@with_blocks
def test_relative_methods_see_differences_alone(name):
  """One that is not declared relative may see what it wants."""
  parts = [part for _, part in BLOCKS[name].made().position.parts]
  is_absolute = any(p.uses_positions and not p.is_relative for p in parts)
  embeds = any(p.uses_positions and 'embed' in p.hooks for p in parts)
  if is_absolute or embeds:
    return
  shifted = changed_by(name, np.arange(L)[None] + 400)
  assert shifted < 1e-3, (
    f'{name}: positions that are all 400 larger must change nothing, since '
    f'is_relative = True or uses_positions = False; {shifted} was changed'
  )


@with_blocks
def test_positions_matter_where_a_method_uses_them(name):
  parts = [part for _, part in BLOCKS[name].made().position.parts]
  reads = any(part.uses_positions and part.hooks for part in parts)
  moved = changed_by(name, np.array([[0, 50, 100, 150, 151, 170]]))
  assert (moved > 1e-3) == reads, (
    f'{name}: positions farther apart must change '
    + ('the output' if reads else 'nothing')
    + f', since uses_positions = {reads}; {moved} was changed. A method of the '
    'text and its order alone, or of token ids, has uses_positions = False'
  )


@with_blocks
def test_real_positions_are_read_or_refused(name):
  method = BLOCKS[name].made().position
  where = jnp.tile(jnp.arange(L, dtype=jnp.float32), (B, 1))
  refuses = [
    type(part).__name__
    for _, part in method.parts
    if part.uses_positions and not part.supports_real_positions
  ]
  if refuses:
    with pytest.raises(ValueError, match=f'{refuses[0]} supports integer'):
      forward(name)(X, full().replace(positions=where))
    return
  assert_near(
    forward(name)(X, full().replace(positions=where)),
    run(name, X, WEIGHT, full())[0],
    f'{name}: positions 0.0, 1.0, ... must be as 0, 1, ..., since '
    'supports_real_positions = True or uses_positions = False',
  )


# --- of the parameters -------------------------------------------------------

# Steps in units of a direction, and the weights of a central difference of
# fourth order.
STEPS = 0.005 * np.array([-2.0, -1.0, 1.0, 2.0])
DIFFERENCE = np.array([1, -8, 8, -1]) / (12 * 0.005)


@entries
def test_gradients_equal_finite_differences(name):
  """In most directions: in some, a kink lies between the steps."""
  apply, params = program(name)
  tokens = full(padding_mask=np.arange(L)[None] < np.array([[L], [4]]))

  def total(along, step):
    moved, x = jax.tree.map(
      lambda leaf, d: np.float32(leaf + step * d), (params, X), along
    )
    y, grads = jax.device_get(apply(moved, x, WEIGHT, tokens))
    return (y.astype(float) * WEIGHT).sum(), grads

  errors = []
  for seed in range(3):
    rng = np.random.default_rng(seed)
    along = jax.tree.map(
      lambda leaf, rng=rng: 0.1 * rng.standard_normal(leaf.shape), (params, X)
    )
    want = DIFFERENCE @ [total(along, step)[0] for step in STEPS]
    slopes = jax.tree.map(
      lambda g, d: (g * d).sum(), total(along, 0.0)[1], along
    )
    errors.append(abs(sum(jax.tree.leaves(slopes)) - want) / (1 + abs(want)))
  assert np.median(errors) < 3e-3, (
    f'{name}: gradients must equal finite differences; relative errors in '
    f'three directions are {errors}. A kink, as that of relu, may be the reason'
  )


@entries
def test_a_group_of_models_equals_each_alone(name):
  apply, params = program(name)
  factors = [1.0, 0.5, -0.7]
  group = [jax.tree.map(lambda p, f=f: p * f, params) for f in factors]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *group)
  axes = (0, None, None, None)
  together = jax.jit(jax.vmap(apply, in_axes=axes, axis_size=len(group)))
  found = together(stacked, X, WEIGHT, full())
  for n, one in enumerate(group):
    assert_near(
      jax.tree.map(lambda leaf, n=n: leaf[n], found),
      apply(one, X, WEIGHT, full()),
      f'{name}: a model must be the same under vmap with other parameters, as '
      'in a group of a sweep',
      1e-3,
    )


# --- forms of a program ------------------------------------------------------


@with_blocks
def test_the_form_of_a_program_changes_nothing(name, monkeypatch):
  """Distances that are counted, chunks, scan, remat: outputs and gradients."""
  monkeypatch.setattr(choice, '_CHUNK_OF_CPU', (2, 0))
  entry, params = BLOCKS[name], program(name)[1]
  mask = np.arange(L)[None] < np.array([[L], [4]])
  plain = run(name, X, WEIGHT, full(padding_mask=mask))
  form = {'scan': True, 'remat': True}
  if entry.has_attention:
    form['backend'] = 'chunked'
  made = entry.made(**form)

  def total(params, x):
    # The ids alone are not counted.
    y = made.apply({'params': params}, x, Tokens(jnp.asarray(mask), ids=IDS))
    y = jnp.where(mask[..., None], y, 0)
    return (y * WEIGHT).sum(), y

  grads, y = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(params, X)
  sentence = (
    f'{name}: scan, remat, chunks of queries and distances that are counted '
    'must change nothing'
  )
  assert_near(y, plain[0], sentence)
  assert_near(grads, plain[1], f'gradients: {sentence}', 1e-3)


@pytest.mark.parametrize(
  'name', [n for n, e in BLOCKS.items() if e.made().position.supports_cache]
)
def test_step_by_step_equals_the_full_causal_pass(name):
  entry = BLOCKS[name]
  fields = {'causal': True}
  if entry.fields.get('window') == (3, 2):
    fields['window'] = (3, 0)
  made, params = entry.made(**fields), entry.params(**fields)
  mask = np.ones((B, L), bool)
  mask[1, 1] = False

  @jax.jit
  def at_once(x, tokens):
    return made.apply({'params': params}, x, tokens)

  @jax.jit
  def step(cache, x, tokens):
    return made.apply(
      {'params': params, **cache}, x, tokens, cache_len=L, mutable='cache'
    )

  want = at_once(X, Tokens(mask, ids=IDS))
  parts = [slice(begin, begin + 2) for begin in range(0, L, 2)]
  rows = [Tokens(mask[:, now], ids=IDS[:, now]) for now in parts]
  # Empty, but of one shape with those that follow, so of one program.
  like = jax.eval_shape(step, {}, X[:, :2], rows[0])[1]
  cache = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
  for now, tokens in zip(parts, rows, strict=True):
    y, cache = step(cache, X[:, now], tokens)
    seen = mask[:, now]
    assert_near(
      y[seen],
      want[:, now][seen],
      f'{name}: two tokens at a time with a cache must be as all at once; a '
      'method whose `embed` mixes tokens has supports_cache = False',
    )
  assert cache['cache']['end'] == L
  y, _ = step(cache, X[:, :2], rows[-1])
  assert np.isnan(y).all()


@entries
def test_narrow_types_are_near_float32(name):
  entry, kind = ENTRIES[name], 'float16'
  if 'dtype' not in ENCODERS[entry.encoder].__dataclass_fields__:
    return
  made, params = entry.made(dtype=jnp.dtype(kind)), program(name)[1]
  mask = np.arange(L)[None] < np.array([[L], [0]])
  tokens = entry.read(full(padding_mask=mask))

  @jax.jit
  def outputs(x):
    y = made.apply({'params': params}, x.astype(kind), tokens)
    return jnp.where(mask[..., None], y, 0)

  y = outputs(X)
  assert y.dtype == kind
  want, _ = run(name, X, WEIGHT, full(padding_mask=mask))
  scale = abs(want).max()
  np.testing.assert_allclose(
    y.astype(np.float32),
    want,
    atol=0.1 * scale,
    rtol=0.1,
    err_msg=f'{name}: outputs in {kind} must be near those in float32',
  )


@entries
def test_a_text_alone_in_x64_mode_is_the_padded_one_without(name):
  """Two layouts of a row have as much padding; a text alone has none."""
  entry, n = ENTRIES[name], L - 3
  with jax.enable_x64(True):
    made = entry.made()
    short = jax.tree.map(lambda x: x[:, :n], full())
    short = entry.read(short.replace(padding_mask=None))
    x = np.asarray(X[:, :n], np.float32)
    like = jax.eval_shape(made.init, jax.random.key(0), x, short)
    kinds = {leaf.dtype for leaf in jax.tree.leaves(like)}
    assert kinds <= {jnp.dtype('float32')}, (
      f'{name}: parameters must be float32 with JAX_ENABLE_X64, too'
    )
    y = jax.device_get(
      jax.jit(lambda p, x, t: made.apply({'params': p}, x, t))(
        program(name)[1], x, short
      )
    )
  assert y.dtype == np.float32
  padded, _ = run(name, *text([list(range(n))] * B))
  assert_near(
    y,
    padded[:, :n],
    f'{name}: a text must have the vectors that it has without padding, and '
    'JAX_ENABLE_X64 must change no number',
  )


@entries
@pytest.mark.parametrize(('batch', 'length'), [(0, 1), (1, 0)])
def test_empty_batches_and_texts_work(name, batch, length):
  """Shapes alone: the rest is as of any other size."""
  entry, params = ENTRIES[name], program(name)[1]
  backends = ['reference', 'chunked'] if entry.has_attention else [None]
  for backend in backends:
    made = entry.made(**({'backend': backend} if backend else {}))

    def outputs(params, x, ids, mask, made=made):
      tokens = Tokens(mask, ids=ids)
      return made.apply({'params': params}, x, tokens, mutable='intermediates')

    y, _ = jax.eval_shape(
      outputs,
      params,
      jax.ShapeDtypeStruct((batch, length, D), jnp.float32),
      jax.ShapeDtypeStruct((batch, length), jnp.int32),
      jax.ShapeDtypeStruct((batch, length), bool),
    )
    assert y.shape == (batch, length, D)


@entries
@pytest.mark.parametrize('backend', ['auto', 'chunked'])
def test_batches_and_texts_of_any_size_are_exported(name, backend):
  entry, params = ENTRIES[name], program(name)[1]
  made = entry.made(backend=backend)
  sizes = jax.export.symbolic_shape('batch, length')

  @jax.jit
  def outputs(params, x, ids, mask):
    return made.apply({'params': params}, x, Tokens(mask, ids=ids))

  exported = jax.export.export(outputs)(
    jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params),
    jax.ShapeDtypeStruct((*sizes, D), jnp.float32),
    jax.ShapeDtypeStruct(sizes, jnp.int32),
    jax.ShapeDtypeStruct(sizes, bool),
  )
  given = params, X, IDS, np.ones((B, L), bool)
  found, want = exported.call(*given), outputs(*given)
  assert_near(found, want, f'{name}: one program must serve all sizes')


def test_every_normaliser_and_encoder_is_in_the_matrix():
  assert {e.normaliser for e in ENTRIES.values()} == set(NORMALISERS)
  assert {e.encoder for e in ENTRIES.values()} == set(ENCODERS)
  joined = {name for e in ENTRIES.values() for name in e.names}
  assert joined == set(POSITIONS)
  assert AttentionEncoder is ENCODERS['attention']
