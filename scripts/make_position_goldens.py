"""Writes outputs of other libraries' position methods as goldens of the tests.

    pip install torch transformers x-transformers rotary-embedding-torch
    python scripts/make_position_goldens.py

Use an environment other than the project's. Writes
tests/selfattn/goldens/positions.npz, so that the tests need none of these
packages. Sizes: B 2, L 7 queries, M 9 keys, H 4 heads, K 6 channels per head,
unless a case says otherwise.
"""
# The other libraries are no dependencies.
# pyright: reportMissingImports=false

import importlib.metadata
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import rotary_embedding_torch
import torch
from torch.nn import functional
from transformers import LlamaConfig, T5Config, masking_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.m2m_100.modeling_m2m_100 import (
  M2M100SinusoidalPositionalEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.roformer.modeling_roformer import (
  RoFormerSinusoidalPositionalEmbedding,
)
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention
from x_transformers.x_transformers import AlibiPositionalBias

B, L, M, H, K = 2, 7, 9, 4, 6
ROOT = pathlib.Path(__file__).parent.parent
PATH = ROOT / 'tests/selfattn/goldens/positions.npz'
PACKAGES = ('torch', 'transformers', 'x-transformers', 'rotary-embedding-torch')


def sinusoidal():
  """Concatenated by RoFormer, tensor2tensor by M2M100; even and odd widths."""
  cases = {}
  for width in (11, 14):
    layer = RoFormerSinusoidalPositionalEmbedding(20, width)
    cases[f'concatenated_{width}'] = layer.create_weight()
    cases[f'tensor2tensor_{width}'] = (
      M2M100SinusoidalPositionalEmbedding.get_embedding(20, width)
    )
  return cases


def t5():
  """Buckets, biases and a complete layer of T5, bidirectional and causal."""
  cases = {'distances': torch.arange(-1500, 1501)}
  for name, causal in (('bidirectional', False), ('causal', True)):
    for buckets, farthest in ((32, 128), (8, 20), (16, 64)):
      cases[f'{name}_{buckets}_{farthest}'] = (
        T5Attention._relative_position_bucket(
          cases['distances'], not causal, buckets, farthest
        )
      )
    config = T5Config(d_model=H * K, num_heads=H, d_kv=K, dropout_rate=0.0)
    config.is_decoder = causal
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    layer = layer.eval()
    for parameter in layer.parameters():
      parameter.data = torch.randn(parameter.shape) / 3
    x = torch.randn(B, L, H * K)
    bias = layer.compute_bias(L, L)
    if causal:
      hidden = torch.ones(L, L).triu(1).bool()
      bias = bias.masked_fill(hidden, torch.finfo(torch.float32).min)
    cases[f'{name}/x'] = x
    cases[f'{name}/bias'] = layer.compute_bias(L, L)
    cases[f'{name}/output'] = layer(x, position_bias=bias)[0]
    for parameter, value in layer.named_parameters():
      cases[f'{name}/{parameter}'] = value
  return cases


def alibi():
  """Slopes of 1 to 16 heads, the symmetric bias, and BLOOM's for keys."""
  cases = {}
  for heads in range(1, 17):
    cases[f'slopes_{heads}'] = -AlibiPositionalBias(heads)(1, 2)[:, 0, 0]
  cases['symmetric'] = AlibiPositionalBias(6)(L, L)
  mask = torch.ones(1, L)
  cases['keys'] = build_alibi_tensor(mask, 6, torch.float32)
  return cases


def rotary():
  """Half-split by Llama, interleaved and partial by rotary-embedding-torch."""
  x = torch.randn(B, H, L, K)
  offset = 5
  angles = torch.arange(offset, offset + L)[:, None] * 10_000.0 ** (
    -torch.arange(0, K, 2)[None] / K
  )
  twice = torch.cat([angles, angles], dim=-1)[None]
  half, _ = apply_rotary_pos_emb(x, x, twice.cos(), twice.sin())
  interleaved = rotary_embedding_torch.RotaryEmbedding(K)
  partial = rotary_embedding_torch.RotaryEmbedding(4)
  return {
    'x': x,
    'half': half,
    'interleaved': interleaved.rotate_queries_or_keys(x, offset=offset),
    'partial': partial.rotate_queries_or_keys(x, offset=offset),
  }


def rotary_scaling():
  """Frequencies of 64 channels, extended from 512 tokens to 2,048."""
  cases = {}
  for name, more in (
    ('linear', {'factor': 4.0}),
    ('yarn', {'factor': 4.0, 'original_max_position_embeddings': 512}),
    # Dynamic NTK: at four times the original length, without a factor.
    ('dynamic', {'factor': 1.0}),
  ):
    config = LlamaConfig(
      hidden_size=128,
      num_attention_heads=2,
      max_position_embeddings=512,
      rope_parameters={'rope_type': name, 'rope_theta': 10_000.0, **more},
    )
    length = {'seq_len': 2048} if name == 'dynamic' else {}
    rates, factor = ROPE_INIT_FUNCTIONS[name](config, 'cpu', **length)
    cases[f'{name}_rates'] = rates
    cases[f'{name}_factor'] = torch.tensor(factor)
  return cases


def shaw():
  """Relative keys by Wav2Vec2-BERT; scores are scaled."""
  clip = 3
  layer = SimpleNamespace(
    distance_embedding=torch.nn.Embedding(2 * clip + 1, K),
    left_max_position_embeddings=clip,
    right_max_position_embeddings=clip,
    scaling=K**-0.5,
  )
  q, k = torch.randn(B, H, L, K), torch.randn(B, H, M, K)
  apply = modeling_wav2vec2_bert._apply_relative_key_position_encoding
  _, scores = apply(layer, q, k)
  return {'q': q, 'table': layer.distance_embedding.weight, 'scores': scores}


def skew():
  """XLNet's shift: row i, column j of the result is column L - i + j."""
  x = torch.randn(B, H, L, 2 * L)
  shifted = XLNetRelativeAttention.rel_shift_bnij(x, klen=L)
  return {'x': x, 'shifted': shifted}


def attention():
  """Grouped queries by PyTorch, softcap by Gemma 2, norm by Qwen 3, windows."""
  q, k = torch.randn(B, H, L, K), torch.randn(B, H // 2, M, K)
  v = torch.randn(B, H // 2, M, K)
  grouped = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
  one, _ = k[:, :1], v[:, :1]
  multi_query = functional.scaled_dot_product_attention(
    q, one, v[:, :1], enable_gqa=True
  )
  layer = SimpleNamespace(num_key_value_groups=2, head_dim=K, training=False)
  capped, _ = modeling_gemma2.eager_attention_forward(
    layer, q, k, v, None, scaling=K**-0.5, softcap=0.7
  )
  norm = Qwen3RMSNorm(K)
  norm.weight.data = torch.randn(K)
  both = masking_utils.sliding_window_bidirectional_overlay(2)
  left = masking_utils.sliding_window_overlay(3)
  index = range(L)
  return {
    'q': q,
    'k': k,
    'v': v,
    'grouped': grouped.swapaxes(1, 2),
    'multi_query': multi_query.swapaxes(1, 2),
    'softcap': capped,
    'norm_scale': norm.weight,
    'norm': norm(q),
    'window_2_2': torch.tensor(
      [[both(0, 0, i, j) for j in index] for i in index]
    ),
    'window_2_left': torch.tensor(
      [[bool(left(0, 0, i, j)) for j in index] for i in index]
    ),
  }


CASES = (
  sinusoidal, t5, alibi, rotary, rotary_scaling, shaw, skew, attention,
)  # fmt: skip


def make(cases=CASES) -> dict[str, np.ndarray]:
  """All arrays by `case/name`."""
  torch.manual_seed(0)
  goldens = {}
  for case in cases:
    for name, value in case().items():
      goldens[f'{case.__name__}/{name}'] = value.detach().numpy()
  return goldens


def write(path, goldens, packages) -> None:
  """The arrays, and the versions of the packages that made them."""
  versions = [f'{p} {importlib.metadata.version(p)}' for p in packages]
  np.savez_compressed(
    path, versions=np.array([*versions, sys.version]), **goldens
  )
  print(f'{path}: {len(goldens)} arrays')


if __name__ == '__main__':
  write(PATH, make(), PACKAGES)
