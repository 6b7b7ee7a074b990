"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfattn.pretrained.architectures.bert import of_layers
from selfattn.pretrained.architectures.llama import (
  granite,
  in_layers,
  llama,
  qwen2,
  window_size,
)
from selfattn.pretrained.fields import layer_types, rotations, windows
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, From, Model

MAPS = {'in': 'gate_proj', 'gated': 'up_proj', 'out': 'down_proj'}
EXPERTS = {
  'experts/router': 'mlp.gate',
  'experts/correction': 'mlp.gate.e_score_correction_bias',
  'experts/shared_gate': 'mlp.shared_expert_gate',
  **{f'experts/{n}': f'mlp.experts.+.{MAPS[n]}.weight' for n in MAPS},
}
SINK = 'encoder/block_*/attention/normaliser/sink'


def with_experts(c: Config, **values: Any) -> Config:
  """Fields of config.json, with these values of those that are missing.

  transformers writes num_local_experts where some files have num_experts.
  """
  if 'num_local_experts' in c:
    c = Config({**c, 'num_experts': c['num_local_experts']})
  return c.with_defaults(**values)


def sparse(
  model: Model, c: Config, shared: str = 'shared_experts', **options
) -> Model:
  """The model with experts in place of its feed-forward networks.

  Args:
    c: with num_experts and num_experts_per_tok.
    shared: name of the network that all tokens have.
    options: of Experts.
  """
  rows = {f'experts/shared_{n}': f'mlp.{shared}.{MAPS[n]}' for n in MAPS}
  sizes = {'count': c['num_experts'], 'chosen': c['num_experts_per_tok']}
  return model.replace(
    experts={**sizes, **options},
    rows=of_layers({**EXPERTS, **rows}, 'layers'),
  )


def qwen(
  model: Model, c: Config, dense: Sequence[int] = (), **options
) -> Model:
  """The model with the experts of Qwen, by its fields.

  Args:
    c: with the fields of experts.
    dense: default of `mlp_only_layers`, those without experts.
    options: of `sparse`.
  """
  step, dense = c.get('decoder_sparse_step', 1), c.get('mlp_only_layers', dense)
  layers = range(model.num_layers)
  return sparse(
    model,
    c,
    dim=c['moe_intermediate_size'],
    shared_dim=c.get('shared_expert_intermediate_size', 0),
    renormalises=c['norm_topk_prob'],
    dense_layers=tuple(n for n in layers if n in dense or (n + 1) % step),
    **options,
  )


def mixtral(c: Config) -> Model:
  """Mixtral (Jiang et al. 2024): two of eight experts."""
  c = with_experts(c, num_experts=8, num_experts_per_tok=2, rope_theta=1e6)
  model = llama(c, num_key_value_heads=8, rms_norm_eps=1e-5)
  names = {'router': 'gate', 'in': 'experts.+.w1.weight'}
  names |= {'gated': 'experts.+.w3.weight', 'out': 'experts.+.w2.weight'}
  rows = {f'experts/{n}': f'block_sparse_moe.{names[n]}' for n in names}
  return sparse(model, c).replace(
    encoder=windows(['sliding_attention'], c.get('sliding_window')),
    rows=of_layers(rows, 'layers'),
  )


def qwen2_moe(c: Config) -> Model:
  """Qwen1.5-MoE and Qwen2-57B (Qwen team 2024): a gated network for all."""
  c = with_experts(
    c,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    norm_topk_prob=False,
  )
  # Its windows are in other layers than those of Qwen2.
  c.refuse(use_sliding_window=False)
  model = qwen2(c).replace(encoder={'use_bias': c.get('qkv_bias', True)})
  return qwen(model, c, shared='shared_expert', shared_gate=True)


def qwen3_moe(c: Config) -> Model:
  """Qwen3-30B and 235B (Yang et al. 2025): normalised queries and keys."""
  c = with_experts(
    c,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    norm_topk_prob=False,
  )
  c = Config({**c, 'shared_expert_intermediate_size': 0})
  model = llama(c, num_key_value_heads=4)
  size = c.get('use_sliding_window', False) and window_size(c, 4096)
  sliding = windows(['sliding_attention'], size)
  return qwen(model.replace(encoder={'qk_norm': True, **sliding}), c)


