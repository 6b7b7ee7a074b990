"""Classification heads, from pooled vectors to logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, normal

from selfattn.baselines import BowEncoder
from selfattn.classifier import TextClassifier
from selfattn.dropout import Dropout
from selfattn.heads import HEADS, Head, Mlp

B, L, P, C, V, D = 3, 7, 5, 4, 11, 6
TOKENS = jnp.array([[3, 4, 3, 4, 9, 9, 2], [8, 8, 8, 5, 1, 0, 0], [0] * 7])
LENGTHS = (7, 5, 0)
IS_TOKEN = jnp.arange(L)[None] < jnp.array(LENGTHS)[:, None]
POOLED = normal(0, (B, P))

OPTIONS = {'linear': {}, 'mlp': {'hidden_dim': 6}}


def affine(params, x):
  return x @ params['kernel'] + params['bias']


# In float64: of the parameters and the pooled vectors.
FORMULAS = {
  'linear': affine,
  'mlp': lambda params, pooled: affine(
    params, np.tanh(affine(params['dense'], pooled))
  ),
}


@pytest.mark.parametrize('name', HEADS)
def test_a_head_equals_its_formula(name):
  head = HEADS[name](**OPTIONS[name])
  variables = draw(lambda key: head.init(key, POOLED, C), jax.random.key(1))
  found = jax.jit(head.apply, static_argnums=2)(variables, POOLED, C)
  assert (found.shape, found.dtype) == ((B, C), jnp.float32)
  params = jax.tree.map(np.float64, variables['params'])
  wanted = FORMULAS[name](params, np.float64(POOLED))
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_dropout_within_a_head_is_that_of_training_alone():
  head = Mlp()
  variables = head.init(jax.random.key(1), POOLED, C)
  half = Dropout.create(jax.random.key(2), 0.5)
  plain, dropped = (head.apply(variables, POOLED, C, d) for d in (None, half))
  none = Dropout.create(jax.random.key(2), 0.0)
  np.testing.assert_allclose(
    head.apply(variables, POOLED, C, none), plain, atol=1e-6
  )
  assert np.abs(dropped - plain).min() > 1e-4
  # A hidden unit is kept, and doubled, or it is not.
  mlp = Mlp(hidden_dim=1)
  variables = mlp.init(jax.random.key(1), POOLED, C)
  plain = mlp.apply(variables, POOLED, C)
  found = [
    mlp.apply(variables, POOLED, C, half.at(site)) / plain for site in range(20)
  ]
  np.testing.assert_allclose(np.unique(np.round(found, 4)), [0, 2])


class Recorded(Head):
  def __call__(self, pooled, num_classes, dropout=None):
    self.sow('intermediates', 'dropout', dropout)
    return pooled[:, :num_classes]


def test_dropout_of_a_classifier_reaches_its_head_with_bits_of_its_own():
  model = TextClassifier(V, C, D, BowEncoder(), head=Recorded())
  variables = draw(model.init, jax.random.key(0), TOKENS, IS_TOKEN)
  found = []
  for dropout in (None, Dropout.create(jax.random.key(0), 0.3)):
    _, sown = model.apply(
      variables, TOKENS, IS_TOKEN, dropout, mutable='intermediates'
    )
    found += sown['intermediates']['head']['dropout']
  absent, given = found
  assert absent is None
  assert given.rate == dropout.rate
  # Neither those of the encoder nor those of the pooled vector.
  others = (dropout, *map(dropout.at, (0, 1)))
  keys = [tuple(each.key_data.tolist()) for each in (given, *others)]
  assert len(set(keys)) == 4


@pytest.mark.parametrize('given', [{'head': 'linear'}, {'pool': 'mean'}])
def test_names_are_no_heads_and_no_pools(given):
  model = TextClassifier(V, C, D, BowEncoder(), **given)
  with pytest.raises(TypeError, match=r"= '.*' must be a (Head|Pool)"):
    model.init(jax.random.key(0), TOKENS, IS_TOKEN)
