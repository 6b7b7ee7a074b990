"""Writes outputs of other libraries' methods that read the text, as goldens.

    pip install torch transformers x-transformers rotary-embedding-torch \
      entmax PoPE-pytorch
    pip download --no-deps --no-binary :all: fla-core==0.6.0
    python scripts/make_text_goldens.py FOLDER_OF_FLA_CORE

Use an environment other than the project's. The last package needs a GPU to be
imported; its references are read by their files. Writes
tests/selfattn/goldens/text.npz. Sizes as in make_position_goldens.py.
"""
# The other libraries are no dependencies.
# pyright: reportMissingImports=false

import pathlib
import runpy
import sys
from types import SimpleNamespace

import entmax
import rotary_embedding_torch
import torch
from make_position_goldens import ROOT, B, H, K, L, M, make, write
from PoPE_pytorch import PoPE
from torch import randn
from transformers import (
  DebertaV2Config,
  DiffLlamaConfig,
  LlamaConfig,
  Qwen3NextConfig,
  Wav2Vec2Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention
from transformers.models.qwen3_next.modeling_qwen3_next import (
  Qwen3NextAttention,
)
from transformers.models.wav2vec2.modeling_wav2vec2 import (
  Wav2Vec2PositionalConvEmbedding,
)
from transformers.models.xlnet.modeling_xlnet import (
  XLNetModel,
  XLNetRelativeAttention,
)
from x_transformers.attend import Attend
from x_transformers.x_transformers import (
  Attention,
  CoPE,
  DataDependentAlibi,
  Encoder,
)

PATH = ROOT / 'tests/selfattn/goldens/text.npz'
PACKAGES = (
  'torch', 'transformers', 'x-transformers', 'rotary-embedding-torch',
  'entmax', 'PoPE-pytorch',
)  # fmt: skip
D = H * K


def naive(name):
  """A reference of fla-core 0.6.0."""
  path = pathlib.Path(sys.argv[1]) / f'fla/ops/{name}/naive.py'
  return SimpleNamespace(**runpy.run_path(str(path)))


def transformer_xl():
  """The weights of XLNet's core, and its sinusoids of distances."""
  config = SimpleNamespace(
    n_head=H, d_head=K, d_model=D, layer_norm_eps=1e-12, dropout=0.0
  )
  layer = XLNetRelativeAttention(config).eval()
  for parameter in layer.parameters():
    parameter.data = randn(*parameter.shape) / 3
  encode = SimpleNamespace(
    d_model=D, attn_type='bi', bi_data=False, clamp_len=-1,
    positional_embedding=XLNetModel.positional_embedding,
  )  # fmt: skip
  r = XLNetModel.relative_positional_encoding(encode, L, L, bsz=B)
  q, k, v = randn(3, L, B, H, K)
  rows = torch.einsum('ibh,hnd->ibnd', r, layer.r)
  _, weights = layer.rel_attn_core(q, k, v, rows, output_attentions=True)
  return {
    'q': q, 'k': k, 'kernel': layer.r, 'content_bias': layer.r_w_bias,
    'position_bias': layer.r_r_bias, 'weights': weights,
  }  # fmt: skip


def deberta():
  """The two terms, with clipped distances, with buckets, shared or not."""
  cases = {}
  for name, buckets, shared in (
    ('clipped', -1, False), ('buckets', 4, False), ('shared', -1, True),
  ):  # fmt: skip
    farthest = 6 if buckets > 0 else 3
    config = DebertaV2Config(
      hidden_size=D, num_attention_heads=H, relative_attention=True,
      max_relative_positions=farthest, position_buckets=buckets,
      pos_att_type=['c2p', 'p2c'], share_att_key=shared,
      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    layer = modeling_deberta_v2.DisentangledSelfAttention(config).eval()
    for parameter in layer.parameters():
      parameter.data = randn(*parameter.shape) / 3
    for name_of, parameter in layer.named_parameters():
      # The paper has none; that of keys would cancel in the softmax.
      if name_of.startswith('pos_') and name_of.endswith('bias'):
        parameter.data = torch.zeros_like(parameter)
    table = randn(2 * (buckets if buckets > 0 else farthest), D)
    table.requires_grad_()
    x = randn(B, L, D).requires_grad_()
    q, k = (
      layer.transpose_for_scores(project(x), H)
      for project in (layer.query_proj, layer.key_proj)
    )
    cases[f'{name}/x'], cases[f'{name}/table'] = x, table
    scores = layer.disentangled_attention_bias(q, k, None, table, 3)
    cases[f'{name}/scores'] = scores
    cases |= {f'{name}/{n}': p for n, p in layer.named_parameters()}
    content = q @ k.transpose(-1, -2) / (3 * K) ** 0.5
    weights = (content + scores.view_as(content)).softmax(-1)
    cotangent = randn(*weights.shape)
    of_x, of_table = torch.autograd.grad(
      (weights * cotangent).sum(), (x, table)
    )
    cases |= {
      f'{name}/cotangent': cotangent,
      f'{name}/x_grad': of_x,
      f'{name}/table_grad': of_table,
    }
  distance = torch.arange(-30, 31)
  cases['log_buckets'] = modeling_deberta_v2.make_log_bucket_position(
    distance, 8, 20
  )
  return cases


def xpos():
  """Scores, which do not depend on the middle that it measures from."""
  turn = rotary_embedding_torch.RotaryEmbedding(K, use_xpos=True)
  q, k = randn(2, B, H, L, K)
  turned = turn.rotate_queries_and_keys(q, k)
  return {'q': q, 'k': k, 'scores': turned[0] @ turned[1].swapaxes(-1, -2)}


def frequencies():
  """Of 64 channels, from 512 tokens to 2,048."""
  cases = {}
  factors = (1 + torch.arange(32) / 5).tolist()
  for name, more in (
    ('proportional', {'partial_rotary_factor': 0.3, 'factor': 1.5}),
    (
      'llama3',
      {
        'factor': 4.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
        'original_max_position_embeddings': 512,
      },
    ),
    (
      'longrope',
      {
        'factor': 4.0, 'long_factor': factors, 'short_factor': [1.0] * 32,
        'original_max_position_embeddings': 512,
      },
    ),
  ):  # fmt: skip
    config = LlamaConfig(
      hidden_size=128, num_attention_heads=2, max_position_embeddings=2048,
      rope_parameters={'rope_type': name, 'rope_theta': 10_000.0, **more},
    )  # fmt: skip
    rates, factor = ROPE_INIT_FUNCTIONS[name](config, 'cpu', seq_len=2048)
    cases[f'{name}_rates'] = rates
    cases[f'{name}_factor'] = torch.tensor(float(factor))
  return cases


def pope():
  layer = PoPE(K, heads=H)
  layer.bias.data = -2 * torch.pi * torch.rand(H, K)
  q, k = randn(2, B, H, L, K)
  turned = PoPE.apply_pope_to_qk(layer(L), q, k)
  scores = turned[0] @ turned[1].swapaxes(-1, -2)
  return {'q': q, 'k': k, 'delta': layer.bias, 'scores': scores}


def cope():
  layer = CoPE(K, H, max_pos=4)
  layer.pos_emb.data = randn(4, K)
  q, logits = randn(B, H, L, K), randn(B, H, L, L)
  hidden = torch.ones(L, L).triu(1).bool()
  masked = logits.masked_fill(hidden, -torch.finfo(torch.float32).max)
  return {
    'q': q, 'logits': logits, 'table': layer.pos_emb, 'term': layer(q, masked),
  }  # fmt: skip


def forgetting():
  """The causal output, and biases on both sides."""
  q, k, v = randn(3, B, L, H, K)
  gates = torch.nn.functional.logsigmoid(randn(B, L, H))
  out = naive('forgetting_attn').naive_forgetting_attn(q, k, v, gates)
  x = randn(B, L, D)
  both = DataDependentAlibi(D, H, causal=False)
  linear = both.to_forget_gates[0]
  return {
    'q': q, 'k': k, 'v': v, 'gates': gates, 'output': out, 'x': x,
    'kernel': linear.weight.T, 'bias': linear.bias, 'both_sides': both(x),
  }  # fmt: skip


def path():
  q, k, v, w = randn(4, B, L, H, K)
  w = torch.nn.functional.normalize(w, dim=-1)
  beta = 2 * torch.rand(B, L, H)
  out = naive('path_attn').naive_path_attn(
    q, k, v, w, beta, torch.zeros(B, L, H), K**-0.5, chunk_size=4
  )
  return {'q': q, 'k': k, 'v': v, 'w': w, 'beta': beta, 'output': out}


def stick_breaking():
  q, k, v = randn(3, B, L, H, K)
  attend = naive('stickbreaking_attn').naive_stickbreaking_attn
  cases = {'q': q, 'k': k, 'v': v}
  for name, current in (('before', False), ('current', True)):
    cases[name], _ = attend(q, k, v, attend_current=current)
  return cases


def convolutional():
  """wav2vec 2.0's, of which the weights are normalised."""
  cases = {}
  for size in (3, 4):
    layer = Wav2Vec2PositionalConvEmbedding(
      Wav2Vec2Config(
        hidden_size=D, num_conv_pos_embeddings=size,
        num_conv_pos_embedding_groups=3,
      )
    )  # fmt: skip
    x = randn(B, L, D)
    cases |= {
      f'{size}/x': x, f'{size}/output': layer(x),
      f'{size}/weight': layer.conv.weight, f'{size}/bias': layer.conv.bias,
    }  # fmt: skip
  return cases


def normalisers():
  """Weights and gradients of entmax and sparsemax; x-transformers' variants."""
  scores = (2 * randn(B, H, L, M)).requires_grad_()
  cotangent = randn(B, H, L, M)
  cases = {'scores': scores, 'cotangent': cotangent}
  for name, alpha in (('sparsemax', 2.0), ('entmax15', 1.5), ('entmax', 1.2)):
    exponent = torch.tensor(alpha, requires_grad=True)
    weights = {
      'sparsemax': lambda _: entmax.sparsemax(scores, dim=-1),
      'entmax15': lambda _: entmax.entmax15(scores, dim=-1),
      'entmax': lambda a: entmax.entmax_bisect(scores, a, dim=-1),
    }[name](exponent)
    grads = torch.autograd.grad(
      (weights * cotangent).sum(), (scores, exponent), allow_unused=True
    )
    cases |= {name: weights, f'{name}_grad': grads[0]}
    if grads[1] is not None:
      cases[f'{name}_grad_alpha'] = grads[1]
  q, k, v = randn(3, B, H, L, K)
  cases |= {'q': q, 'k': k, 'v': v}
  for name, options in (
    ('off_by_one', {'add_zero_kv': True}),
    ('sinks', {'head_learned_sink': True}),
    ('sigmoid', {'sigmoid': True}),
    ('talking', {'pre_talking_heads': True, 'post_talking_heads': True}),
  ):
    layer = Attend(heads=H, **options)
    for parameter in layer.parameters():
      parameter.data = randn(*parameter.shape) / 3
    cases[f'{name}/output'] = layer(q, k, v)[0]
    cases |= {f'{name}/{n}': p for n, p in layer.named_parameters()}
  return cases


def matrix_exponentials():
  upper = torch.triu(randn(H, K, K), 1)
  skewed = upper - upper.swapaxes(-1, -2)
  positions = torch.tensor([0.0, 1.0, 5.0, 63.0])
  return {
    'generator': skewed, 'positions': positions,
    'rotations': torch.matrix_exp(positions[:, None, None, None] * skewed),
  }  # fmt: skip


# Cosines and sines that turn nothing, and a causal mask to add.
UNTURNED = torch.ones(1, L, K), torch.zeros(1, L, K)
CAUSAL = torch.full((L, L), torch.finfo(torch.float32).min).triu(1)


def drawn(layer):
  for parameter in layer.parameters():
    parameter.data = randn(*parameter.shape) / 3
  return layer.eval()


def gradients(layer, x, output):
  """Of the sum of an output times a cotangent, to x and all parameters."""
  cotangent = randn(*output.shape)
  leaves = {'x': x, **dict(layer.named_parameters())}
  grads = torch.autograd.grad(
    (output * cotangent).sum(), list(leaves.values()), allow_unused=True
  )
  return {'output': output, 'cotangent': cotangent, **leaves} | {
    f'{name}_grad': grad
    for name, grad in zip(leaves, grads, strict=True)
    if grad is not None
  }


def differential():
  """A causal layer of DiffLlama, with half as many KV heads; gradients."""
  config = DiffLlamaConfig(
    hidden_size=D, num_attention_heads=H, num_key_value_heads=H // 2,
    attn_implementation='eager',
  )  # fmt: skip
  layer = drawn(DiffLlamaAttention(config, layer_idx=1))
  x = randn(B, L, D).requires_grad_()
  return gradients(layer, x, layer(x, UNTURNED, CAUSAL)[0])


def output_gate():
  """Of each channel in Qwen3-Next, with its norms; of each head."""
  config = Qwen3NextConfig(
    hidden_size=D, num_attention_heads=H, num_key_value_heads=H // 2,
    head_dim=K, attn_implementation='eager',
  )  # fmt: skip
  x = randn(B, L, D).requires_grad_()
  of_channels = drawn(Qwen3NextAttention(config, layer_idx=0))
  of_heads = drawn(Attention(D, dim_head=K, heads=H, gate_value_heads=True))
  cases = {
    'elementwise': gradients(
      of_channels, x, of_channels(x, UNTURNED, CAUSAL)[0]
    ),
    'headwise': gradients(of_heads, x, of_heads(x)),
  }
  return {f'{n}/{k}': v for n, case in cases.items() for k, v in case.items()}


def value_residual():
  """A stack of three layers, whose values are means with the first ones."""
  stack = drawn(
    Encoder(
      dim=D, depth=3, heads=H, attn_dim_head=K, ff_mult=1,
      ff_custom_activation=torch.nn.ReLU(), add_value_residual=True,
      learned_value_residual_mix=False,
    )
  )  # fmt: skip
  for module in stack.modules():
    if isinstance(module, torch.nn.LayerNorm):
      module.eps = 1e-6  # that of Flax
  x = randn(B, L, D).requires_grad_()
  return gradients(stack, x, stack(x))


CASES = (
  transformer_xl, deberta, xpos, frequencies, pope, cope, forgetting, path,
  stick_breaking, convolutional, normalisers, matrix_exponentials,
  differential, output_gate, value_residual,
)  # fmt: skip


if __name__ == '__main__':
  write(PATH, make(CASES), PACKAGES)
