"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfattn.pretrained.architectures.bert import of_layers
from selfattn.pretrained.architectures.llama import (
  ernie4_5,
  granite,
  in_layers,
  llama,
  qwen2,
  window_size,
)
from selfattn.pretrained.fields import layer_types, rope, shortest, windows
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, From, Model

EXPERTS = {
  'experts/router': 'mlp.gate',
  'experts/correction': 'mlp.gate.e_score_correction_bias',
  'experts/in': 'mlp.experts.+.gate_proj.weight',
  'experts/gated': 'mlp.experts.+.up_proj.weight',
  'experts/out': 'mlp.experts.+.down_proj.weight',
  'experts/shared_gate': 'mlp.shared_expert_gate',
}
SINKS = {'attention/normaliser/sink': 'self_attn.sinks'}


def with_defaults(c: Config, **usual: Any) -> Config:
  """The same with values for fields that are missing or null."""
  return Config({**c, **{name: c.get(name, usual[name]) for name in usual}})


def sparse(
  model: Model, c: Config, shared: str = 'shared_experts', **options
) -> Model:
  """The model with experts in place of its feed-forward networks.

  Args:
    c: with the fields that `fields` sets.
    shared: name of the network that all tokens have.
    options: of Experts.
  """
  maps = {'in': 'gate_proj', 'gated': 'up_proj', 'out': 'down_proj'}
  rows = {f'experts/shared_{n}': f'mlp.{shared}.{maps[n]}' for n in maps}
  return model.replace(
    experts={
      'count': c['num_experts'],
      'chosen': c['num_experts_per_tok'],
      'dim': c['moe_intermediate_size'],
      'renormalises': c['norm_topk_prob'],
      **options,
    },
    rows=of_layers({**EXPERTS, **rows}, 'layers'),
  )


def fields(
  c: Config, count: int, chosen: int, dim: int, renormalises: bool, **usual
) -> Config:
  """The fields of a config.json that say what its experts are.

  Args:
    count, chosen, dim, renormalises: defaults of `num_experts`, which some
      files name `num_local_experts`, `num_experts_per_tok`,
      `moe_intermediate_size` and `norm_topk_prob`.
    usual: defaults of other fields.
  """
  usual['num_experts'] = c.get('num_local_experts', count)
  usual |= {'num_experts_per_tok': chosen, 'moe_intermediate_size': dim}
  return with_defaults(c, norm_topk_prob=renormalises, **usual)


def dense_layers(c: Config, usual: Sequence[int] = ()) -> tuple[int, ...]:
  """Numbers of the layers of Qwen that have no experts."""
  step = c.get('decoder_sparse_step', 1)
  dense = c.get('mlp_only_layers', usual)
  layers = range(c['num_hidden_layers'])
  return tuple(n for n in layers if n in dense or (n + 1) % step)


def mixtral(c: Config) -> Model:
  """Mixtral (Jiang et al. 2024): two of eight experts."""
  c = fields(c, 8, 2, 0, True, rms_norm_eps=1e-5)
  names = {'router': 'gate', 'in': 'experts.+.w1.weight'}
  names |= {'gated': 'experts.+.w3.weight', 'out': 'experts.+.w2.weight'}
  rows = {f'experts/{n}': f'block_sparse_moe.{names[n]}' for n in names}
  model = sparse(llama(c, num_key_value_heads=8, rope_theta=1e6), c, dim=0)
  return model.replace(
    encoder=windows(['sliding_attention'], c.get('sliding_window')),
    rows=of_layers(rows, 'layers'),
  )


def qwen2_moe(c: Config) -> Model:
  """Qwen1.5-MoE and Qwen2-57B (Qwen team 2024): a gated network for all."""
  c = fields(c, 60, 4, 1408, False, shared_expert_intermediate_size=5632)
  first = c.get('max_window_layers', 28)
  slides = c.get('use_sliding_window', False)
  kinds = 'full_attention', 'sliding_attention'
  types = [
    kinds[slides and n < first and n % 2 == 0]
    for n in range(c['num_hidden_layers'])
  ]
  size = window_size(c, 4096) if slides else None
  # Whatever qwen2 makes of the fields of windows.
  model = qwen2(Config({**c, 'use_sliding_window': False}))
  return sparse(
    model,
    c,
    'shared_expert',
    shared_dim=c['shared_expert_intermediate_size'],
    shared_gate=True,
    dense_layers=dense_layers(c),
  ).replace(
    encoder={
      'use_bias': c.get('qkv_bias', True),
      **windows(layer_types(c, types), size),
    }
  )