def olmoe(c: Config) -> Model:
  """OLMoE (Muennighoff et al. 2024): queries and keys have norms."""
  # It would clip queries and keys after their norms.
  c.refuse(clip_qkv=None)
  c = with_experts(c, num_experts=64, num_experts_per_tok=8)
  model = llama(c, rms_norm_eps=1e-5)
  model = model.replace(encoder={'qk_norm': True, 'qk_norm_over': 'all_heads'})
  return sparse(model, c, renormalises=c.get('norm_topk_prob', False))


def gpt_oss(c: Config) -> Model:
  """gpt-oss (OpenAI 2025): sinks, windows, and biases of experts."""
  c.refuse(swiglu_alpha=1.702, swiglu_limit=7.0)
  width = c['intermediate_size']
  c = with_experts(
    c,
    num_experts=128,
    num_experts_per_tok=4,
    num_key_value_heads=8,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=150_000.0,
  )
  yarn = {'rope_type': 'yarn', 'factor': 32.0, 'truncate': False}
  yarn |= {'original_max_position_embeddings': 4096}
  yarn |= {'beta_fast': 32.0, 'beta_slow': 1.0}
  c = c.with_defaults(rope_parameters=yarn)
  model = llama(c, lambda _: 'swiglu_clamped', attention_bias=True)
  types = layer_types(c, lambda n: n % 2 == 1)
  path, name = 'encoder/block_*/experts', 'layers.*.mlp.experts'
  both = f'{name}.gate_up_proj'
  return sparse(model, c, router_bias=True).replace(
    encoder=windows(types, window_size(c, 128)),
    block=model.block.with_options(use_bias=True),
    normaliser=(Choice('sinks'),),
    rows={
      SINK: 'layers.*.self_attn.sinks',
      f'{path}/router': 'layers.*.mlp.router',
      # Their channels alternate.
      f'{path}/in': From(both, 0, width, transposes=False),
      f'{path}/gated': From(both, 1, width, transposes=False),
      f'{path}/in_bias': From(f'{both}_bias', 0, width),
      f'{path}/gated_bias': From(f'{both}_bias', 1, width),
      f'{path}/out': From(f'{name}.down_proj', transposes=False),
      f'{path}/out_bias': f'{name}.down_proj_bias',
    },
  )


def flint(c: Config) -> Model:
  """Flint: Qwen3 with sinks, and with rotations in windows alone."""
  c = with_experts(
    c,
    num_experts=256,
    num_experts_per_tok=6,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=1024,
    norm_topk_prob=True,
    num_key_value_heads=4,
    head_dim=128,
  )
  count = c['num_hidden_layers']
  whole = {0, count - 1, *range(1, count, 4)}
  types = layer_types(c, lambda n: n in whole)
  model = in_layers(llama(c), [kind == 'sliding_attention' for kind in types])
  model = model.replace(
    encoder={'qk_norm': True, **windows(types, c.get('sliding_window', 513))},
    normaliser=(Choice('sinks'),),
    rows={SINK: 'layers.*.self_attn.softmax_offset'},
  )
  return qwen(model, c, (0, 1), shared='shared_expert', scoring='sigmoid')


def laguna(c: Config) -> Model:
  """Laguna: gates of the outputs of heads, and rotations by kind of layer."""
  count, H = c['num_hidden_layers'], c['num_attention_heads']
  c.refuse(
    num_attention_heads_per_layer=[H] * count,
    attention_bias=False,
    moe_apply_router_weight_on_input=False,
    moe_router_logit_softcapping=0.0,
  )
  bases = {
    'full_attention': {'rope_theta': 5e5, 'partial_rotary_factor': 0.5},
    'sliding_attention': {'rope_theta': 1e4},
  }
  c = with_experts(
    c,
    num_experts=256,
    num_experts_per_tok=8,
    num_key_value_heads=8,
    head_dim=128,
  )
  types = layer_types(c, lambda n: True)
  networks = c.get('mlp_layer_types', ['dense'] + ['sparse'] * (count - 1))
  by_head = c.get('gating', True) in (True, 'per-head')
  correction = 'mlp.experts.e_score_correction_bias'
  rows = {
    'attention/gate': 'self_attn.g_proj',
    'experts/correction': correction,
  }
  return sparse(
    llama(c),
    c,
    'shared_expert',
    dim=c.get('moe_intermediate_size', 512),
    shared_dim=c.get('shared_expert_intermediate_size', 512),
    scoring='sigmoid',
    correction='scores',
    scale=c.get('moe_routed_scaling_factor', 1.0),
    dense_layers=tuple(n for n in range(count) if networks[n] == 'dense'),
  ).replace(
    encoder={
      'qk_norm': True,
      'output_gate': 'headwise' if by_head else 'elementwise',
      'gate_activation': 'softplus',
      **windows(types, c.get('sliding_window', 512)),
    },
    position=rotations(c, types, bases, fraction=1.0),
    rows=of_layers(rows, 'layers'),
  )


