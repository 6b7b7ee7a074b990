"""Classifiers in PyTorch, eager and compiled.

Only these need PyTorch, the extra `bench` of pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import math

import numpy as np

from experiments.benchmarks.tutorial import (
  DROPOUT_RATE,
  LEARNING_RATE,
  NUM_CLASSES,
  NUM_HEADS,
)
from selfattn.masks import Tokens
from selfattn.positions import Sinusoidal


def make_step(tokens, labels, vocab_size, width, *, is_compiled):
  """A training step of the tutorial's classifier; None without PyTorch."""
  if importlib.util.find_spec('torch') is None:
    return None
  import torch
  from torch import nn

  class Classifier(nn.Module):
    """One post-norm block, with unfused attention as in the tutorial."""

    def __init__(self):
      super().__init__()
      self.embed = nn.Embedding(vocab_size, width)
      row = Tokens().with_defaults(tokens.shape[1])
      encoding = Sinusoidal(width, NUM_HEADS, False).encoding({}, row)
      self.register_buffer('encoding', torch.tensor(np.asarray(encoding)))
      self.query, self.key, self.value, self.out = (
        nn.Linear(width, width) for _ in range(4)
      )
      self.mlp_in = nn.Linear(width, 4 * width)
      self.mlp_out = nn.Linear(4 * width, width)
      self.norm_attention = nn.LayerNorm(width)
      self.norm_mlp = nn.LayerNorm(width)
      self.head = nn.Linear(width, NUM_CLASSES)
      self.drop = nn.Dropout(DROPOUT_RATE)

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
  optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
  texts, targets = torch.tensor(tokens), torch.tensor(labels).long()
  run = torch.compile(model) if is_compiled else model

  def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(run(texts), targets).backward()
    optimizer.step()

  return step


def make_encoder_step(size, tokens, labels, vocab_size, *, is_compiled):
  """A training step of PyTorch's pre-norm encoder; None without PyTorch.

  In bfloat16 by autocast, on a GPU if there is one; its layers use fused
  attention.

  Args:
    size: a models.Size.
  """
  if importlib.util.find_spec('torch') is None:
    return None
  import torch
  from torch import nn

  device = 'cuda' if torch.cuda.is_available() else 'cpu'
  torch.manual_seed(0)
  encoding = Sinusoidal(size.embed_dim, size.num_heads, False).encoding(
    {}, Tokens().with_defaults(size.length)
  )
  encoding = torch.tensor(np.asarray(encoding), device=device)
  layer = nn.TransformerEncoderLayer(
    size.embed_dim,
    size.num_heads,
    size.mlp_dim,
    DROPOUT_RATE,
    'gelu',
    batch_first=True,
    norm_first=True,
  )
  model = nn.ModuleDict(
    {
      'embed': nn.Embedding(vocab_size, size.embed_dim),
      'encoder': nn.TransformerEncoder(
        layer, size.num_layers, enable_nested_tensor=False
      ),
      'head': nn.Linear(size.embed_dim, NUM_CLASSES),
    }
  ).to(device)
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=LEARNING_RATE, fused=device == 'cuda'
  )
  texts = torch.tensor(tokens, device=device)
  targets = torch.tensor(labels, device=device).long()

  def loss():
    with torch.autocast(device, torch.bfloat16):
      x = model['encoder'](model['embed'](texts) + encoding)
      logits = model['head'](x.mean(dim=1))
    return nn.functional.cross_entropy(logits.float(), targets)

  run = torch.compile(loss) if is_compiled else loss

  def step():
    optimizer.zero_grad()
    run().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if device == 'cuda':
      torch.cuda.synchronize()

  return step


def most_allocated() -> int | str:
  """Peak MiB allocated by PyTorch since the last call; '' without a GPU."""
  if importlib.util.find_spec('torch') is None:
    return ''
  import torch

  if not torch.cuda.is_available():
    return ''
  most = torch.cuda.max_memory_allocated()
  torch.cuda.reset_peak_memory_stats()
  return round(most / 2**20)