def qwen3_moe(c: Config) -> Model:
  """Qwen3-30B and 235B (Yang et al. 2025): normalised queries and keys."""
  c = fields(c, 128, 8, 768, False)
  model = llama(c, num_key_value_heads=4)
  size = c.get('use_sliding_window', False) and window_size(c, 4096)
  options = {'qk_norm': True, **windows(['sliding_attention'], size)}
  model = model.replace(encoder=options)
  return sparse(model, c, dense_layers=dense_layers(c))


def olmoe(c: Config) -> Model:
  """OLMoE (Muennighoff et al. 2024): queries and keys have norms."""
  c.refuse(clip_qkv=None)
  c = fields(c, 64, 8, 0, False)
  model = llama(c, rms_norm_eps=1e-5)
  model = model.replace(encoder={'qk_norm': True, 'qk_norm_over': 'all_heads'})
  return sparse(model, c, dim=0)


def gpt_oss(c: Config) -> Model:
  """gpt-oss (OpenAI 2025): sinks, windows, and biases of experts."""
  c.refuse(swiglu_alpha=1.702, swiglu_limit=7.0)
  width, count = c['intermediate_size'], c['num_hidden_layers']
  c = fields(c, 128, 4, 0, True, head_dim=64, num_key_value_heads=8)
  c = with_defaults(c, rope_theta=150_000.0, rms_norm_eps=1e-5)
  if not c.get('rope_parameters'):
    yarn = {'rope_type': 'yarn', 'factor': 32.0, 'truncate': False}
    yarn['original_max_position_embeddings'] = 4096
    c = with_defaults(c, rope_scaling=yarn)
  model = llama(c, lambda _: 'swiglu_clamped', attention_bias=True)
  kinds = 'sliding_attention', 'full_attention'
  types = layer_types(c, [kinds[n % 2] for n in range(count)])
  path, name = 'encoder/block_*/experts', 'layers.*.mlp.experts'
  both = f'{name}.gate_up_proj'
  return sparse(model, c, dim=0, router_bias=True).replace(
    encoder=windows(types, window_size(c, 128)),
    block=model.block.with_options(use_bias=True),
    normaliser=(Choice('sinks'),),
    rows={
      **of_layers({**SINKS, 'experts/router': 'mlp.router'}, 'layers'),
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
  count = c['num_hidden_layers']
  c = fields(
    c,
    256,
    6,
    512,
    True,
    num_key_value_heads=4,
    head_dim=128,
    shared_expert_intermediate_size=1024,
  )
  whole = {0, count - 1, *range(1, count, 4)}
  kinds = 'sliding_attention', 'full_attention'
  types = layer_types(c, [kinds[n in whole] for n in range(count)])
  model = in_layers(llama(c), [kind == 'sliding_attention' for kind in types])
  sinks = {name: 'self_attn.softmax_offset' for name in SINKS}
  return sparse(
    model,
    c,
    'shared_expert',
    scoring='sigmoid',
    shared_dim=c['shared_expert_intermediate_size'],
    dense_layers=dense_layers(c, (0, 1)),
  ).replace(
    encoder={'qk_norm': True, **windows(types, c.get('sliding_window', 513))},
    normaliser=(Choice('sinks'),),
    rows=of_layers(sinks, 'layers'),
  )


def laguna(c: Config) -> Model:
  """Laguna: Flint with gates of heads, a correction, and rotations by kind."""
  count, H = c['num_hidden_layers'], c['num_attention_heads']
  c.refuse(
    num_attention_heads_per_layer=[H] * count,
    moe_apply_router_weight_on_input=False,
    moe_router_logit_softcapping=0.0,
    attention_bias=False,
  )
  c = fields(
    c,
    256,
    8,
    512,
    True,
    num_key_value_heads=8,
    head_dim=128,
    shared_expert_intermediate_size=512,
    rope_parameters={
      'full_attention': {'rope_theta': 5e5, 'partial_rotary_factor': 0.5},
      'sliding_attention': {'rope_theta': 1e4},
    },
  )
  c = Config({**c, 'norm_topk_prob': True})
  types = layer_types(c, ['full_attention'] * count)
  kinds = c.get('mlp_layer_types', ['dense'] + ['sparse'] * (count - 1))
  by_head = c.get('gating', True) in (True, 'per-head')
  names = {
    'attention/gate': 'self_attn.g_proj',
    'experts/correction': 'mlp.experts.e_score_correction_bias',
  }
  return sparse(
    llama(c),
    c,
    'shared_expert',
    scoring='sigmoid',
    correction='scores',
    scale=c.get('moe_routed_scaling_factor', 1.0),
    shared_dim=c['shared_expert_intermediate_size'],
    dense_layers=tuple(n for n in range(count) if kinds[n] == 'dense'),
  ).replace(
    encoder={
      'qk_norm': True,
      'output_gate': 'headwise' if by_head else 'elementwise',
      'gate_activation': 'softplus',
      **windows(types, c.get('sliding_window', 512)),
    },
    position=shortest([{'rotary': rope(c, kind)} for kind in types]),
    rows=of_layers(names, 'layers'),
  )


def kolibri1(c: Config) -> Model:
  """Kolibri: a correction of logits, norms around branches, and windows.

  Layers that attend to all tokens have no rotations.
  """
  c = fields(
    c,
    384,
    6,
    512,
    False,
    num_key_value_heads=4,
    head_dim=128,
    shared_expert_intermediate_size=512,
    intermediate_size=0,
  )
  kinds = 'sliding_attention', 'full_attention'
  usual = [kinds[n % 5 == 4] for n in range(c['num_hidden_layers'])]
  types = layer_types(c, usual)
  model = in_layers(llama(c), [kind == 'sliding_attention' for kind in types])
  names = {
    'norm_attention_out': 'post_attn_norm',
    'norm_mlp_out': 'post_ffn_norm',
    'experts/correction': 'moe.router.expert_bias',
  }
  return sparse(
    model,
    c,
    scoring='sigmoid',
    correction='logits',
    shared_dim=c['shared_expert_intermediate_size'],
  ).replace(
    encoder={'qk_norm': True, **windows(types, c.get('sliding_window', 513))},
    block=Choice('sandwich', model.block.options),
    rows=of_layers(names, 'layers'),
  )


def _deepseek(c: Config, dense: int) -> Model:
  """Solar Open and GLM-4.5: the router of DeepSeek-V3, without its groups.

  Args:
    dense: number of the first layers, which have no experts.
  """
  c.refuse(n_group=1, topk_group=1)
  c = fields(
    c,
    c.get('n_routed_experts', 128),
    8,
    1408,
    True,
    num_key_value_heads=8,
    rms_norm_eps=1e-5,
  )
  shared = c['moe_intermediate_size'] * c.get('n_shared_experts', 1)
  return sparse(
    llama(c),
    c,
    scoring='sigmoid',
    correction='scores',
    scale=c.get('routed_scaling_factor', 1.0),
    shared_dim=shared,
    dense_layers=tuple(range(dense)),
  ).replace(encoder={'use_out_bias': False})


def solar_open(c: Config) -> Model:
  """Solar Open (Upstage 2025)."""
  c = with_defaults(
    c,
    moe_intermediate_size=1280,
    intermediate_size=0,
    head_dim=128,
    rope_theta=1e6,
  )
  return _deepseek(c, 0)


def glm4_moe(c: Config) -> Model:
  """GLM-4.5 (GLM team 2025): half of the channels rotate."""
  c = with_defaults(c, partial_rotary_factor=0.5)
  model = _deepseek(c, c.get('first_k_dense_replace', 1))
  # Later tokens are predicted by one layer more, which is not this model's.
  unused = (*model.unused, f'*layers.{model.num_layers}.*')
  qk_norm = c.get('use_qk_norm', False)
  return model.replace(encoder={'qk_norm': qk_norm}, unused=unused)


def ernie4_5_moe(c: Config) -> Model:
  """ERNIE 4.5 with experts (Baidu 2025)."""
  c.refuse(use_bias=False)
  count = c['num_hidden_layers']
  c = fields(
    c,
    c.get('moe_num_experts', 64),
    c.get('moe_k', 6),
    1536,
    True,
    num_key_value_heads=4,
    head_dim=c['hidden_size'] // c['num_attention_heads'],
  )
  last = c.get('moe_layer_end_index', -1) % count
  first, step = (
    c.get('moe_layer_start_index', 1),
    c.get('moe_layer_interval', 1),
  )
  sparse_layers = [n for n in range(first, last + 1) if (n + 1) % step == 0]
  shared = c['moe_intermediate_size'] * c.get('moe_num_shared_experts', 2)
  name = 'layers.*.mlp.moe_statics.e_score_correction_bias'
  return sparse(
    ernie4_5(c),
    c,
    correction='scores',
    shared_dim=shared,
    dense_layers=tuple(n for n in range(count) if n not in sparse_layers),
  ).replace(rows=of_layers(rows, 'layers'))


def granitemoe(c: Config) -> Model:
  """Granite 3.0 with experts (IBM 2024)."""
  c = fields(c, 8, 2, 0, True)
  path, name = 'encoder/block_*/experts', 'layers.*.block_sparse_moe'
  return sparse(granite(c), c, dim=0).replace(
    rows={
      f'{path}/router': f'{name}.router.layer',
      f'{path}/in': From(f'{name}.input_linear.weight', 0),
      f'{path}/gated': From(f'{name}.input_linear.weight', 1),
      f'{path}/out': f'{name}.output_linear.weight',
    }
  )