def kolibri1(c: Config) -> Model:
  """Kolibri: a correction of logits, norms around branches, and windows.

  Layers that attend to all tokens have no rotations.
  """
  c = with_experts(
    c,
    num_experts=384,
    num_experts_per_tok=6,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=0,
  )
  types = layer_types(c, lambda n: n % 5 == 4)
  model = in_layers(llama(c), [kind == 'sliding_attention' for kind in types])
  rows = {
    'norm_attention_out': 'post_attn_norm',
    'norm_mlp_out': 'post_ffn_norm',
    'experts/correction': 'moe.router.expert_bias',
  }
  return sparse(
    model,
    c,
    dim=c.get('moe_intermediate_size', 512),
    shared_dim=c.get('shared_expert_intermediate_size', 512),
    scoring='sigmoid',
    correction='logits',
    renormalises=c.get('norm_topk_prob', False),
  ).replace(
    encoder={'qk_norm': True, **windows(types, c.get('sliding_window', 513))},
    block=Choice('sandwich', model.block.options),
    rows=of_layers(rows, 'layers'),
  )


def _with_correction(c: Config, dim: int, dense: int = 0) -> Model:
  """Solar Open and GLM-4.5: a correction of scores, which are sigmoids.

  Args:
    dim: default of the width of experts.
    dense: number of the first layers, which have no experts.
  """
  c.refuse(n_group=1, topk_group=1)
  dim = c.get('moe_intermediate_size', dim)
  c = with_experts(
    c,
    num_experts=c.get('n_routed_experts', 128),
    num_experts_per_tok=8,
    num_key_value_heads=8,
  )
  fraction = c.get('partial_rotary_factor', 1.0)
  return sparse(
    llama(c, rms_norm_eps=1e-5, partial_rotary_factor=fraction),
    c,
    dim=dim,
    shared_dim=dim * c.get('n_shared_experts', 1),
    scoring='sigmoid',
    correction='scores',
    renormalises=c.get('norm_topk_prob', True),
    scale=c.get('routed_scaling_factor', 1.0),
    dense_layers=tuple(range(dense)),
  ).replace(encoder={'use_out_bias': False})


def solar_open(c: Config) -> Model:
  """Solar Open (Upstage 2025): experts in all layers."""
  usual = {'intermediate_size': 0, 'head_dim': 128, 'rope_theta': 1e6}
  return _with_correction(c.with_defaults(**usual), 1280)


def glm4_moe(c: Config) -> Model:
  """GLM-4.5 (GLM team 2025): half of the channels rotate."""
  c = c.with_defaults(partial_rotary_factor=0.5)
  model = _with_correction(c, 1408, c.get('first_k_dense_replace', 1))
  qk_norm = c.get('use_qk_norm', False)
  # One layer more predicts later tokens, which is no part of this model.
  ignored = (*model.ignored, f'*layers.{model.num_layers}.*')
  return model.replace(encoder={'qk_norm': qk_norm}, ignored=ignored)


def granitemoe(c: Config) -> Model:
  """Granite 3.0 with experts (IBM 2024)."""
  c = with_experts(c, num_experts=8, num_experts_per_tok=2)
  path, name = 'encoder/block_*/experts', 'layers.*.block_sparse_moe'
  return sparse(granite(c), c).replace(
    rows={
      f'{path}/router': f'{name}.router.layer',
      f'{path}/in': From(f'{name}.input_linear.weight', 0),
      f'{path}/gated': From(f'{name}.input_linear.weight', 1),
      f'{path}/out': f'{name}.output_linear.weight',
    }
  )
