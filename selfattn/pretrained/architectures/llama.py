"""Llama, and decoders that differ from it in a few choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from selfattn.pretrained.fields import (
  activation,
  dropout_rates,
  gated,
  heads,
  layer_types,
  rope,
  shortest,
  sizes,
  windows,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, From, Model

ATTENTION = {
  'encoder/block_*/attention/query': 'layers.*.self_attn.q_proj',
  'encoder/block_*/attention/key': 'layers.*.self_attn.k_proj',
  'encoder/block_*/attention/value': 'layers.*.self_attn.v_proj',
  'encoder/block_*/attention/out': 'layers.*.self_attn.o_proj',
  'encoder/block_*/attention/query_norm': 'layers.*.self_attn.q_norm',
  'encoder/block_*/attention/key_norm': 'layers.*.self_attn.k_norm',
}
ROWS = {
  'embed': 'embed_tokens',
  **ATTENTION,
  'encoder/block_*/norm': 'layers.*.input_layernorm',
  'encoder/block_*/norm_attention': 'layers.*.input_layernorm',
  'encoder/block_*/norm_mlp': 'layers.*.post_attention_layernorm',
  'encoder/block_*/mlp_in': 'layers.*.mlp.gate_proj',
  'encoder/block_*/mlp_gated': 'layers.*.mlp.up_proj',
  'encoder/block_*/mlp_out': 'layers.*.mlp.down_proj',
  'encoder/norm_out': 'norm',
}
# Without a gate, the first map has the name of the second one.
UNGATED = {'encoder/block_*/mlp_in': 'layers.*.mlp.up_proj'}
# Both maps in one tensor.
GATE_UP = {
  'encoder/block_*/mlp_in': From('layers.*.mlp.gate_up_proj', 0),
  'encoder/block_*/mlp_gated': From('layers.*.mlp.gate_up_proj', 1),
}


def llama(
  c: Config, of_activation: Callable[[str], str] = gated, **defaults
) -> Model:
  """Llama (Touvron et al. 2023).

  Args:
    of_activation: the feed-forward network, from the name of an activation.
    defaults: of fields that config.json may lack, where those of Llama are not
      meant. Without partial_rotary_factor among them, all channels rotate.
  """
  c = c.with_defaults(**defaults)
  c.refuse(is_causal=True)
  return Model(
    **sizes(c),
    **dropout_rates(c),
    encoder={
      'causal': True,
      **heads(c),
      'use_bias': c.get('attention_bias', False),
    },
    block=Choice(
      'pre',
      {
        'feed_forward': of_activation(c.get('hidden_act', 'silu')),
        'norm': 'rms',
        'eps': c.get('rms_norm_eps', 1e-6),
        'use_bias': c.get('mlp_bias', False),
      },
    ),
    position=[
      {'rotary': rope(c, fraction=defaults.get('partial_rotary_factor', 0.0))}
    ],
    pool=Choice('last'),
    head=Choice('linear', {'use_bias': False}),
    vocabulary_head={
      'transform': False,
      'use_bias': False,
      'tied': c.get('tie_word_embeddings', False),
    },
    rows=ROWS,
    heads={'vocabulary_head': 'lm_head', 'head': 'score'},
    word_head='score',
    ignored=('*rotary_emb.inv_freq',),
  )


def window_size(c: Config, usual: int | None) -> Any:
  """Keys that a query sees; null in config.json is all, not the usual size."""
  return dict.get(c, 'sliding_window', usual)


def rotated(model: Model, **options) -> Model:
  """The model with further options of its rotary positions."""
  return model.replace(
    position=[{'rotary': {**of['rotary'], **options}} for of in model.position]
  )


def in_layers(model: Model, rotates: Sequence[bool]) -> Model:
  """The model with its positions in some layers and none in the others."""
  (position,) = model.position
  entries = [position if turns else {'none': {}} for turns in rotates]
  return model.replace(position=shortest(entries))


def mistral(c: Config) -> Model:
  """Mistral 7B (Jiang et al. 2023), and Ministral, with windows."""
  model = llama(c, num_key_value_heads=8)
  types = layer_types(c, lambda n: False)
  return model.replace(encoder=windows(types, window_size(c, 4096)))


def _from_layer(c: Config) -> dict:
  """The option `window` of Qwen, for layers from `max_window_layers` on."""
  if not c.get('use_sliding_window', False):
    return {}
  first = c.get('max_window_layers', 28)
  types = layer_types(c, lambda n: n < first)
  return windows(types, window_size(c, 4096))


def qwen2(c: Config) -> Model:
  """Qwen2 (Yang et al. 2024): biases of queries, keys and values."""
  biases = {'use_bias': True, 'use_out_bias': False}
  return llama(c).replace(encoder=biases | _from_layer(c))


def qwen3(c: Config) -> Model:
  """Qwen3 (Yang et al. 2025): normalised queries and keys."""
  model = llama(c, head_dim=128)
  return model.replace(encoder={'qk_norm': True} | _from_layer(c))


def smollm3(c: Config) -> Model:
  """SmolLM3 (Bakouch et al. 2025): every fourth layer has no positions."""
  usual = {'num_key_value_heads': 4, 'tie_word_embeddings': True}
  model, count = llama(c, rope_theta=2e6, **usual), c['num_hidden_layers']
  # The field says 1 for layers that do rotate.
  nth = c.get('no_rope_layer_interval', 4)
  turns = c.get('no_rope_layers', [(n + 1) % nth != 0 for n in range(count)])
  size = c.get('use_sliding_window', False) and c.get('sliding_window')
  types = layer_types(c, lambda n: turns[n])
  model = in_layers(model, [bool(turn) for turn in turns])
  return model.replace(encoder=windows(types, size))


def stablelm(c: Config) -> Model:
  """StableLM (Bellagente et al. 2024): norms with means, partial rotations."""
  model = llama(c, partial_rotary_factor=0.25)
  kind = 'parallel' if c.get('use_parallel_residual', False) else 'pre'
  options = {'norm': 'layer', 'eps': c.get('layer_norm_eps', 1e-5)}
  row = 'layers.*.self_attn.{}_layernorm.norms.+.weight'
  return model.replace(
    encoder={
      'use_bias': c.get('use_qkv_bias', False),
      'use_out_bias': False,
      'qk_norm': c.get('qk_layernorm', False),
      'qk_norm_kind': 'layer_unbiased',
      'qk_norm_over': 'each_head',
    },
    block=Choice(kind, {**model.block.options, **options}),
    rows={
      'encoder/block_*/attention/query_norm/scale': row.format('q'),
      'encoder/block_*/attention/key_norm/scale': row.format('k'),
    },
  )


def starcoder2(c: Config) -> Model:
  """StarCoder2 (Lozhkov et al. 2024): a network without a gate; a window."""
  usual = {'num_key_value_heads': 2, 'tie_word_embeddings': True}
  model = llama(c, activation, hidden_act='gelu_pytorch_tanh', **usual)
  sliding = windows(['sliding_attention'], c.get('sliding_window'))
  eps, has_bias = c.get('norm_epsilon', 1e-5), c.get('use_bias', True)
  return model.replace(
    encoder={'use_bias': has_bias, **sliding},
    block=model.block.with_options(norm='layer', eps=eps, use_bias=has_bias),
    rows={
      'encoder/block_*/mlp_in': 'layers.*.mlp.c_fc',
      'encoder/block_*/mlp_out': 'layers.*.mlp.c_proj',
    },
  )


def granite(c: Config, **defaults) -> Model:
  """Granite (IBM 2024): factors of embeddings, scores, branches and logits."""
  model = llama(c, **defaults)
  return model.replace(
    encoder={
      'input_scale': c.get('embedding_multiplier', 1.0),
      'scale': c.get('attention_multiplier', 1.0),
    },
    block=model.block.with_options(
      residual_scale=c.get('residual_multiplier', 1.0)
    ),
    vocabulary_head={'scale': 1 / c.get('logits_scaling', 1.0)},
  )


def granite_swa(c: Config) -> Model:
  """Granite with windows and sinks; layers have rotations of their own."""
  usual = {'num_key_value_heads': 4, 'rms_norm_eps': 1e-5}
  model = granite(c, tie_word_embeddings=True, **usual)
  count = c['num_hidden_layers']
  types = layer_types(c, lambda n: n % 4 == 0)
  base = model.position[0]['rotary']['base']
  bases = c.get('layer_rope_theta', [base] * count)
  turned = [
    rotated(model, base=float(b)).position[0] if b else {'none': {}}
    for b in bases
  ]
  return model.replace(
    encoder=windows(types, window_size(c, 128)),
    position=shortest(turned),
    normaliser=(Choice('sinks'),),
    rows={
      'encoder/block_*/attention/normaliser/sink': 'layers.*.self_attn.sinks'
    },
  )


def glm(c: Config) -> Model:
  """GLM-4 (GLM team 2024): half of the channels rotate, as neighbours."""
  usual = {'num_key_value_heads': 2, 'head_dim': 128, 'attention_bias': True}
  usual |= {'rms_norm_eps': 1.5625e-7, 'partial_rotary_factor': 0.5}
  model = rotated(llama(c, **usual), layout='interleaved')
  return model.replace(encoder={'use_out_bias': False}, rows=GATE_UP)


def glm4(c: Config) -> Model:
  """GLM-4-0414 (GLM team 2025): norms before and after the branches."""
  model = glm(c)
  return model.replace(
    block=Choice('sandwich', model.block.options),
    rows={
      'encoder/block_*/norm_attention_out': 'layers.*.post_self_attn_layernorm',
      'encoder/block_*/norm_mlp_out': 'layers.*.post_mlp_layernorm',
    },
  )


def nemotron(c: Config) -> Model:
  """Nemotron-4 (Parmar et al. 2024): squared ReLU, norms with 1 + scale."""
  model = llama(c, activation, hidden_act='relu2', partial_rotary_factor=0.5)
  options = {'norm': 'layer_offset', 'eps': c.get('norm_eps', 1e-5)}
  return model.replace(block=model.block.with_options(**options), rows=UNGATED)


def arcee(c: Config) -> Model:
  """AFM (Arcee AI 2025): a network of squared ReLU without a gate."""
  usual = {'hidden_act': 'relu2', 'rms_norm_eps': 1e-5}
  return llama(c, activation, **usual).replace(rows=UNGATED)


def seed_oss(c: Config) -> Model:
  """Seed-OSS (ByteDance Seed 2025): biases of queries, keys and values."""
  usual = {'num_key_value_heads': 8, 'head_dim': 128, 'attention_bias': True}
  usual |= {'attention_dropout': 0.1, 'hidden_dropout': 0.1}
  return llama(c, **usual).replace(
    encoder={'use_out_bias': c.get('attention_out_bias', False)}
  )


def apertus(c: Config) -> Model:
  """Apertus (Hernandez-Cano et al. 2025): xIELU, normed queries and keys."""
  scaling = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0}
  scaling |= {'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}
  usual = {'hidden_act': 'xielu', 'rms_norm_eps': 1e-5, 'rope_theta': 12e6}
  return llama(c, activation, rope_parameters=scaling, **usual).replace(
    encoder={'qk_norm': True},
    rows={
      **UNGATED,
      'encoder/block_*/norm_attention': 'layers.*.attention_layernorm',
      'encoder/block_*/norm_mlp': 'layers.*.feedforward_layernorm',
      'encoder/block_*/mlp_xielu/alpha_p': 'layers.*.mlp.act_fn.alpha_p',
      'encoder/block_*/mlp_xielu/alpha_n': 'layers.*.mlp.act_fn.alpha_n',
    },
    constants={
      'layers.*.mlp.act_fn.beta': 0.5,
      'layers.*.mlp.act_fn.eps': -1e-6,
    },
  )


def ernie4_5(c: Config) -> Model:
  """ERNIE 4.5 (Baidu 2025): pairs of neighbours rotate."""
  usual = {'num_key_value_heads': 2, 'head_dim': 128, 'rms_norm_eps': 1e-5}
  usual |= {'rope_theta': 5e5, 'tie_word_embeddings': True}
  model, has_bias = llama(c, **usual), c.get('use_bias', False)
  return rotated(model, layout='interleaved').replace(
    encoder={'use_bias': has_bias},
    block=model.block.with_options(use_bias=has_bias),
  )


def nanochat(c: Config) -> Model:
  """nanochat (Karpathy 2025): norms have no parameters, one is at the input."""
  model = llama(c, activation, hidden_act='relu2')
  # Its norms of queries and keys follow the rotation, which they commute with.
  return rotated(model, reverse=True).replace(
    encoder={'input_norm': True, 'qk_norm': True, 'qk_norm_kind': 'rms_plain'},
    block=model.block.with_options(norm='rms_plain'),
    vocabulary_head={
      'softcap': dict.get(c, 'final_logit_softcapping', 15.0) or 0.0
    },
    rows={
      'encoder/block_*/mlp_in': 'layers.*.mlp.fc1',
      'encoder/block_*/mlp_out': 'layers.*.mlp.fc2',
    },
  )


def phi3(c: Config) -> Model:
  """Phi-3 (Abdin et al. 2024): fused projections."""
  name = 'layers.*.self_attn.qkv_proj'
  fused = {
    f'encoder/block_*/attention/{of}': From(name, part)
    for part, of in enumerate(('query', 'key', 'value'))
  }
  model = llama(c, rms_norm_eps=1e-5, partial_rotary_factor=1.0)
  return model.replace(
    encoder=windows(['sliding_attention'], c.get('sliding_window')),
    rows={**fused, **GATE_UP},
  )
