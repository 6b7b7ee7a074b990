"""GPT-2, and decoders that differ from it in a few choices."""

from __future__ import annotations

import math
from typing import Any

from selfattn.pretrained.architectures.bert import of_layers
from selfattn.pretrained.architectures.llama import llama
from selfattn.pretrained.fields import activation, rope, windows
from selfattn.pretrained.folder import Config, mapping
from selfattn.pretrained.model import Choice, From, Model

_MAPS = {
  'attention/out': 'attn.c_proj',
  'mlp_in': 'mlp.c_fc',
  'mlp_out': 'mlp.c_proj',
}
GPT2 = {
  'embed': 'wte',
  'encoder/position/table': 'wpe.weight',
  **of_layers(
    {'norm_attention': 'ln_1', 'norm_mlp': 'ln_2', 'norm': 'ln_1'}, 'h'
  ),
  **of_layers(_MAPS, 'h'),
  'encoder/norm_out': 'ln_f',
}
# Names of Megatron-LM, whose norms are those of Llama.
MEGATRON = {
  'norm': 'input_layernorm',
  'norm_attention': 'input_layernorm',
  'norm_mlp': 'post_attention_layernorm',
  'mlp_in': 'mlp.dense_h_to_4h',
  'mlp_out': 'mlp.dense_4h_to_h',
}
# What torch saved of masks and rotations.
BUFFERS = ('*attn.bias', '*attention.bias', '*.masked_bias', '*.inv_freq')


def fused(
  name: str, groups: int = 1, parts: str = 'query key value', **options
) -> dict[str, From]:
  """Rows of queries, keys and values that are parts of one tensor."""
  return {
    f'encoder/block_*/attention/{part}': From(name, n, groups, **options)
    for n, part in enumerate(parts.split())
  }


def named(c: Config, **names: tuple[str, Any]) -> Config:
  """Fields of config.json, by the names that Llama has for them.

  Args:
    names: by those of Llama, the other name of a field and its default.
  """
  usual = {
    ours: c.get(theirs, default) for ours, (theirs, default) in names.items()
  }
  return Config({**c, **usual})


def gpt(c: Config, eps: str = 'layer_norm_eps', **defaults) -> Model:
  """What the decoders of this file share: norms of GPT-2, biases, no gate.

  Args:
    eps: name of the epsilon of the norms.
    defaults: of fields that config.json may lack, by the names of Llama.
  """
  usual = {'attention_bias': True, 'mlp_bias': True, **defaults}
  model = llama(named(c, rms_norm_eps=(eps, 1e-5)), activation, **usual)
  return model.replace(
    block=model.block.with_options(norm='layer'), unused=BUFFERS
  )


def parallel(model: Model, separate_norms: bool = False) -> Model:
  """A model whose blocks have both branches beside each other."""
  block = Choice('parallel', model.block.options)
  return model.replace(block=block.with_options(separate_norms=separate_norms))


def learned(c: Config, offset: int = 0) -> list[dict]:
  """Learned positions; rows before the first one belong to none."""
  rows = c['max_position_embeddings'] + offset
  return [{'learned': {'max_len': rows, 'offset': offset}}]


def _of_gpt2(c: Config, D: int, layers: int, H: int, **defaults) -> Model:
  """What those share that have the fields of GPT-2.

  Args:
    D, layers, H: defaults of sizes.
    defaults: see `gpt`.
  """
  c = named(
    c,
    hidden_size=('n_embd', c.get('hidden_size', D)),
    num_hidden_layers=('n_layer', c.get('num_hidden_layers', layers)),
    num_attention_heads=('n_head', c.get('num_attention_heads', H)),
    max_position_embeddings=(
      'n_positions',
      c.get('max_position_embeddings', 1024),
    ),
    hidden_act=('activation_function', 'gelu_new'),
    attention_dropout=('attn_pdrop', 0.0),
  )
  c = named(c, intermediate_size=('n_inner', 4 * c['hidden_size']))
  return gpt(c, 'layer_norm_epsilon', **defaults).replace(
    position=learned(c),
    dropout_rate=c.get('resid_pdrop', 0.0),
    prefix='transformer',
    rows=GPT2,
  )


