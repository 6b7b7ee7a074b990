"""Sampled position ids, and positions that are counted."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import positions
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.encoders import AttentionEncoder
from selfattn.pools import POOLS, Cls
from selfattn.positions.sampling import (
  Augmented,
  Randomised,
  RandomOffset,
)
from selfattn.tokens import Tokens
from tests.conftest import draw

B, L, H, D, F = 3, 9, 4, 24, 17
LENGTHS = jnp.array([9, 4, 1])
IS_TOKEN = jnp.arange(L)[None] < LENGTHS[:, None]


def stream(seed):
  return Dropout.create(jax.random.key(seed), 0.0)


def test_augmented_positions_are_moved_stretched_and_jittered():
  is_token = jnp.ones((400, L), bool)
  method = Augmented(max_shift=3.0, max_jitter=0.25, max_scale=1.5)
  tokens = method.tokens(is_token, stream(0))
  positions = np.asarray(tokens.positions)
  assert (np.diff(positions) > 0).all()
  steps = np.diff(positions).mean(axis=1)
  # One scale a text, and one shift; jitter moves the ends of a text at most.
  wobble = 2 * 0.25 / (L - 1) * 1.5
  assert 1.3 < steps.max() <= 1.5 + wobble
  assert 1 / 1.5 - wobble <= steps.min() < 0.75
  first = positions[:, 0] / steps
  assert -3.6 < first.min() < -2.5
  assert 2.5 < first.max() < 3.6
  plain = Augmented(0.0, 0.0, 1.0).tokens(is_token, stream(0)).positions
  np.testing.assert_allclose(plain, np.broadcast_to(np.arange(L), (400, L)))
  assert method.tokens(is_token, None).positions is None
  other = method.tokens(is_token, stream(1)).positions
  assert abs(other - positions).min(axis=1).max() > 0


def test_random_offsets_differ_by_row_and_end_with_training():
  sampling = RandomOffset(max_offset=5)
  drawn = [sampling.tokens(IS_TOKEN, stream(n)).positions for n in range(40)]
  firsts = np.stack(drawn)[:, :, 0]
  assert set(firsts.ravel()) == set(range(6))
  assert (firsts[:, 0] != firsts[:, 1]).any()
  assert all((np.diff(row) == 1).all() for batch in drawn for row in batch)
  assert sampling.tokens(IS_TOKEN, None).positions is None
  assert sampling.max_length(L) == L + 5


def test_random_offsets_do_not_depend_on_how_a_batch_is_cut():
  sampling = RandomOffset(max_offset=50)
  whole = sampling.tokens(IS_TOKEN, stream(0)).positions
  part = stream(0).replace(first_row=1)
  np.testing.assert_array_equal(
    sampling.tokens(IS_TOKEN[1:], part).positions, whole[1:]
  )


def test_randomised_positions_are_an_ordered_subset_without_replacement():
  sampling = Randomised(max_position=12)
  seen = set()
  for seed in range(60):
    drawn = np.asarray(sampling.tokens(IS_TOKEN, stream(seed)).positions)
    for row, length in zip(drawn, LENGTHS, strict=True):
      assert (np.diff(row[:length]) > 0).all()
      assert row.min() >= 0
      assert row.max() < 12
    seen.add(int(drawn[2, 0]))
  assert seen == set(range(12))
  first, again = (sampling.tokens(IS_TOKEN, None).positions for _ in range(2))
  np.testing.assert_array_equal(first, again)
  assert sampling.max_length(L) == 12
  with pytest.raises(ValueError, match='max_position = 12 must be at least'):
    sampling.tokens(jnp.ones((1, 13), bool), None)


def test_sampled_positions_of_evaluation_are_in_no_cache():
  method = positions.make({'sinusoidal': {}}, D, H, True)
  encoder = AttentionEncoder(1, H, F, method, jnp.float32, causal=True)
  model = TextClassifier(7, 2, D, encoder, sampling=Randomised(max_position=30))
  call = jnp.ones((1, 1), int), jnp.ones((1, 1), bool)
  params = draw(model.init, jax.random.key(0), *call)
  with pytest.raises(ValueError, match='sampling = Randomised'):
    model.apply(params, *call, mutable=['cache'], cache_len=2)


@pytest.mark.parametrize(
  ('name', 'sampling'),
  [('sinusoidal', Randomised(99)), ('alibi', RandomOffset())],
)
def test_a_classifier_reads_sampled_positions(name, sampling):
  method = positions.make({name: {}}, D, H, False)
  encoder = AttentionEncoder(1, H, F, method, jnp.float32)
  model = TextClassifier(19, 3, D, encoder, pool=Cls(), sampling=sampling)
  ids = np.random.default_rng(2).integers(0, 19, (B, L))
  variables = draw(model.init, jax.random.key(0), ids, IS_TOKEN)
  apply = jax.jit(
    lambda seed: model.apply(
      variables, ids, IS_TOKEN, position_stream=stream(seed)
    )
  )
  one, other = apply(0), apply(1)
  is_blind = isinstance(sampling, RandomOffset) and name == 'alibi'
  if is_blind:
    # An offset is nothing to a relative method.
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
  else:
    assert abs(one - other)[:2].max() > 1e-4
  # Padding changes nothing here either.
  longer = jnp.pad(ids, ((0, 0), (0, 4)))
  more = jnp.pad(IS_TOKEN, ((0, 0), (0, 4)))
  evaluate = jax.jit(model.apply)
  evaluated = evaluate(variables, ids, IS_TOKEN)
  np.testing.assert_allclose(
    evaluate(variables, longer, more), evaluated, rtol=1e-5, atol=1e-5
  )


# --- positions that are counted -----------------------------------------------

FAR = np.array([[0, 50, 100, 150, 151, 152, 160, 170, 400]])
ROW = np.arange(L)[None]


@pytest.mark.parametrize(
  ('tokens', 'counts'),
  [
    (Tokens(), True),
    (Tokens(positions=ROW + 7), True),
    (Tokens(positions=np.concatenate([ROW, ROW + 7])), True),
    (Tokens(positions=FAR), False),
    (Tokens(positions=ROW[:, ::-1]), False),
    (Tokens(positions=np.concatenate([ROW, FAR])), False),
    # What is traced cannot be looked at, so its maker has to say so.
    (Tokens(positions=jnp.asarray(ROW)), False),
    (Tokens(positions=jnp.asarray(ROW), is_consecutive=True), True),
  ],
)
def test_distances_are_counted_only_where_positions_are_consecutive(
  tokens, counts
):
  assert tokens.with_defaults(L).has_consecutive_positions() is counts


def test_positions_of_the_index_stay_known_beside_a_traced_mask():
  """So that distances are counted in every program of a padded batch."""

  @jax.jit
  def are_counted(mask):
    once = Tokens(mask).with_defaults(L, B)
    return once.with_defaults(L, B).has_consecutive_positions()

  assert are_counted(IS_TOKEN)


def test_a_random_offset_leaves_distances_to_be_counted():
  tokens = RandomOffset().tokens(IS_TOKEN, stream(0)).with_defaults(L)
  assert tokens.is_consecutive


@pytest.mark.parametrize('side', ['left', 'right', 'inside'])
def test_randomised_positions_are_those_of_the_tokens_wherever_they_stand(side):
  """Texts of n tokens have the first n of the sample, in order."""
  sampling = Randomised(max_position=50)
  right = jnp.arange(L)[None] < jnp.array([[9], [4], [0]])
  mask = {
    'right': right,
    'left': right[:, ::-1],
    'inside': jnp.asarray(
      [[1] * 9, [0, 1, 0, 1, 1, 0, 0, 0, 1], [0] * 9], bool
    ),
  }[side]
  plain = np.asarray(sampling.tokens(right, stream(5)).positions)
  found = np.asarray(sampling.tokens(mask, stream(5)).positions)
  for row in range(B):
    np.testing.assert_array_equal(
      found[row][np.asarray(mask[row])], plain[row][np.asarray(right[row])]
    )
  assert found.min() >= 0
  assert found.max() < 50


@pytest.mark.slow
@pytest.mark.parametrize('pool', ['mean', 'cls'])
@pytest.mark.parametrize('restarts', [False, True])
@pytest.mark.parametrize('name', ['sinusoidal', 'rotary'])
def test_padding_before_a_pair_moves_no_position(name, restarts, pool):
  encoder = AttentionEncoder(
    num_layers=1,
    num_heads=2,
    mlp_dim=16,
    position=positions.make({name: {}}, 16, 2, False),
    dtype=jnp.float32,
    parent=None,
  )
  classifier = TextClassifier(
    10,
    3,
    16,
    encoder,
    pool=POOLS[pool](parent=None),
    separator=9,
    restarts=restarts,
    embed_init_std=1.0,
  )
  pair, padding = [3, 4, 9, 5, 6, 9], [0, 0, 0]
  rows = np.array([pair + padding, padding + pair])
  mask = np.array([[True] * 6 + [False] * 3, [False] * 3 + [True] * 6])
  variables = classifier.init(jax.random.key(0), rows, mask)
  right, left = classifier.apply(variables, rows, mask)
  np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('pool', ['mean', 'cls'])
@pytest.mark.parametrize('restarts', [False, True])
@pytest.mark.parametrize(
  'sampling', [Augmented(), Randomised(max_position=50), RandomOffset()]
)
def test_padding_before_a_pair_moves_no_sampled_position(
  sampling, restarts, pool
):
  encoder = AttentionEncoder(
    num_layers=1,
    num_heads=1,
    mlp_dim=8,
    position=positions.make({'sinusoidal': {}}, 8, 1, False),
    dtype=jnp.float32,
    parent=None,
  )
  classifier = TextClassifier(
    10,
    3,
    8,
    encoder,
    pool=POOLS[pool](parent=None),
    sampling=sampling,
    separator=9,
    restarts=restarts,
    embed_init_std=1.0,
  )
  pair, padding = [3, 4, 9, 5, 6, 9], [0, 0, 0]
  right, left = np.array([pair + padding]), np.array([padding + pair])
  params = draw(classifier.init, jax.random.key(0), right, right > 0)
  found = [
    classifier.apply(params, ids, ids > 0, position_stream=stream(1))
    for ids in (right, left)
  ]
  np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize('name', ['sinusoidal', 'alibi'])
def test_texts_with_padding_before_them_are_exported_at_any_length(name):
  encoder = AttentionEncoder(
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    position=positions.make({name: {}}, 8, 2, False),
    dtype=jnp.float32,
    parent=None,
  )
  classifier = TextClassifier(10, 3, 8, encoder)
  ids = np.array([[0, 0, 5, 3, 7]], np.int32)
  params = draw(classifier.init, jax.random.key(0), ids, ids > 0)
  outputs = jax.jit(lambda ids, mask: classifier.apply(params, ids, mask))
  sizes = jax.export.symbolic_shape('batch, length')
  exported = jax.export.export(outputs)(
    jax.ShapeDtypeStruct(sizes, ids.dtype), jax.ShapeDtypeStruct(sizes, bool)
  )
  found = exported.call(ids, ids > 0)
  np.testing.assert_allclose(found, outputs(ids, ids > 0), atol=1e-5)
