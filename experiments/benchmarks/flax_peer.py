"""The tutorial's classifier with layers of Flax, trained by optax.adam."""

from __future__ import annotations

import functools

import jax
import optax
from flax import linen as nn

from experiments.benchmarks.tutorial import (
  DROPOUT_RATE,
  LEARNING_RATE,
  NUM_CLASSES,
  NUM_HEADS,
)
from selfattn.masks import Tokens
from selfattn.positions import Sinusoidal


class Classifier(nn.Module):
  """A post-norm encoder block as in the documentation of Flax."""

  vocab_size: int
  width: int

  @nn.compact
  def __call__(self, tokens):
    """Logits (batch, classes)."""

    def drop(x):
      return nn.Dropout(DROPOUT_RATE, deterministic=False)(x)

    x = nn.Embed(self.vocab_size, self.width)(tokens)
    encoding = Sinusoidal(self.width, NUM_HEADS, False)
    x = drop(encoding.embed({}, x, Tokens().with_defaults(tokens.shape[1])))
    attended = nn.MultiHeadDotProductAttention(NUM_HEADS)(x)
    x = nn.LayerNorm()(x + drop(attended))
    inner = drop(nn.relu(nn.Dense(4 * self.width)(x)))
    x = nn.LayerNorm()(x + drop(nn.Dense(self.width)(inner)))
    return nn.Dense(NUM_CLASSES)(x.mean(axis=1))


def make_step(tokens, labels, vocab_size, width):
  """A function that takes one training step and returns the loss."""
  model = Classifier(vocab_size, width)
  key = jax.random.key(0)
  params = model.init({'params': key, 'dropout': key}, tokens)
  optimizer = optax.adam(LEARNING_RATE)
  carry = (params, optimizer.init(params), 0)

  @functools.partial(jax.jit, donate_argnums=0)
  def update(carry):
    params, state, count = carry

    def mean_loss(params):
      rngs = {'dropout': jax.random.fold_in(key, count)}
      logits = model.apply(params, tokens, rngs=rngs)
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      return losses.mean()

    loss, grads = jax.value_and_grad(mean_loss)(params)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state, count + 1), loss

  def step():
    nonlocal carry
    carry, loss = update(carry)
    return carry, loss

  return step
