"""The calls of the two chapters, with their arguments, and their claims."""

import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import selfattn
from selfattn import chapters as d2l
from selfattn.blocks import PostNorm
from selfattn.positions.absolute import Sinusoidal
from tests.conftest import at, draw, normal

# --- Dive into Deep Learning, section 11.6 -----------------------------------


@pytest.fixture(scope='module')
def encoding():
  """The chapter's second cell: encode zeros, take the sown P."""
  encoding_dim, num_steps = 32, 60
  pos_encoding = d2l.PositionalEncoding(encoding_dim, 0)
  params = pos_encoding.init(
    d2l.get_key(), d2l.zeros((1, num_steps, encoding_dim))
  )
  X, inter_vars = pos_encoding.apply(
    params,
    jnp.zeros((1, num_steps, encoding_dim)),
    mutable='intermediates',
  )
  P = inter_vars['intermediates']['P'][0]
  P = P[:, : X.shape[1], :]
  return X, P


def test_self_attention_cell_keeps_the_shape():
  num_hiddens, num_heads = 100, 5
  attention = d2l.MultiHeadAttention(num_hiddens, num_heads, 0.5)
  batch_size, num_queries, valid_lens = 2, 4, jnp.array([3, 2])
  X = jnp.ones((batch_size, num_queries, num_hiddens))
  d2l.check_shape(
    attention.init_with_output(
      d2l.get_key(), X, X, X, valid_lens, training=False
    )[0][0],
    (batch_size, num_queries, num_hiddens),
  )


def test_check_shape_refuses_another_shape():
  with pytest.raises(ValueError, match=r'\(2, 3\) is not \(3, 2\)'):
    d2l.check_shape(jnp.ones((2, 3)), (3, 2))


def test_encoding_of_zeros_is_the_sown_P(encoding):
  X, P = encoding
  assert P.shape == (1, 60, 32)
  assert P.dtype == jnp.float32
  np.testing.assert_array_equal(X, P)


def test_column_plot_draws_columns_6_to_9(encoding):
  _, P = encoding
  figure = d2l.plot(
    d2l.arange(60),
    P[0, :, 6:10].T,
    xlabel='Row (position)',
    figsize=(6, 2.5),
    legend=[f'Col {d}' for d in range(6, 10)],
  )
  (axis,) = figure.axes
  assert axis.get_xlabel() == 'Row (position)'
  names = [text.get_text() for text in axis.get_legend().get_texts()]
  assert names == ['Col 6', 'Col 7', 'Col 8', 'Col 9']
  for line, column in zip(axis.lines, range(6, 10), strict=True):
    np.testing.assert_array_equal(line.get_ydata(), P[0, :, column])


def test_heat_map_cell_draws_all_of_P(encoding):
  _, P = encoding
  P = jnp.expand_dims(jnp.expand_dims(P[0, :, :], axis=0), axis=0)
  figure = d2l.show_heatmaps(
    P,
    xlabel='Column (encoding dimension)',
    ylabel='Row (position)',
    figsize=(3.5, 4),
    cmap='Blues',
  )
  axis = figure.axes[0]
  np.testing.assert_array_equal(axis.images[0].get_array(), P[0, 0])
  assert axis.get_xlabel() == 'Column (encoding dimension)'
  assert axis.get_ylabel() == 'Row (position)'


def sign_changes(column):
  return (np.diff(np.sign(column)) != 0).sum()


def test_bits_and_columns_both_slow_down(encoding):
  """The lowest bit alternates on every number, the next on every two."""
  bits = [
    [int(b) for b in row] for row in (f'{i:>03b}'[::-1] for i in range(8))
  ]
  flips = (np.diff(np.array(bits), axis=0) != 0).sum(axis=0)
  assert flips.tolist() == [7, 3, 1]
  P = np.asarray(encoding[1])[0]
  changes = [sign_changes(P[:, column]) for column in range(0, 32, 2)]
  assert changes == sorted(changes, reverse=True)
  assert changes[0] > changes[-1]


