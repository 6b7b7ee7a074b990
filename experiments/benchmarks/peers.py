"""The same classifiers in other libraries: with layers of Flax, in PyTorch.

PyTorch is the extra `bench` of pyproject.toml: call the functions of it only if
`has_torch()`.
"""
# PyTorch need not be installed.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn

from selfattn.masks import Tokens
from selfattn.positions import Sinusoidal

# Hyperparameters of the tutorial's classifier.
NUM_HEADS, NUM_CLASSES = 8, 2
DROPOUT_RATE, LEARNING_RATE = 0.1, 1e-3
# Names of the steps in PyTorch, and whether torch.compile is applied.
TORCH_STEPS = {'pytorch': False, 'pytorch compiled': True}


def has_torch() -> bool:
  """Whether PyTorch is installed."""
  return importlib.util.find_spec('torch') is not None


class FlaxClassifier(nn.Module):
  """A post-norm encoder block as in the documentation of Flax.

  Attributes:
    vocab_size: V.
    width: D.
  """

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


def make_flax_step(tokens, labels, vocab_size, width):
  """A training step of the tutorial's classifier, trained by optax.adam."""
  model = FlaxClassifier(vocab_size, width)
  key = jax.random.key(0)
  params = model.init({'params': key, 'dropout': key}, tokens)
  optimizer = optax.adam(LEARNING_RATE)
  carry = (params, optimizer.init(params), 0)

  @functools.partial(jax.jit, donate_argnums=0)
  def update(carry):
    params, state, count = carry

    def mean_loss(params):
      rngs = {'dropout': jax.random.fold_in(key, count)}
      logits: Any = model.apply(params, tokens, rngs=rngs)
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


def make_torch_step(tokens, labels, vocab_size, width, *, is_compiled):
  """A training step of the tutorial's classifier in PyTorch, on the CPU."""
  import torch
  from torch import nn as torch_nn

  class Classifier(torch_nn.Module):
    """One post-norm block, with unfused attention as in the tutorial."""

    def __init__(self):
      super().__init__()
      self.embed = torch_nn.Embedding(vocab_size, width)
      row = Tokens().with_defaults(tokens.shape[1])
      encoding = Sinusoidal(width, NUM_HEADS, False).encoding({}, row)
      self.register_buffer('encoding', torch.tensor(np.asarray(encoding)))
      self.query, self.key, self.value, self.out = (
        torch_nn.Linear(width, width) for _ in range(4)
      )
      self.mlp_in = torch_nn.Linear(width, 4 * width)
      self.mlp_out = torch_nn.Linear(4 * width, width)
      self.norm_attention = torch_nn.LayerNorm(width)
      self.norm_mlp = torch_nn.LayerNorm(width)
      self.head = torch_nn.Linear(width, NUM_CLASSES)
      self.drop = torch_nn.Dropout(DROPOUT_RATE)

    def forward(self, x):
      """Logits (batch, classes)."""
      x = self.drop(self.embed(x) + self.encoding)
      q, k, v = (
        of(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
        for of in (self.query, self.key, self.value)
      )
      scores = q @ k.transpose(-2, -1) / math.sqrt(width // NUM_HEADS)
      mixed = scores.softmax(dim=-1) @ v
      attended = self.out(mixed.transpose(1, 2).flatten(2))
      x = self.norm_attention(x + self.drop(attended))
      inner = self.drop(self.mlp_in(x).relu())
      x = self.norm_mlp(x + self.drop(self.mlp_out(inner)))
      return self.head(x.mean(dim=1))

  torch.manual_seed(0)
  model = Classifier()
  optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
  texts, targets = torch.tensor(tokens), torch.tensor(labels).long()
  run = torch.compile(model) if is_compiled else model

  def step():
    optimizer.zero_grad()
    torch_nn.functional.cross_entropy(run(texts), targets).backward()
    optimizer.step()

  return step


def make_torch_encoder_step(size, tokens, labels, vocab_size, *, is_compiled):
  """A training step of PyTorch's pre-norm encoder, on the CPU.

  Its layers use fused attention, and as those of the default config drop no
  attention weights.

  Args:
    size: a step.Size.
  """
  import torch
  from torch import nn as torch_nn

  torch.manual_seed(0)
  row = Tokens().with_defaults(size.length)
  encoding = Sinusoidal(size.embed_dim, size.num_heads, False).encoding({}, row)
  encoding = torch.tensor(np.asarray(encoding))
  layer = torch_nn.TransformerEncoderLayer(
    size.embed_dim,
    size.num_heads,
    size.mlp_dim,
    DROPOUT_RATE,
    functools.partial(torch_nn.functional.gelu, approximate='tanh'),
    batch_first=True,
    norm_first=True,
  )
  layer.self_attn.dropout = 0.0
  model = torch_nn.ModuleDict(
    {
      'embed': torch_nn.Embedding(vocab_size, size.embed_dim),
      'encoder': torch_nn.TransformerEncoder(
        layer,
        size.num_layers,
        torch_nn.LayerNorm(size.embed_dim),
        enable_nested_tensor=False,
      ),
      'drop': torch_nn.Dropout(DROPOUT_RATE),
      'head': torch_nn.Linear(size.embed_dim, NUM_CLASSES),
    }
  )
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=LEARNING_RATE, fused=True
  )
  texts, targets = torch.tensor(tokens), torch.tensor(labels).long()

  def loss():
    x = model['drop'](model['embed'](texts) + encoding)
    x = model['drop'](model['encoder'](x).mean(dim=1))
    return torch_nn.functional.cross_entropy(model['head'](x), targets)

  run = torch.compile(loss) if is_compiled else loss

  def step():
    optimizer.zero_grad()
    run().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return step
