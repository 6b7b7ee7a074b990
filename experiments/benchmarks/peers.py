"""Models and attention calls in PyTorch and in x-transformers.

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

NUM_CLASSES = 2
LEARNING_RATE = 1e-3


def installed(name: str) -> bool:
  """Whether a library can be imported."""
  return importlib.util.find_spec(name) is not None


def make_torch_step(
  model, vocab_size: int, tokens, targets, is_compiled: bool = False
) -> Callable:
  """A training step of PyTorch's encoder layers.

  Its layers use fused attention, and drop no attention weights.

  Args:
    model: settings of the model.
    tokens: int32 (batch, length).
    targets: a class for each text, int32 (batch,); or, of a language model, the
      next token of each one, int32 (batch, length).
    is_compiled: whether torch.compile makes one program of the model.
  """
  import torch
  from torch import nn as torch_nn

  torch.manual_seed(0)
  device = set_up_torch()
  is_causal = targets.ndim > 1
  has_norm_first = model.block.name == 'pre'
  row = Tokens().with_defaults(tokens.shape[1])
  encoding = Sinusoidal(model.embed_dim, model.num_heads, False).encoding(
    {}, row
  )
  encoding = torch.tensor(np.asarray(encoding), device=device)
  gelu = functools.partial(torch_nn.functional.gelu, approximate='tanh')
  layer = torch_nn.TransformerEncoderLayer(
    model.embed_dim,
    model.num_heads,
    model.mlp_dim,
    model.dropout_rate,
    gelu if has_norm_first else 'relu',
    batch_first=True,
    norm_first=has_norm_first,
  )
  layer.self_attn.dropout = 0.0
  norm = torch_nn.LayerNorm(model.embed_dim) if has_norm_first else None
  encoder = torch_nn.TransformerEncoder(
    layer, model.num_layers, norm, enable_nested_tensor=False
  )
  embed = torch_nn.Embedding(vocab_size, model.embed_dim)
  drop = torch_nn.Dropout(model.dropout_rate)
  outputs = vocab_size if is_causal else NUM_CLASSES
  head = torch_nn.Linear(model.embed_dim, outputs)
  mask = torch_nn.Transformer.generate_square_subsequent_mask(
    tokens.shape[1], device=device
  )

  def logits(x):
    x = drop(embed(x) + encoding)
    if is_causal:
      return head(encoder(x, mask=mask, is_causal=True)).flatten(0, 1)
    return head(drop(encoder(x).mean(dim=1)))

  modules = torch_nn.ModuleList([embed, encoder, head]).to(device)
  read = torch.compile(logits) if is_compiled else logits
  return _torch_step(modules, read, tokens, targets, model.dtype)


def make_x_transformers_step(
  model, vocab_size: int, tokens, targets
) -> Callable:
  """A training step of a causal language model of x-transformers."""
  import torch
  from x_transformers import Decoder, TransformerWrapper

  torch.manual_seed(0)
  layers = Decoder(
    dim=model.embed_dim,
    depth=model.num_layers,
    heads=model.num_heads,
    attn_dim_head=model.embed_dim // model.num_heads,
    attn_flash=True,
  )
  wrapper = TransformerWrapper(
    num_tokens=vocab_size,
    max_seq_len=tokens.shape[1],
    attn_layers=layers,
    scaled_sinu_pos_emb=True,
  ).to(set_up_torch())

  def logits(x):
    return wrapper(x).flatten(0, 1)

  return _torch_step(wrapper, logits, tokens, targets, model.dtype)


def make_transformers_step(fields, tokens, targets) -> Callable:
  """A training step of a classifier of texts of transformers.

  Args:
    fields: of its config.json.
  """
  import torch
  import transformers

  torch.manual_seed(0)
  config = transformers.AutoConfig.for_model(**fields)
  config.num_labels = NUM_CLASSES
  classes = transformers.AutoModelForSequenceClassification
  model = classes.from_config(config).to(set_up_torch()).train()

  def logits(x):
    return model(input_ids=x).logits

  return _torch_step(model, logits, tokens, targets, 'float32')


def _torch_step(module, logits, tokens, targets, dtype: str) -> Callable:
  """A step of fused AdamW on the mean loss; `logits` has one row per target."""
  import torch

  device = set_up_torch()
  optimizer = torch.optim.AdamW(
    module.parameters(), lr=LEARNING_RATE, fused=True
  )
  inputs, labels = (
    torch.tensor(x, device=device).long() for x in (tokens, targets.flatten())
  )
  is_half = dtype != 'float32'

  def step():
    optimizer.zero_grad()
    with torch.autocast(device, getattr(torch, dtype), enabled=is_half):
      loss = torch.nn.functional.cross_entropy(logits(inputs), labels)
    loss.backward()
    optimizer.step()
    synchronize()

  return step


def set_up_torch() -> str:
  """Sets float32 matmuls to the precision of JAX; returns PyTorch's device."""
  import torch

  if not torch.cuda.is_available():
    return 'cpu'
  # XLA multiplies in TF32 on a GPU.
  torch.set_float32_matmul_precision('high')
  return 'cuda'


def synchronize() -> None:
  """Waits for a GPU."""
  import torch

  if torch.cuda.is_available():
    torch.cuda.synchronize()


def make_torch_gradient(kernel: str, slopes, shape) -> Callable:
  """Gradients of queries, keys and values of one causal call, in bfloat16.

  Args:
    kernel: 'sdpa', scaled_dot_product_attention, or 'flex', FlexAttention.
    slopes: of ALiBi, float32 (H,); None: no positions.
    shape: of queries, keys, values and the gradient of the output,
      (B, H, L, K).
  """
  import torch

  device = set_up_torch()
  new = functools.partial(
    torch.randn, shape, device=device, dtype=torch.bfloat16
  )
  arrays = [new(requires_grad=True) for _ in range(3)]
  cotangent = new()
  if slopes is not None:
    slopes = torch.tensor(slopes, device=device)
  make = {'sdpa': _sdpa, 'flex': _flex}[kernel]
  attend = make(slopes, shape[2], device)

  def gradient():
    torch.autograd.grad(attend(*arrays), arrays, cotangent)

  return gradient


def _sdpa(slopes, length: int, device: str) -> Callable:
  import torch

  attend = torch.nn.functional.scaled_dot_product_attention
  if slopes is None:
    return functools.partial(attend, is_causal=True)
  row = torch.arange(length, device=device)
  distance = row - row[:, None]
  bias = slopes[:, None, None] * distance
  bias = bias.masked_fill(distance > 0, -torch.inf)
  return functools.partial(attend, attn_mask=bias.bfloat16())


def _flex(slopes, length: int, device: str) -> Callable:
  import torch
  from torch.nn.attention import flex_attention as flex

  def is_visible(batch, head, query, key):
    return key <= query

  def add_bias(score, batch, head, query, key):
    return score + slopes[head] * (key - query)

  mask = flex.create_block_mask(
    is_visible, None, None, length, length, device=device
  )
  return functools.partial(
    torch.compile(flex.flex_attention),
    score_mod=None if slopes is None else add_bias,
    block_mask=mask,
  )
