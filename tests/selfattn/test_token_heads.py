"""Heads on tokens in bfloat16, and which encoders know where padding is."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn.classifier import TextClassifier
from selfattn.contract import Encoder
from selfattn.encoders import AttentionEncoder
from selfattn.heads import EmbeddingHead, TokenHead, VocabularyHead

B, L, D, V = 4, 64, 128, 300
HEADS = {
  'token': TokenHead(V),
  'tied': VocabularyHead(),
  'embedding': EmbeddingHead(tuple(range(V))),
}


@pytest.mark.parametrize(
  'name', ['token', pytest.param('tied', marks=pytest.mark.slow), 'embedding']
)
def test_logits_of_bfloat16_have_no_ties_and_its_gradients(name):
  """As in float32 from the same numbers, to the precision of bfloat16."""
  embed = nn.Embed(V, D).bind(
    {
      'params': nn.Embed(V, D).init(jax.random.key(0), jnp.zeros(1, int))[
        'params'
      ]
    }
  )
  x = jax.random.normal(jax.random.key(1), (B, L, D)).astype(jnp.bfloat16)
  cotangent = jax.random.normal(jax.random.key(2), (B, L, V))
  params = HEADS[name].init(jax.random.key(3), x, embed)

  def logits(params, x):
    return HEADS[name].apply(params, x, embed).astype(jnp.float32)

  (got, pull_back), (want, wanted) = (
    jax.vjp(logits, params, x.astype(dtype))
    for dtype in (jnp.bfloat16, jnp.float32)
  )
  top = np.sort(np.asarray(got), axis=-1)
  assert (top[..., -1] > top[..., -2]).mean() > 0.999
  trees = (got, pull_back(cotangent)), (want, wanted(cotangent))
  for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
    one, other = (np.asarray(leaf, np.float64) for leaf in (one, other))
    norm = np.linalg.norm(other)
    assert np.linalg.norm(one - other) <= 2e-2 * norm


class Spy(Encoder):
  """Returns its input, and keeps its Tokens."""

  keeps_order = AttentionEncoder.keeps_order

  def __call__(self, x_BLD, tokens=None, dropout=None, attention_dropout=None):
    self.sow('intermediates', 'mark', jnp.asarray(tokens.is_right_padded))
    return x_BLD


class Other(Spy):
  keeps_order = Encoder.keeps_order


@pytest.mark.parametrize(('encoder', 'want'), [(Spy(), True), (Other(), False)])
def test_only_encoders_that_keep_the_order_know_that_padding_is_right(
  encoder, want
):
  model = TextClassifier(V, 2, D, encoder)
  inputs = jnp.zeros((B, L), jnp.int32), jnp.ones((B, L), bool)
  given = {'is_right_padded': True}
  params = model.init(jax.random.key(0), *inputs)['params']
  _, sown = model.apply(
    {'params': params}, *inputs, mutable='intermediates', **given
  )
  (mark,) = sown['intermediates']['encoder']['mark']
  assert bool(mark) == want
