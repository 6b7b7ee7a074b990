"""Tiny models of transformers at random weights, and what they compute."""

from __future__ import annotations

import json
import os

import numpy as np

V, D, F, H, LAYERS = 61, 32, 40, 4, 3
TINY = {
  'vocab_size': V,
  'hidden_size': D,
  'intermediate_size': F,
  'num_hidden_layers': LAYERS,
  'num_attention_heads': H,
  'max_position_embeddings': 64,
  'pad_token_id': 0,
  'bos_token_id': 1,
  'eos_token_id': 2,
}
HEADS = {
  'causal': 'AutoModelForCausalLM',
  'masked': 'AutoModelForMaskedLM',
  'text': 'AutoModelForSequenceClassification',
  'words': 'AutoModelForTokenClassification',
  'none': 'AutoModel',
}
# Rows of two lengths, with ids that are no special token.
B, L = 2, 9
LENGTHS = (9, 6)


def make(model_type, head, folder, fields, attention='eager'):
  """A model of transformers with random weights, saved in a folder."""
  import torch
  import transformers

  config = transformers.AutoConfig.for_model(model_type, **TINY | fields)
  if head in ('text', 'words'):
    config.num_labels = 3
  name = HEADS[head]
  if head == 'none' and config.is_encoder_decoder:
    name = 'AutoModelForTextEncoding'
  cls = getattr(transformers, name)
  torch.manual_seed(0)
  model = cls.from_config(config, attn_implementation=attention)
  model = model.eval()
  randomise(model)
  model.save_pretrained(folder)
  return model


def randomise(model) -> None:
  """Draws all weights anew, so that none is 0 or 1 by its initialisation."""
  import torch

  generator = torch.Generator().manual_seed(1)
  tied = set()
  persistent = set(model.state_dict())
  for name, x in [*model.named_parameters(), *model.named_buffers()]:
    if name not in persistent or not x.is_floating_point() or id(x) in tied:
      continue
    is_frozen = isinstance(x, torch.nn.Parameter) and not x.requires_grad
    is_frozen &= not name.endswith('e_score_correction_bias')
    if is_frozen or name.endswith(('inv_freq', 'act_fn.beta', 'act_fn.eps')):
      continue  # Angles of positions, and constants.
    tied.add(id(x))
    scale = 0.5 if x.ndim < 2 else 1.5 / np.sqrt(x.shape[-1])
    draw = torch.randn(x.shape, generator=generator) * scale
    begin = x.data.float().mean() if x.ndim < 2 else 0.0
    x.data.copy_(draw + begin)


def batch(side: str) -> tuple[np.ndarray, np.ndarray]:
  """Token ids and a padding mask, which is False on one side or nowhere."""
  rng = np.random.default_rng(3)
  ids = rng.integers(5, V, (B, L))
  mask = np.ones((B, L), bool)
  if side != 'none':
    mask = np.arange(L)[None] < np.array(LENGTHS)[:, None]
    mask = mask if side == 'right' else mask[:, ::-1]
  return np.where(mask, ids, 0), mask


def config_of(folder: str) -> dict:
  with open(os.path.join(folder, 'config.json')) as file:
    return json.load(file)
