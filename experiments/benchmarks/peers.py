"""Models of the suite step in PyTorch and in x-transformers.

PyTorch and x-transformers are the extra `bench` of pyproject.toml: call their
functions only if they are `installed`.
"""
# PyTorch and x-transformers need not be installed.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import numpy as np

from selfattn.masks import Tokens
from selfattn.positions import Sinusoidal

# Hyperparameters of the tutorial's classifier.
NUM_HEADS, NUM_CLASSES = 8, 2
DROPOUT_RATE, LEARNING_RATE = 0.1, 1e-3


def installed(name: str) -> bool:
  """Whether a library can be imported."""
  return importlib.util.find_spec(name) is not None


def make_torch_step(model, size, tokens, targets) -> Callable:
  """A training step of PyTorch's encoder layers, on the CPU.

  Its layers use fused attention, and drop no attention weights.

  Args:
    model: a step.Model.
    size: a step.Size.
    tokens: int32 (batch, length).
    targets: a class for each text, int32 (batch,); or, where `model.is_causal`,
      the next token of each one, int32 (batch, length).
  """
  import torch
  from torch import nn as torch_nn

  torch.manual_seed(0)
  row = Tokens().with_defaults(tokens.shape[1])
  encoding = Sinusoidal(size.embed_dim, size.num_heads, False).encoding({}, row)
  encoding = torch.tensor(np.asarray(encoding))
  gelu = functools.partial(torch_nn.functional.gelu, approximate='tanh')
  layer = torch_nn.TransformerEncoderLayer(
    size.embed_dim,
    size.num_heads,
    size.mlp_dim,
    model.dropout_rate,
    gelu if model.is_pre_norm else 'relu',
    batch_first=True,
    norm_first=model.is_pre_norm,
  )
  layer.self_attn.dropout = 0.0
  norm = torch_nn.LayerNorm(size.embed_dim) if model.is_pre_norm else None
  encoder = torch_nn.TransformerEncoder(
    layer, size.num_layers, norm, enable_nested_tensor=False
  )
  embed = torch_nn.Embedding(size.vocab_size, size.embed_dim)
  drop = torch_nn.Dropout(model.dropout_rate)
  outputs = size.vocab_size if model.is_causal else NUM_CLASSES
  head = torch_nn.Linear(size.embed_dim, outputs)
  mask = torch_nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])

  def logits(x):
    x = drop(embed(x) + encoding)
    if model.is_causal:
      return head(encoder(x, mask=mask, is_causal=True)).transpose(1, 2)
    return head(drop(encoder(x).mean(dim=1)))

  modules = torch_nn.ModuleList([embed, encoder, head])
  return _torch_step(modules, logits, tokens, targets)


def make_x_transformers_step(size, tokens, targets) -> Callable:
  """A training step of a causal language model of x-transformers."""
  import torch
  from x_transformers import Decoder, TransformerWrapper

  torch.manual_seed(0)
  layers = Decoder(
    dim=size.embed_dim,
    depth=size.num_layers,
    heads=size.num_heads,
    attn_dim_head=size.embed_dim // size.num_heads,
    attn_flash=True,
  )
  model = TransformerWrapper(
    num_tokens=size.vocab_size,
    max_seq_len=tokens.shape[1],
    attn_layers=layers,
    scaled_sinu_pos_emb=True,
  )

  def logits(x):
    return model(x).transpose(1, 2)

  return _torch_step(model, logits, tokens, targets)


def _torch_step(module, logits, tokens, targets) -> Callable:
  """A step of fused AdamW on the mean loss; `logits` has classes in axis 1."""
  import torch

  optimizer = torch.optim.AdamW(
    module.parameters(), lr=LEARNING_RATE, fused=True
  )
  inputs, labels = torch.tensor(tokens).long(), torch.tensor(targets).long()

  def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits(inputs), labels).backward()
    optimizer.step()

  return step