def test_every_width_matches_two_python_loops():
  """At an offset that is known, and at a traced one."""
  widths = (1, 2, 3, 8, 33, 64, 65)

  def by_width(offset):
    return [
      d2l.PositionalEncoding(width, 0.0).apply(
        {}, jnp.zeros((1, 7, width)), offset=offset
      )
      for width in widths
    ]

  both = jax.jit(lambda traced: (by_width(0), by_width(traced)))(0)
  for width, known, traced in zip(widths, *both, strict=True):
    want = np.zeros((7, width))
    for position, column in np.ndindex(want.shape):
      angle = position / 10_000 ** (2 * (column // 2) / width)
      want[position, column] = (np.sin, np.cos)[column % 2](angle)
    np.testing.assert_allclose(known[0], want, atol=1e-7)
    np.testing.assert_allclose(traced[0], want, atol=2e-6)


def test_offset_continues_where_the_last_call_ended():
  layer = d2l.PositionalEncoding(6, 0.0)
  whole = layer.apply({}, jnp.zeros((1, 9, 6)))
  parts = [
    layer.apply({}, jnp.zeros((1, n, 6)), offset=first)
    for first, n in ((0, 4), (4, 5))
  ]
  np.testing.assert_array_equal(jnp.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize('offset', [8, np.int64(8), jnp.asarray(8)])
def test_an_offset_past_the_end_is_an_error(offset):
  layer = d2l.PositionalEncoding(6, 0.0, max_len=10)
  layer.apply({}, jnp.zeros((1, 2, 6)), offset=offset)
  with pytest.raises(ValueError, match='max_len = 10'):
    layer.apply({}, jnp.zeros((1, 3, 6)), offset=offset)


def test_a_traced_offset_past_the_end_is_nan_not_a_clamp():
  layer = d2l.PositionalEncoding(6, 0.0, max_len=10)
  apply = jax.jit(lambda o: layer.apply({}, jnp.zeros((1, 3, 6)), offset=o))
  assert not np.isnan(apply(7)).any()
  rows = np.isnan(apply(8)).all(axis=-1)[0]
  assert rows.tolist() == [False, False, True]


def test_training_drops_and_says_what_it_needs():
  layer = d2l.PositionalEncoding(64, 0.25)
  X = jnp.ones((3, 50, 64))
  with pytest.raises(ValueError, match='rngs='):
    layer.apply({}, X, training=True)
  key = {'dropout': jax.random.key(0)}
  dropped = layer.apply({}, X, training=True, rngs=key)
  assert abs(float((dropped == 0).mean()) - 0.25) < 0.02
  kept = layer.apply({}, X)
  np.testing.assert_allclose(
    dropped, jnp.where(dropped == 0, 0, kept / 0.75), rtol=1e-5
  )


@pytest.mark.parametrize('rate', [-0.1, 1.0, float('nan')])
def test_a_rate_that_is_no_probability_is_refused(rate):
  with pytest.raises(ValueError, match='dropout'):
    d2l.PositionalEncoding(6, rate).apply({}, jnp.zeros((1, 2, 6)))
  X = jnp.zeros((1, 2, 6))
  with pytest.raises(ValueError, match='dropout'):
    d2l.MultiHeadAttention(6, 2, rate).init(jax.random.key(0), X, X, X)


# --- the tutorial's exercises ------------------------------------------------


def count(params):
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_exercise_1_attention_by_hand():
  Q = K = jnp.array([[[1.0, 0], [0, 1], [1, 1]]])
  V = jnp.array([[[2.0, 0], [0, 2], [1, 1]]])
  output, weights = selfattn.scaled_dot_product_attention(Q, K, V)
  rounded = [[0.40, 0.20, 0.40], [0.20, 0.40, 0.40], [0.248, 0.248, 0.503]]
  # The document prints 0.28, 0.28, 0.44 for the last row, whose scores are
  # (0.707, 0.707, 1.414): exp gives 2.03, 2.03, 4.11, so 0.248, 0.248, 0.503.
  np.testing.assert_allclose(weights[0], rounded, atol=5e-3)
  np.testing.assert_allclose(
    output[0], [[1.2, 0.8], [0.8, 1.2], [1.0, 1.0]], atol=6e-3
  )
  scores = np.array(Q[0]) @ np.array(K[0]).T / np.sqrt(2)
  exact = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  np.testing.assert_allclose(weights[0], exact, rtol=1e-6)


@pytest.mark.parametrize(
  ('bias', 'total'), [(False, 1_048_576), (True, 1_050_624)]
)
def test_exercise_2_parameters_of_multi_head_attention(bias, total):
  """The document's count leaves out the four biases its own code has."""
  X = jnp.ones((1, 2, 512))
  layer = selfattn.MultiHeadAttention(512, 8, bias=bias)
  params = jax.eval_shape(layer.init, jax.random.key(0), X, X, X)['params']
  assert count(params) == total


def test_parameters_of_the_self_attention_layer():
  layer = selfattn.SelfAttention(512, 64, 64)
  X = jnp.ones((8, 10, 512))
  (output, weights), variables = layer.init_with_output(jax.random.key(0), X)
  assert count(variables) == 98_304
  assert output.shape == (8, 10, 64)
  assert weights.shape == (8, 10, 10)


def test_parameters_of_the_classifier():
  """Ours and the document's layers agree; its printed 3,150,338 does not.

  Embedding 2,560,000, attention with biases 263,168, two layer norms 1,024,
  feed-forward 525,568, head 514.
  """
  encoder = selfattn.AttentionEncoder(
    num_layers=1,
    num_heads=8,
    mlp_dim=1024,
    position=Sinusoidal(256, 8, False),
    dtype=jnp.float32,
    block=PostNorm(feed_forward='relu'),
  )
  model = selfattn.TextClassifier(10_000, 2, 256, encoder)
  tokens = jnp.ones((16, 50), jnp.int32)
  params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens == 1)
  assert count(params) == 2_560_000 + 263_168 + 1_024 + 525_568 + 514
  assert count(params) == 3_350_274


def test_positions_are_added_to_texts_of_any_length_in_an_export():
  """NaN beyond the last row, since the length is not known."""
  module = d2l.PositionalEncoding(4, 0.0, max_len=5)
  outputs = jax.jit(lambda x: module.apply({}, x))
  (length,) = jax.export.symbolic_shape('length')
  shape = jax.ShapeDtypeStruct((2, length, 4), jnp.float32)
  exported = jax.export.export(outputs)(shape)
  found = exported.call(X := normal(0, (2, 5, 4)))
  np.testing.assert_allclose(found, outputs(X), atol=1e-6)
  is_number = np.isfinite(exported.call(jnp.ones((2, 7, 4)))).all(axis=(0, 2))
  np.testing.assert_array_equal(is_number, np.arange(7) < 5)


def test_parameters_of_the_rnn_and_of_self_attention():
  """Of its two models in 1.5, the document prints 2,826,498 and 3,150,338.

  Both have an embedding, 2,560,000, and a head, 514. torch.nn.LSTM has two
  biases a gate, and Flax's one.
  """
  X, ids = jnp.ones((2, 3, 256)), jnp.ones((2, 3), jnp.int32)
  attention = selfattn.MultiHeadAttention(256, 8, bias=True)
  cell = nn.OptimizedLSTMCell(256)
  carry = cell.initialize_carry(jax.random.key(0), X[:, 0].shape)

  def size(module, *args):
    return count(jax.eval_shape(module.init, jax.random.key(0), *args))

  shared = size(nn.Embed(10_000, 256), ids) + size(nn.Dense(2), X)
  rnn = shared + size(cell, carry, X[:, 0]) + 4 * 256
  assert rnn == 3_086_850
  assert shared + size(attention, X, X, X) == 2_823_682


@pytest.mark.parametrize('pair', [0, 255])
def test_exercise_3_periods(pair):
  """Columns 2j and 2j+1 repeat every 2 pi 10000^(2j/D) positions."""
  method = Sinusoidal(512, 1, False)
  period = 2 * np.pi * 10_000 ** (2 * pair / 512)
  positions = np.array([[0.0, 3.0, 11.0]])
  start = method.encoding({}, at(positions))[..., 2 * pair : 2 * pair + 2]
  later = method.encoding({}, at(positions + period))[
    ..., 2 * pair : 2 * pair + 2
  ]
  half = method.encoding({}, at(positions + period / 2))[
    ..., 2 * pair : 2 * pair + 2
  ]
  np.testing.assert_allclose(later, start, atol=1e-6)
  np.testing.assert_allclose(half, -start, atol=1e-6)
  if pair == 0:
    assert round(period, 2) == 6.28
  if pair == 255:
    # The lowest frequency is this one, with a period of 60,611: the
    # document's 62,832 would be that of column 512, which does not exist.
    assert round(period) == 60_611


def test_exercise_4_causal_mask():
  X = normal(0, (1, 5, 8))
  mask = jnp.tril(jnp.ones((5, 5)))
  output, weights = selfattn.scaled_dot_product_attention(X, X, X, mask)
  assert (weights[0][np.triu_indices(5, 1)] == 0).all()
  np.testing.assert_allclose(weights.sum(-1), np.ones((1, 5)), rtol=1e-6)
  np.testing.assert_allclose(output[0, 0], X[0, 0], rtol=1e-6)

  def last_output_of(position, X):
    output, _ = selfattn.scaled_dot_product_attention(X, X, X, mask)
    return output[0, position].sum()

  grad = jax.jit(jax.grad(last_output_of, argnums=1))(2, X)[0]
  assert (grad[3:] == 0).all()
  assert (grad[:3] != 0).any(axis=-1).all()


# --- valid lengths -----------------------------------------------------------


def multi_head(X, **more):
  layer = selfattn.MultiHeadAttention(X.shape[-1], 3)
  variables = draw(layer.init, jax.random.key(1), X, X, X)
  return layer.apply(variables, X, X, X, **more)


def test_valid_lens_may_be_per_sequence_or_per_query():
  X = normal(0, (2, 5, 12))
  per_sequence = multi_head(X, valid_lens=jnp.array([3, 2]))
  lens = jnp.broadcast_to(jnp.array([[3], [2]]), (2, 5))
  per_query = multi_head(X, valid_lens=lens)
  for ours, theirs in zip(per_sequence, per_query, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  weights = per_sequence[1]
  assert weights.shape == (2, 3, 5, 5)
  assert (weights[0, :, :, 3:] == 0).all()
  assert (weights[1, :, :, 2:] == 0).all()
  np.testing.assert_allclose(weights.sum(-1), np.ones((2, 3, 5)), rtol=1e-6)

  rising = multi_head(X, valid_lens=jnp.array([[1, 2, 3, 4, 5]] * 2))
  causal = multi_head(X, mask=jnp.tril(jnp.ones((1, 1, 5, 5), bool)))
  for ours, theirs in zip(rising, causal, strict=True):
    np.testing.assert_array_equal(ours, theirs)


def test_valid_lens_of_another_shape_are_refused():
  X = jnp.ones((2, 5, 12))
  with pytest.raises(ValueError, match='valid_lens'):
    multi_head(X, valid_lens=jnp.ones((2, 5, 1), jnp.int32))


def test_a_valid_length_of_zero_gives_zero_with_finite_gradients():
  X = normal(0, (2, 5, 12))

  def total(X):
    output, weights = multi_head(X, valid_lens=jnp.array([0, 4]))
    return (output**2).sum(), (output, weights)

  grad, (output, weights) = jax.jit(jax.grad(total, has_aux=True))(X)
  assert (output[0] == 0).all()
  assert (weights[0] == 0).all()
  assert np.isfinite(grad).all()
  assert (grad[0] == 0).all()
  assert (grad[1] != 0).any()
