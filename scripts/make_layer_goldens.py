"""Writes outputs of whole models of transformers, as goldens of the tests.

    pip install torch transformers x-transformers rotary-embedding-torch
    python scripts/make_layer_goldens.py

Use an environment other than the project's. Writes
tests/selfattn/goldens/layers.npz: of each model, its vectors before and
after all layers, its parameters and the gradients of sum(output * cotangent).
"""
# The other libraries are no dependencies.
# pyright: reportMissingImports=false

import torch
from make_position_goldens import ROOT, make, write
from transformers import (
  LlamaConfig,
  LlamaModel,
  PhiConfig,
  PhiModel,
  SmolLM3Config,
  SmolLM3Model,
)

PATH = ROOT / 'tests/selfattn/goldens/layers.npz'
B, L, H, K, F = 2, 7, 4, 4, 10
SIZES = {
  'vocab_size': 5, 'hidden_size': H * K, 'intermediate_size': F,
  'num_attention_heads': H, 'bos_token_id': 1, 'eos_token_id': 2,
  'pad_token_id': 0, 'attn_implementation': 'eager',
}  # fmt: skip


def differentiated(model):
  """The model with drawn parameters, its output and gradients."""
  for name, parameter in model.named_parameters():
    near = 1.0 if name.endswith('norm.weight') else 0.0
    parameter.data = near + torch.randn(parameter.shape) / 3
  x = torch.randn(B, L, H * K).requires_grad_()
  output = model.eval()(inputs_embeds=x, use_cache=False).last_hidden_state
  cotangent = torch.randn(*output.shape)
  leaves = {'x': x} | {
    name: parameter
    for name, parameter in model.named_parameters()
    if not name.startswith('embed_tokens')
  }
  grads = torch.autograd.grad((output * cotangent).sum(), list(leaves.values()))
  named = zip(leaves, grads, strict=True)
  return {'output': output, 'cotangent': cotangent, **leaves} | {
    f'{name}_grad': grad for name, grad in named
  }


def smollm3():
  """Three layers with rotations and windows, one with neither; and one more."""
  config = SmolLM3Config(
    num_hidden_layers=5, num_key_value_heads=2,
    no_rope_layers=[1, 1, 1, 0, 1], use_sliding_window=True, sliding_window=3,
    layer_types=[*['sliding_attention'] * 3, 'full_attention',
                 'sliding_attention'],
    rope_parameters={'rope_type': 'default', 'rope_theta': 500.0},
    rms_norm_eps=1e-6, **SIZES,
  )  # fmt: skip
  return differentiated(SmolLM3Model(config))


def llama():
  """RMS norms and SwiGLU, with biases."""
  config = LlamaConfig(
    num_hidden_layers=2, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-6,
    **SIZES,
  )  # fmt: skip
  return differentiated(LlamaModel(config))


def phi():
  """Parallel branches with one norm; half of the channels rotated."""
  config = PhiConfig(
    num_hidden_layers=2, layer_norm_eps=1e-6,
    rope_parameters={'rope_type': 'default', 'rope_theta': 10_000.0,
                     'partial_rotary_factor': 0.5},
    **SIZES,
  )  # fmt: skip
  return differentiated(PhiModel(config))


if __name__ == '__main__':
  write(PATH, make((smollm3, llama, phi)), ('torch', 'transformers'))
