"""BERT, and encoders that differ from it in a few choices."""

from __future__ import annotations

from collections.abc import Mapping

from selfattn.pretrained.fields import activation, sizes
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model

LAYERS = {
  'attention/query': 'attention.self.query',
  'attention/key': 'attention.self.key',
  'attention/value': 'attention.self.value',
  'attention/out': 'attention.output.dense',
  'norm_attention': 'attention.output.LayerNorm',
  'mlp_in': 'intermediate.dense',
  'mlp_out': 'output.dense',
  'norm_mlp': 'output.LayerNorm',
}
EMBEDDINGS = {
  'embed': 'embeddings.word_embeddings',
  'token_type': 'embeddings.token_type_embeddings',
  'encoder/position/table': 'embeddings.position_embeddings.weight',
  'encoder/norm_in': 'embeddings.LayerNorm',
}


def of_layers(rows: Mapping[str, str], before: str) -> dict[str, str]:
  """Rows of all layers from those of one."""
  return {
    f'encoder/block_*/{ours}': f'{before}.*.{theirs}'
    for ours, theirs in rows.items()
  }


def bert(c: Config) -> Model:
  """BERT (Devlin et al. 2019)."""
  c.refuse(
    position_embedding_type='absolute', is_decoder=False, chunk_size_feed_forward=0
  )
  eps = c.get('layer_norm_eps', 1e-12)
  feed_forward = activation(c.get('hidden_act', 'gelu'))
  return Model(
    **sizes(c),
    encoder={'input_norm': True},
    block=Choice('post', {'feed_forward': feed_forward, 'eps': eps}),
    position=[{'learned': {'max_len': c.get('max_position_embeddings', 512)}}],
    num_token_types=c.get('type_vocab_size', 2),
    dropout_rate=c.get('hidden_dropout_prob', 0.1),
    attention_dropout_rate=c.get('attention_probs_dropout_prob', 0.1),
    pool=Choice('first'),
    head=Choice('mlp', {'hidden_dim': c['hidden_size']}),
    vocabulary_head={'activation': feed_forward, 'eps': eps},
    prefix='bert',
    rows={
      **EMBEDDINGS,
      **of_layers(LAYERS, 'encoder.layer'),
      'head/dense': 'pooler.dense',
    },
    heads={
      'head': 'classifier',
      'vocabulary_head/dense': 'cls.predictions.transform.dense',
      'vocabulary_head/norm': 'cls.predictions.transform.LayerNorm',
      'vocabulary_head/bias': 'cls.predictions.bias',
    },
    unused=('*embeddings.position_ids', 'cls.predictions.decoder.*'),
  )
