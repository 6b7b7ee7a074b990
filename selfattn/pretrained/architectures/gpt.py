"""GPT-2, and decoders that differ from it in a few choices."""

from __future__ import annotations

import math

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


def fused(name: str, groups: int = 1, **options) -> dict[str, From]:
  """Rows of queries, keys and values that are parts of one tensor."""
  return {
    f'encoder/block_*/attention/{part}': From(name, n, groups, **options)
    for n, part in enumerate(('query', 'key', 'value'))
  }


def gpt(c: Config, eps: str = 'layer_norm_eps', **defaults) -> Model:
  """What the decoders of this file share: norms of GPT-2, biases, no gate.

  Args:
    eps: name of the epsilon of the norms.
    defaults: of fields that config.json may lack, by the names of Llama.
  """
  usual = {'attention_bias': True, 'mlp_bias': True, **defaults}
  c = Config({**c, 'rms_norm_eps': c.get(eps, 1e-5)})
  model = llama(c, activation, **usual)
  return model.replace(
    block=model.block.with_options(norm='layer'),
    word_head='classifier',
    ignored=BUFFERS,
  )


def parallel(model: Model, separate_norms: bool = False) -> Model:
  """A model whose blocks have both branches beside each other."""
  block = Choice('parallel', model.block.options)
  return model.replace(block=block.with_options(separate_norms=separate_norms))


def learned(c: Config, offset: int = 0) -> list[dict]:
  """Learned positions; rows before the first one belong to none."""
  rows = c['max_position_embeddings'] + offset
  return [{'learned': {'max_len': rows, 'offset': offset}}]


def _of_gpt2(c: Config, **defaults) -> Model:
  """What those share that have the fields of GPT-2; defaults as of `gpt`."""
  c = c.with_defaults(
    hidden_act='gelu_new',
    intermediate_size=4 * c['hidden_size'],
    max_position_embeddings=1024,
  )
  return gpt(c, 'layer_norm_epsilon', **defaults).replace(
    position=learned(c),
    prefix='transformer',
    rows=GPT2,
  )


def gpt2(c: Config) -> Model:
  """GPT-2 (Radford et al. 2019): norms before branches, learned positions."""
  c.refuse(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
  usual = {'hidden_dropout': 0.1, 'attention_dropout': 0.1}
  model = _of_gpt2(c, tie_word_embeddings=True, **usual)
  rows = fused('h.*.attn.c_attn', transposes=False)
  for name in of_layers(_MAPS):
    rows[name] = From(GPT2[name], transposes=False)
  scale = 0.0 if c.get('scale_attn_weights', True) else 1.0
  return model.replace(encoder={'scale': scale}, rows=rows)


def gpt_bigcode(c: Config) -> Model:
  """SantaCoder and StarCoder (Ben Allal et al. 2023; Li et al. 2023).

  GPT-2 with one head of keys and values.
  """
  model = gpt2(c.with_defaults(hidden_act='gelu_pytorch_tanh'))
  G = 1 if c.get('multi_query', True) else model.num_heads
  rows = {**GPT2, **fused('h.*.attn.c_attn', G)}
  return model.replace(encoder={'num_kv_heads': G % model.num_heads}, rows=rows)


def gptj(c: Config) -> Model:
  """GPT-J (Wang and Komatsuzaki 2021): parallel branches, rotations."""
  usual = {'attention_bias': False, 'tie_word_embeddings': False}
  model = parallel(_of_gpt2(c, **usual))
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


def gpt_neo(c: Config) -> Model:
  """GPT-Neo (Black et al. 2021): a window in some layers, scores unscaled."""
  c = c.with_defaults(max_position_embeddings=2048)
  usual = {'attention_bias': False, 'tie_word_embeddings': True}
  kinds = {'local': 'sliding_attention', 'global': 'full_attention'}
  patterns = c.get('attention_types', [[['global', 'local'], 12]])
  types = [kinds[one] for pattern, count in patterns for one in pattern * count]
  rows = {name: f'{name[0]}_proj' for name in ('query', 'key', 'value')}
  rows['out'] = 'out_proj'
  rows = {f'attention/{n}': f'attn.attention.{rows[n]}' for n in rows}
  return _of_gpt2(c, **usual).replace(
    encoder={
      'scale': 1.0,
      'use_out_bias': True,
      **windows(types, c.get('window_size', 256)),
    },
    rows=of_layers(rows, 'h'),
  )


def gpt_neox(c: Config) -> Model:
  """GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023).

  Parallel branches with a norm each, and rotations of a quarter of a head.
  """
  model = gpt(c, hidden_act='gelu')
  if c.get('use_parallel_residual', True):
    model = parallel(model, separate_norms=True)
  rows = {**MEGATRON, 'attention/out': 'attention.dense'}
  return model.replace(
    position=[{'rotary': rope(c, fraction=0.25)}],
    prefix='gpt_neox',
    rows={
      'embed': 'embed_in',
      **of_layers(rows, 'layers'),
      **fused('layers.*.attention.query_key_value', model.num_heads),
      'encoder/norm_out': 'final_layer_norm',
    },
    heads={'vocabulary_head': 'embed_out'},
  )


def phi(c: Config) -> Model:
  """Phi-1 to Phi-2 (Gunasekar et al. 2023): GPT-J with rotations of Llama."""
  rows = {
    'attention/out': 'self_attn.dense',
    'attention/query_norm': 'self_attn.q_layernorm',
    'attention/key_norm': 'self_attn.k_layernorm',
    'mlp_in': 'mlp.fc1',
    'mlp_out': 'mlp.fc2',
  }
  qk_norm = {'qk_norm': c.get('qk_layernorm', False), 'qk_norm_kind': 'layer'}
  return parallel(gpt(c, hidden_act='gelu_new')).replace(
    encoder=qk_norm,
    position=[{'rotary': rope(c, fraction=0.5)}],
    vocabulary_head={'use_bias': True},
    word_head='score',
    rows={**of_layers(rows, 'layers'), 'encoder/norm_out': 'final_layernorm'},
  )


def opt(c: Config) -> Model:
  """OPT (Zhang et al. 2022): learned positions from row 2 on; ReLU."""
  c.refuse(word_embed_proj_dim=c['hidden_size'])
  is_biased = c.get('enable_bias', True)
  c = c.with_defaults(max_position_embeddings=2048)
  model = gpt(
    c,
    tie_word_embeddings=True,
    attention_bias=is_biased,
    mlp_bias=is_biased,
    hidden_act='relu',
    hidden_dropout=0.1,
  )
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
  is_biased = c.get('bias', False)
  model = _bloom(
    c,
    G,
    intermediate_size=4 * D,
    hidden_act='gelu',
    attention_bias=is_biased,
    mlp_bias=is_biased,
  )
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
