"""Command R and its successors."""

from __future__ import annotations

from selfattn.pretrained.architectures.llama import (
  in_layers,
  llama,
  rotated,
  window_size,
)
from selfattn.pretrained.fields import layer_types, windows
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model


def cohere(c: Config, base: float = 5e5) -> Model:
  """Command R (Cohere 2024): parallel branches, pairs of neighbours rotate.

  Args:
    base: default of the rotation.
  """
  model = llama(c, rope_theta=base, tie_word_embeddings=True)
  norm = {'norm': 'layer_unbiased', 'eps': c.get('layer_norm_eps', 1e-5)}
  return rotated(model, layout='interleaved').replace(
    encoder={
      'qk_norm': c.get('use_qk_norm', False),
      'qk_norm_kind': 'layer_unbiased',
      'qk_norm_over': 'each_head',
    },
    block=Choice('parallel', {**model.block.options, **norm}),
    vocabulary_head={'scale': c.get('logit_scale', 0.0625)},
  )


def cohere2(c: Config) -> Model:
  """Command R7B (Cohere 2024): rotations in layers with a window alone."""
  c.refuse(use_qk_norm=False)
  size, nth = window_size(c, 4096), c.get('sliding_window_pattern', 4)
  types = layer_types(c, lambda n: n % nth == nth - 1)
  turns = [bool(size) and kind == 'sliding_attention' for kind in types]
  return in_layers(cohere(c, 1e4), turns).replace(encoder=windows(types, size))
