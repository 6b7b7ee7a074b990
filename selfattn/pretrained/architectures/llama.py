"""Llama, and decoders that differ from it in a few choices."""

from __future__ import annotations

from selfattn.pretrained.fields import gated, heads, rope, sizes
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model

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
  'encoder/block_*/norm_attention': 'layers.*.input_layernorm',
  'encoder/block_*/norm_mlp': 'layers.*.post_attention_layernorm',
  'encoder/block_*/mlp_in': 'layers.*.mlp.gate_proj',
  'encoder/block_*/mlp_gated': 'layers.*.mlp.up_proj',
  'encoder/block_*/mlp_out': 'layers.*.mlp.down_proj',
  'encoder/norm_out': 'norm',
}


def llama(c: Config, **defaults) -> Model:
  """Llama (Touvron et al. 2023).

  Args:
    defaults: of fields that config.json may lack, where those of Llama are not
      meant.
  """
  c = Config(defaults | {n: v for n, v in c.items() if v is not None})
  return Model(
    **sizes(c),
    encoder={
      'causal': True,
      **heads(c),
      'use_bias': c.get('attention_bias', False),
    },
    block=Choice(
      'pre',
      {
        'feed_forward': gated(c.get('hidden_act', 'silu')),
        'norm': 'rms',
        'eps': c.get('rms_norm_eps', 1e-6),
        'use_bias': c.get('mlp_bias', False),
      },
    ),
    position=[{'rotary': rope(c)}],
    attention_dropout_rate=c.get('attention_dropout', 0.0),
    pool=Choice('last'),
    head=Choice('linear', {'use_bias': False}),
    vocabulary_head={
      'transform': False,
      'use_bias': False,
      'tied': c.get('tie_word_embeddings', False),
    },
    rows=ROWS,
    heads={'vocabulary_head': 'lm_head', 'head': 'score'},
    unused=('*rotary_emb.inv_freq',),
  )
