"""Gemma and its successors."""

from __future__ import annotations

import math

from selfattn.pretrained.architectures.llama import llama, window_size
from selfattn.pretrained.fields import (
  gated,
  layer_types,
  rotations,
  sided_windows,
  windows,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model

SANDWICH = {
  'encoder/block_*/norm_attention_out': 'layers.*.post_attention_layernorm',
  'encoder/block_*/norm_mlp': 'layers.*.pre_feedforward_layernorm',
  'encoder/block_*/norm_mlp_out': 'layers.*.post_feedforward_layernorm',
}


def _approximate(name: str) -> str:
  """Of Gemma, whose first files say gelu where they mean its approximation."""
  return gated('gelu_pytorch_tanh' if name == 'gelu' else name)


def gemma(c: Config, of_activation=_approximate, **defaults) -> Model:
  """Gemma (Gemma team 2024): scaled embeddings, and norms with 1 + scale.

  Args:
    of_activation, defaults: see `llama`.
  """
  c.refuse(use_bidirectional_attention=False)
  usual = {'head_dim': 256, 'hidden_act': 'gelu_pytorch_tanh'}
  usual |= {'tie_word_embeddings': True}
  model = llama(c, of_activation, **usual | defaults)
  return model.replace(
    encoder={'input_scale': math.sqrt(model.embed_dim)},
    block=model.block.with_options(norm='rms_offset'),
  )


def _sandwich(c: Config) -> Model:
  """Gemma with norms before and after the branches, and another scale."""
  act = c.get('hidden_activation', 'gelu_pytorch_tanh')
  model = gemma(Config({**c, 'hidden_act': act}), gated, num_key_value_heads=4)
  return model.replace(
    encoder={'scale': c.get('query_pre_attn_scalar', 256) ** -0.5},
    block=Choice('sandwich', model.block.options),
    rows=SANDWICH,
  )


def gemma2(c: Config) -> Model:
  """Gemma 2 (Gemma team 2024b): bounds of scores and logits, and windows."""
  scores, logits = (
    dict.get(c, f'{name}_logit_softcapping', usual) or 0.0
    for name, usual in (('attn', 50.0), ('final', 30.0))
  )
  types = layer_types(c, lambda n: n % 2 == 1)
  sliding = windows(types, window_size(c, 4096))
  return _sandwich(c).replace(
    encoder={'softcap': scores, **sliding}, vocabulary_head={'softcap': logits}
  )


def gemma3(c: Config) -> Model:
  """Gemma 3 (Gemma team 2025): normalised queries and keys, two rotations.

  EmbeddingGemma (Vera et al. 2025) attends to both sides.
  """
  c.refuse(attn_logit_softcapping=None)
  c = Config(c)
  both = c.pop('use_bidirectional_attention', None)
  size, nth = c.get('sliding_window', 4096), c.get('sliding_window_pattern', 6)
  types = layer_types(c, lambda n: n % nth == nth - 1)
  bases = {
    'full_attention': {'rope_theta': c.get('rope_theta', 1e6)},
    'sliding_attention': {'rope_theta': c.get('rope_local_base_freq', 1e4)},
  }
  sides = (size // 2, size // 2) if both else (size - 1, 0)
  return _sandwich(c).replace(
    encoder={
      'causal': not both,
      **sided_windows(types, sides),
      'qk_norm': True,
      'qk_norm_kind': 'rms_offset',
    },
    position=rotations(c, types, bases),
    vocabulary_head={'softcap': c.get('final_logit_softcapping', 0.0)},
  )