def gpt2(c: Config) -> Model:
  """GPT-2 (Radford et al. 2019): norms before branches, learned positions."""
  c.refuse(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
  c = Config({'resid_pdrop': 0.1, 'attn_pdrop': 0.1, **c})
  model = _of_gpt2(c, 768, 12, 12, tie_word_embeddings=True)
  rows = fused('h.*.attn.c_attn', transposes=False)
  for name in of_layers(_MAPS):
    rows[name] = From(GPT2[name], transposes=False)
  scale = 0.0 if c.get('scale_attn_weights', True) else 1.0
  return model.replace(encoder={'scale': scale}, rows=rows)


def gpt_bigcode(c: Config) -> Model:
  """SantaCoder and StarCoder (Ben Allal et al. 2023; Li et al. 2023).

  GPT-2 with one head of keys and values.
  """
  model = gpt2(Config({'activation_function': 'gelu_pytorch_tanh', **c}))
  G = 1 if c.get('multi_query', True) else model.num_heads
  rows = {**GPT2, **fused('h.*.attn.c_attn', G)}
  return model.replace(encoder={'num_kv_heads': G % model.num_heads}, rows=rows)


def gptj(c: Config) -> Model:
  """GPT-J (Wang and Komatsuzaki 2021): parallel branches, rotations."""
  usual = {'attention_bias': False, 'tie_word_embeddings': False}
  model = parallel(_of_gpt2(c, 4096, 28, 16, **usual))
  K = model.embed_dim // model.num_heads
  # The next number, so that all of these channels are within the share.
  share = math.nextafter(c.get('rotary_dim', 64) / K, 1)
  rows = {name: f'attn.{name[0]}_proj' for name in ('query', 'key', 'value')}
  rows = {f'attention/{ours}': name for ours, name in rows.items()}
  rows |= {'attention/out': 'attn.out_proj'}
  rows |= {'mlp_in': 'mlp.fc_in', 'mlp_out': 'mlp.fc_out'}
  return model.replace(
    position=[{'rotary': {'layout': 'interleaved', 'fraction': share}}],
    vocabulary_head={'use_bias': True},
    rows=of_layers(rows, 'h'),
  )


def codegen(c: Config) -> Model:
  """CodeGen (Nijkamp et al. 2022): GPT-J, from four devices."""
  rows = fused('h.*.attn.qkv_proj', 4, 'query value key')
  return gptj(c).replace(rows=rows)


def gpt_neo(c: Config) -> Model:
  """GPT-Neo (Black et al. 2021): a window in some layers, scores unscaled."""
  c = named(
    c,
    num_hidden_layers=('num_layers', c.get('num_hidden_layers', 24)),
    num_attention_heads=('num_heads', c.get('num_attention_heads', 16)),
    max_position_embeddings=('max_position_embeddings', 2048),
    n_inner=('intermediate_size', None),
  )
  usual = {'attention_bias': False, 'tie_word_embeddings': True}
  kinds = {'local': 'sliding_attention', 'global': 'full_attention'}
  patterns = c.get('attention_types', [[['global', 'local'], 12]])
  types = [kinds[one] for pattern, count in patterns for one in pattern * count]
  rows = {name: f'{name[0]}_proj' for name in ('query', 'key', 'value')}
  rows['out'] = 'out_proj'
  rows = {f'attention/{n}': f'attn.attention.{rows[n]}' for n in rows}
  return _of_gpt2(c, 2048, 24, 16, **usual).replace(
    encoder={
      'scale': 1.0,
      'use_out_bias': True,
      **windows(types, c.get('window_size', 256)),
    },
    dropout_rate=c.get('resid_dropout', 0.0),
    rows=of_layers(rows, 'h'),
  )


def gpt_neox(c: Config) -> Model:
  """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023).

  Parallel branches with a norm each, and rotations of a quarter of a head.
  """
  model = gpt(c, hidden_act='gelu')
  if c.get('use_parallel_residual', True):
    model = parallel(model, separate_norms=True)
  base, share = c.get('rotary_emb_base', 10_000.0), c.get('rotary_pct', 0.25)
  rows = {**MEGATRON, 'attention/out': 'attention.dense'}
  return model.replace(
    position=[{'rotary': rope(c, base=base, fraction=share)}],
    dropout_rate=c.get('hidden_dropout', 0.0),
    prefix='gpt_neox',
    rows={
      'embed': 'embed_in',
      **of_layers(rows, 'layers'),
      **fused('layers.*.attention.query_key_value', model.num_heads),
      'encoder/norm_out': 'final_layer_norm',
    },
    heads={'vocabulary_head': 'embed_out'},
  )


def _normalised_heads(c: Config, usual: bool) -> dict[str, Any]:
  """Options for norms of queries and keys, those of GPT-2."""
  return {'qk_norm': c.get('qk_layernorm', usual), 'qk_norm_kind': 'layer'}


_OF_HEADS = {
  'attention/out': 'self_attn.dense',
  'attention/query_norm': 'self_attn.q_layernorm',
  'attention/key_norm': 'self_attn.k_layernorm',
}


def phi(c: Config) -> Model:
  """Phi-1 to Phi-2 (Gunasekar et al. 2023): GPT-J with rotations of Llama."""
  rows = {'mlp_in': 'mlp.fc1', 'mlp_out': 'mlp.fc2', **_OF_HEADS}
  return parallel(gpt(c, hidden_act='gelu_new')).replace(
    encoder=_normalised_heads(c, False),
    position=[{'rotary': rope(c, fraction=0.5)}],
    dropout_rate=c.get('resid_pdrop', 0.0),
    vocabulary_head={'use_bias': True},
    rows={**of_layers(rows, 'layers'), 'encoder/norm_out': 'final_layernorm'},
  )


def persimmon(c: Config) -> Model:
  """Persimmon (Elsen et al. 2023): normalised queries and keys."""
  model = gpt(c, hidden_act='relu2')
  return model.replace(
    encoder=_normalised_heads(c, True),
    position=[{'rotary': rope(c, fraction=0.5)}],
    dropout_rate=c.get('hidden_dropout', 0.0),
    rows={
      **of_layers({**MEGATRON, **_OF_HEADS}, 'layers'),
      **fused('layers.*.self_attn.query_key_value', model.num_heads),
      'encoder/norm_out': 'final_layernorm',
    },
  )


def opt(c: Config) -> Model:
  """OPT (Zhang et al. 2022): learned positions from row 2 on; ReLU."""
  c.refuse(word_embed_proj_dim=c['hidden_size'])
  c = named(
    c,
    intermediate_size=('ffn_dim', 3072),
    hidden_act=('activation_function', 'relu'),
    attention_bias=('enable_bias', True),
    mlp_bias=('enable_bias', True),
    max_position_embeddings=('max_position_embeddings', 2048),
  )
  model = gpt(c, tie_word_embeddings=True)
  has_scales = c.get('layer_norm_elementwise_affine', True)
  options = {'norm': 'layer' if has_scales else 'layer_plain'}
  is_pre = c.get('do_layer_norm_before', True)
  block = Choice('pre' if is_pre else 'post', model.block.options)
  before = 'decoder.layers'
  rows = {
    'attention/query': 'self_attn.q_proj',
    'attention/key': 'self_attn.k_proj',
    'attention/value': 'self_attn.v_proj',
    'attention/out': 'self_attn.out_proj',
    'norm_attention': 'self_attn_layer_norm',
    'mlp_in': 'fc1',
    'mlp_out': 'fc2',
    'norm_mlp': 'final_layer_norm',
  }
  return model.replace(
    encoder={'use_final_norm': not c.get('_remove_final_layer_norm', False)},
    block=block.with_options(**options),
    position=learned(c, 2),
    dropout_rate=c.get('dropout', 0.1),
    rows={
      'embed': 'decoder.embed_tokens',
      'encoder/position/table': 'decoder.embed_positions.weight',
      **of_layers(rows, before),
      'encoder/norm_out': 'decoder.final_layer_norm',
    },
  )


def _bloom(c: Config, groups: int, **defaults) -> Model:
  """What BLOOM and Falcon share: names, and parts of heads in one tensor.

  Args:
    groups: of heads, see From.
    defaults: see `gpt`.
  """
  usual = {'tie_word_embeddings': True, **defaults}
  rows = {**MEGATRON, 'attention/out': 'self_attention.dense'}
  return gpt(c, 'layer_norm_epsilon', **usual).replace(
    dropout_rate=c.get('hidden_dropout', 0.0),
    prefix='transformer',
    rows={
      'embed': 'word_embeddings',
      'encoder/norm_in': 'word_embeddings_layernorm',
      **of_layers(rows, 'h'),
      **fused('h.*.self_attention.query_key_value', groups),
      'encoder/norm_out': 'ln_f',
    },
  )


def bloom(c: Config) -> Model:
  """BLOOM (BigScience 2022): ALiBi, and a norm of the embeddings."""
  c.refuse(apply_residual_connection_post_layernorm=False)
  c = named(
    c,
    hidden_size=('n_embed', c.get('hidden_size', 64)),
    num_hidden_layers=('n_layer', c.get('num_hidden_layers', 2)),
    num_attention_heads=('n_head', c.get('num_attention_heads', 8)),
  )
  c = Config({**c, 'intermediate_size': 4 * c['hidden_size']})
  model = _bloom(c, c['num_attention_heads'], hidden_act='gelu_new')
  return model.replace(encoder={'input_norm': True}, position=[{'alibi': {}}])


def falcon(c: Config) -> Model:
  """Falcon (Almazrouei et al. 2023): parallel branches, one KV head.

  Its later architecture has groups of heads, each with a head of keys and of
  values. With ALiBi, its bias is scaled as scores are.
  """
  H, D = c['num_attention_heads'], c['hidden_size']
  is_new = c.get('new_decoder_architecture', False)
  G = 1 if c.get('multi_query', True) else H
  G = c.get('num_kv_heads', H) if is_new else G
  names = {
    'intermediate_size': ('ffn_hidden_size', 4 * D),
    'hidden_act': ('activation', 'gelu'),
    'attention_bias': ('bias', False),
    'mlp_bias': ('bias', False),
  }
  model = _bloom(named(c, **names), G)
  if is_new or c.get('parallel_attn', True):
    count = c.get('num_ln_in_parallel_attn', 1 + is_new)
    model = parallel(model, separate_norms=is_new and count == 2)
    norms = {'norm_attention': 'ln_attn', 'norm_mlp': 'ln_mlp'}
    model = model.replace(rows=of_layers(norms, 'h'))
  if c.get('alibi', False):
    model = model.replace(
      position=[{'alibi': {'slope_scale': (D // H) ** -0.5}}]
    )
  return model.replace(encoder={'num_kv_heads': G % H})


def mpt(c: Config) -> Model:
  """MPT (MosaicML 2023): ALiBi, and neither biases nor a gate."""
  attention = Config(mapping(c.get('attn_config')))
  attention.refuse(
    attn_type='multihead_attention',
    prefix_lm=False,
    qk_ln=False,
    alibi=True,
    alibi_bias_max=8,
  )
  c.refuse(
    expansion_ratio=4,
    no_bias=True,
    logit_scale=None,
    norm_type='low_precision_layernorm',
  )
  c = named(
    c,
    hidden_size=('d_model', c.get('hidden_size', 2048)),
    num_hidden_layers=('n_layers', c.get('num_hidden_layers', 24)),
    num_attention_heads=('n_heads', c.get('num_attention_heads', 16)),
  )
  c = Config({**c, 'intermediate_size': 4 * c['hidden_size']})
  usual = {'attention_bias': False, 'mlp_bias': False, 'hidden_act': 'gelu'}
  model = gpt(c, 'layer_norm_epsilon', tie_word_embeddings=True, **usual)
  rows = {
    'norm_attention': 'norm_1',
    'attention/out': 'attn.out_proj',
    'norm_mlp': 'norm_2',
    'mlp_in': 'ffn.up_proj',
    'mlp_out': 'ffn.down_proj',
  }
  return model.replace(
    encoder={
      'scale': attention.get('softmax_scale', 0.0),
      'clip_qkv': attention.get('clip_qkv', 0.0),
    },
    block=model.block.with_options(norm='layer_unbiased'),
    position=[{'alibi': {}}],
    attention_dropout_rate=attention.get('attn_pdrop', 0.0),
    prefix='transformer',
    rows={
      'embed': 'wte',
      **of_layers(rows, 'blocks'),
      **fused('blocks.*.attn.Wqkv'),
      'encoder/norm_out': 'norm_f',
    },
  )
