"""Encoders of both directions with rotary positions and gated networks."""

from __future__ import annotations

from selfattn.pretrained.architectures import bert
from selfattn.pretrained.architectures.llama import llama
from selfattn.pretrained.fields import (
  activation,
  gated,
  heads,
  layer_types,
  rope,
  shortest,
  sizes,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, From, Model

POOLS = {'cls': 'first', 'bos': 'first', 'mean': 'mean', 'late': 'mean'}


def modernbert(c: Config) -> Model:
  """ModernBERT (Warner et al. 2024): every nth layer attends to all tokens."""
  nth, D = c.get('global_attn_every_n_layers', 3), c['hidden_size']
  usual = ['full_attention', *['sliding_attention'] * (nth - 1)]
  layers = range(c['num_hidden_layers'])
  kinds = layer_types(c, [usual[n % nth] for n in layers])
  bases = {
    'full_attention': c.get('global_rope_theta', 160_000.0),
    'sliding_attention': c.get('local_rope_theta', 10_000.0),
  }
  half = c.get('local_attention', 128) // 2
  ends = {'full_attention': (-1, -1), 'sliding_attention': (half, half)}
  window = shortest([ends[kind] for kind in kinds])
  norm = {
    'norm': 'layer' if c.get('norm_bias', False) else 'layer_unbiased',
    'eps': c.get('norm_eps', 1e-5),
  }
  act = activation(c.get('classifier_activation', 'gelu'))
  biased = c.get('classifier_bias', False)
  return Model(
    **sizes(c),
    encoder={
      'input_norm': True,
      'use_bias': c.get('attention_bias', False),
      'window': window[0] if len(window) == 1 else tuple(window),
    },
    block=Choice(
      'pre',
      {
        'norms_first': False,
        'feed_forward': gated(c.get('hidden_activation', 'gelu')),
        'use_bias': c.get('mlp_bias', False),
        **norm,
      },
    ),
    position=shortest(
      [{'rotary': rope(c, kind, bases[kind])} for kind in kinds]
    ),
    dropout_rate=c.get('mlp_dropout', 0.0),
    attention_dropout_rate=c.get('attention_dropout', 0.0),
    pool=Choice(POOLS[c.get('classifier_pooling', 'cls')]),
    head=Choice(
      'mlp', {'hidden_dim': D, 'activation': act, 'use_bias': biased, **norm}
    ),
    vocabulary_head={
      'activation': act,
      'transform_bias': biased,
      'use_bias': c.get('decoder_bias', True),
      'tied': c.get('tie_word_embeddings', True),
      **norm,
    },
    rows={
      'embed': 'embeddings.tok_embeddings',
      'encoder/norm_in': 'embeddings.norm',
      'encoder/norm_out': 'final_norm',
      'encoder/block_*/attention/query': From('layers.*.attn.Wqkv', 0),
      'encoder/block_*/attention/key': From('layers.*.attn.Wqkv', 1),
      'encoder/block_*/attention/value': From('layers.*.attn.Wqkv', 2),
      'encoder/block_*/attention/out': 'layers.*.attn.Wo',
      'encoder/block_*/norm_attention': 'layers.*.attn_norm',
      'encoder/block_*/norm_mlp': 'layers.*.mlp_norm',
      'encoder/block_*/mlp_in': From('layers.*.mlp.Wi', 0),
      'encoder/block_*/mlp_gated': From('layers.*.mlp.Wi', 1),
      'encoder/block_*/mlp_out': 'layers.*.mlp.Wo',
    },
    heads={
      'head/dense': 'head.dense',
      'head/norm': 'head.norm',
      'head': 'classifier',
      'vocabulary_head/dense': 'head.dense',
      'vocabulary_head/norm': 'head.norm',
      'vocabulary_head': 'decoder',
    },
    unused=('*rotary_emb.inv_freq', 'decoder.weight'),
  )


def eurobert(c: Config) -> Model:
  """EuroBERT (Boizard et al. 2025): Llama of both directions."""
  model = llama(c, rms_norm_eps=1e-5)
  D, pool = c['hidden_size'], c.get('classifier_pooling', 'late')
  is_late = pool == 'late'
  head = Choice('mlp', {'hidden_dim': D, 'activation': 'gelu_exact'})
  return model.replace(
    encoder={'causal': False},
    pool=Choice(POOLS[pool], {'hidden_dim': D} if is_late else {}),
    head=Choice('linear') if is_late else head,
    vocabulary_head={'use_bias': c.get('mlp_bias', False)},
    heads={'pool/dense': 'dense', 'head/dense': 'dense', 'head': 'classifier'},
  )


def nomic_bert(c: Config) -> Model:
  """Nomic BERT (Nussbaum et al. 2024)."""
  usual = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
  model = bert.encoder(
    Config({**usual, 'hidden_act': 'silu', **c}), 'nomic_bert'
  )
  act = gated(c.get('hidden_act', 'silu'))
  qkv = 'encoder.layers.*.attn.Wqkv'
  layers = {
    'attention/out': 'attn.out_proj',
    'norm_attention': 'norm1',
    'mlp_gated': 'mlp.fc11',
    'mlp_in': 'mlp.fc12',
    'mlp_out': 'mlp.fc2',
    'norm_mlp': 'norm2',
  }
  return model.replace(
    encoder={**heads(c), 'use_bias': False},
    block=model.block.with_options(feed_forward=act, use_bias=False),
    position=[{'rotary': rope(c, base=1000.0)}],
    rows={
      'encoder/norm_in': 'emb_ln',
      'encoder/block_*/attention/query': From(qkv, 0),
      'encoder/block_*/attention/key': From(qkv, 1),
      'encoder/block_*/attention/value': From(qkv, 2),
      **bert.of_layers(layers, 'encoder.layers'),
      **bert.POOLER,
    },
    heads={'vocabulary_head/norm': 'cls.predictions.transform.layer_norm'},
  )
