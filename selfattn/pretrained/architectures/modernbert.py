"""Encoders of both directions with rotary positions and gated networks."""

from __future__ import annotations

from selfattn.pretrained.architectures import bert
from selfattn.pretrained.architectures.llama import llama
from selfattn.pretrained.fields import (
  KINDS,
  activation,
  gated,
  heads,
  layer_types,
  rope,
  rotations,
  sided_windows,
  sizes,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, From, Model

POOLS = {'cls': 'first', 'bos': 'first', 'mean': 'mean', 'late': 'mean'}


def pool_of(c: Config, usual: str) -> str:
  """The pool that the field classifier_pooling names."""
  name = c.get('classifier_pooling', usual)
  if name not in POOLS:
    raise ValueError(
      f'config.json: classifier_pooling = {name!r} is not supported, only '
      f'{", ".join(POOLS)} are'
    )
  return POOLS[name]


def modernbert(c: Config) -> Model:
  """ModernBERT (Warner et al. 2024): every nth layer attends to all tokens."""
  nth, D = c.get('global_attn_every_n_layers', 3), c['hidden_size']
  kinds = layer_types(c, lambda n: n % nth == 0)
  bases = {
    'full_attention': {'rope_theta': c.get('global_rope_theta', 160_000.0)},
    'sliding_attention': {'rope_theta': c.get('local_rope_theta', 10_000.0)},
  }
  half = c.get('local_attention', 128) // 2
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
      **sided_windows(kinds, (half, half)),
    },
    block=Choice(
      'pre',
      {
        'norms_first': False,
        'feed_forward': gated(c.get('hidden_activation', 'gelu')),
        'use_bias': c.get('mlp_bias', False),
        'hidden_dropout': True,
        **norm,
      },
    ),
    position=rotations(c, kinds, bases, scaled=KINDS),
    dropout_rate=c.get('mlp_dropout', 0.0),
    attention_dropout_rate=c.get('attention_dropout', 0.0),
    pool=Choice(pool_of(c, 'cls')),
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
    # It has the dense layer and the norm of the other heads.
    word_head='',
    ignored=('*rotary_emb.inv_freq', 'decoder.weight'),
  )


def eurobert(c: Config) -> Model:
  """EuroBERT (Boizard et al. 2025): Llama of both directions."""
  c = c.with_defaults(classifier_pooling='late')
  model, D = llama(c, rms_norm_eps=1e-5), c['hidden_size']
  pool, is_late = pool_of(c, 'late'), c.get('classifier_pooling') == 'late'
  head = Choice('mlp', {'hidden_dim': D, 'activation': 'gelu_exact'})
  return model.replace(
    encoder={'causal': False},
    pool=Choice(pool, {'hidden_dim': D} if is_late else {}),
    head=Choice('linear') if is_late else head,
    vocabulary_head={'use_bias': c.get('mlp_bias', False)},
    heads={'pool/dense': 'dense', 'head/dense': 'dense', 'head': 'classifier'},
    word_head='classifier',
  )


def nomic_bert(c: Config) -> Model:
  """Nomic BERT (Nussbaum et al. 2024)."""
  c = c.with_defaults(
    hidden_act='silu', hidden_dropout=0.0, attention_dropout=0.0
  )
  model, act = bert.encoder(c, 'nomic_bert'), gated(c['hidden_act'])
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
