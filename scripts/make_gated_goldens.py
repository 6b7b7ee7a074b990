"""Writes outputs of other code for biases that read the text, as goldens.

    pip install torch transformers x-transformers rotary-embedding-torch
    git clone https://github.com/model-architectures/GRAPE
    git clone https://github.com/fla-org/flash-linear-attention
    python scripts/make_gated_goldens.py GRAPE flash-linear-attention

Use an environment other than the project's. Of the checkouts, the classes and
functions that are named here are run, and no other code: the files import
packages that need a GPU. Writes tests/selfattn/goldens/gated.npz. The commits
were f5b539f of GRAPE and bc3b101d of flash-linear-attention.
"""
# The other libraries are no dependencies.
# pyright: reportMissingImports=false

import ast
import math
import pathlib
import sys
from types import SimpleNamespace

import torch
from make_position_goldens import ROOT, make, write
from torch import nn
from torch.nn import functional
from x_transformers.x_transformers import RelativeProjPositionalBias

B, L, H, K, P = 2, 9, 4, 6, 8
D = H * K
PATH = ROOT / 'tests/selfattn/goldens/gated.npz'
# 1 / ln 2 as flash-linear-attention has it.
RCP_LN2 = 1.4426950216


def part_of(path, *names, **known):
  """Classes and functions of a file, which see these names and each other."""
  scope = {'torch': torch, 'nn': nn, 'F': functional, 'math': math} | known
  # Annotations name types that are not imported.
  code = ['from __future__ import annotations']
  text = pathlib.Path(path).read_text()
  for node in ast.parse(text).body:
    if getattr(node, 'name', '') in names:
      code.append(ast.get_source_segment(text, node))
  exec('\n'.join(code), scope)
  return SimpleNamespace(**{name: scope[name] for name in names})


def grape_a():
  """Biases (B, H, L, L) with each gate, and both."""
  q, k = torch.randn(2, B, L, H, K)
  cases = {'q': q, 'k': k}
  for gate, name, vectors in (
    ('key', 'KeyGated', (k,)),
    ('query', 'QueryGated', (q,)),
    ('both', 'QueryKeyGated', (q, k)),
  ):
    theirs = part_of(
      f'{sys.argv[1]}/model/llama-mha-grape-a-{name.lower()}.py',
      '_get_alibi_slopes',
      '_softplus_inverse',
      f'{name}AdditiveBias',
    )
    bias = getattr(theirs, f'{name}AdditiveBias')(H, K)
    bias.omega.data = torch.randn(H)
    cases[f'{gate}/bias'] = bias(*vectors)
    cases |= {f'{gate}/{n}': p for n, p in bias.named_parameters()}
  return cases


def grape_ap():
  """A layer of attention."""
  theirs = part_of(
    f'{sys.argv[1]}/model/llama-mha-grape-ap-v1.py',
    'Rotary',
    'apply_rotary_emb',
    '_get_alibi_slopes',
    'CausalSelfAttention',
  )
  config = SimpleNamespace(
    n_head=H, n_embd=D, head_dim=K, n_layer=1, p_head_dim=P,
    using_groupnorm=False, use_qk_rmsnorm=False,
  )  # fmt: skip
  layer = theirs.CausalSelfAttention(config)
  for parameter in layer.parameters():
    parameter.data = torch.randn(parameter.shape) / 2
  x = torch.randn(B, L, D)
  return {'x': x, 'output': layer(x)} | dict(layer.named_parameters())


def inkling():
  """The bias (B, H, L, L), 0 beyond five tokens."""
  layer = RelativeProjPositionalBias(D, H, num_distance_basis=3, max_dist=6)
  for parameter in layer.parameters():
    parameter.data = torch.randn(parameter.shape)
  x = torch.randn(B, L, D)
  return {'x': x, 'bias': layer(x)} | dict(layer.named_parameters())


def wall():
  """The output of attention, with gates that forget little and much."""
  theirs = part_of(
    f'{sys.argv[2]}/fla/ops/wall_attn/naive.py',
    'naive_wall_attn',
    RCP_LN2=RCP_LN2,
    chunk_global_cumsum=lambda g, cu_seqlens, scale: g.cumsum(1) * scale,
  )
  q, k, v = torch.randn(3, B, L, H, K)
  cases = {'q': q, 'k': k, 'v': v}
  for name, mean in (('little', 4.0), ('much', -2.0)):
    g = functional.logsigmoid(mean + torch.randn(B, L, H, K))
    output = theirs.naive_wall_attn(q, k, v, g, scale=K**-0.5)
    cases |= {f'{name}/g': g, f'{name}/output': output}
  return cases


if __name__ == '__main__':
  cases = (grape_a, grape_ap, inkling, wall)
  write(PATH, make(cases), ('torch', 'x-transformers'))
