"""OLMo and its successors."""

from __future__ import annotations

from selfattn.pretrained.architectures.llama import (
  in_layers,
  llama,
  window_size,
)
from selfattn.pretrained.fields import KINDS, layer_types, rotations, windows
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model

BRANCH = {
  'encoder/block_*/norm_attention': 'layers.*.post_attention_layernorm',
  'encoder/block_*/norm_mlp': 'layers.*.post_feedforward_layernorm',
}


def olmo(c: Config) -> Model:
  """OLMo (Groeneveld et al. 2024): norms without parameters."""
  model = llama(c)
  return model.replace(
    encoder={'clip_qkv': c.get('clip_qkv', 0.0)},
    block=model.block.with_options(norm='layer_plain', eps=1e-5),
  )


def olmo2(c: Config) -> Model:
  """OLMo 2 (OLMo team 2024): norms of branches, and of queries and keys."""
  model = llama(c, rms_norm_eps=1e-5)
  return model.replace(
    encoder={'qk_norm': True, 'qk_norm_over': 'all_heads'},
    block=Choice('branch', model.block.options),
    rows=BRANCH,
  )


def olmo3(c: Config) -> Model:
  """Olmo 3 (Olmo team 2025): windows, without scaling of their rotation."""
  types = layer_types(c, lambda n: n % 4 == 3)
  base = c.get('rope_theta', 5e5)
  bases = {kind: {'rope_theta': base} for kind in KINDS}
  return olmo2(c).replace(
    encoder=windows(types, window_size(c, 4096)),
    position=rotations(c, types, bases),
  )


def exaone4(c: Config) -> Model:
  """EXAONE 4.0 (LG AI Research 2025): OLMo 2 with rotations in windows alone.

  Norms of queries and keys are of each head.
  """
  size, pattern = window_size(c, 4096), c.get('sliding_window_pattern', 4)
  nth = 4 if pattern == 'LLLG' else pattern
  types = layer_types(c, lambda n: not size or n % nth == nth - 1)
  model = olmo2(c).replace(
    encoder={'qk_norm_over': 'head', **windows(types, size)}
  )
  turns = [not size or kind == 'sliding_attention' for kind in types]
  return in_layers(model, turns)
