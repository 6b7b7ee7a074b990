"""BERT, and encoders that differ from it in a few choices."""

from __future__ import annotations

from collections.abc import Mapping

from selfattn.pretrained.fields import activation, dropout_rates, sizes
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
  'encoder/in': 'embeddings_project',
}
POOLER = {'head/dense': 'pooler.dense'}
ROBERTA_HEAD = {'head/dense': 'classifier.dense', 'head': 'classifier.out_proj'}


def of_layers(rows: Mapping, before: str = 'encoder.layer') -> dict[str, str]:
  """Rows of all layers from those of one."""
  return {
    f'encoder/block_*/{ours}': f'{before}.*.{theirs}'
    for ours, theirs in rows.items()
  }


def masked_head(
  c: Config, dense: str, norm: str, decoder: str, bias: str
) -> dict[str, str]:
  """Rows of an output layer, whose matrix is that of the embeddings or its own.

  Args:
    dense, norm: names of the map and the norm before it.
    decoder: name of the module that has its matrix.
    bias: name of the bias beside a matrix of the embeddings.
  """
  rows = {'vocabulary_head/dense': dense, 'vocabulary_head/norm': norm}
  rows['vocabulary_head'] = decoder
  if c.get('tie_word_embeddings', True):
    rows['vocabulary_head/bias'] = bias
  return rows


def encoder(c: Config, prefix: str, width: int = 0) -> Model:
  """What the encoders of this file share.

  Args:
    prefix: see Model.
    width: of embeddings, which a linear map takes to that of the layers; 0:
      that of the layers.
  """
  c.refuse(position_embedding_type='absolute', is_decoder=False)
  eps = c.get('layer_norm_eps', 1e-12)
  act = activation(c.get('hidden_act', 'gelu'))
  is_tied = c.get('tie_word_embeddings', True)
  transform = 'cls.predictions.transform'
  return Model(
    **sizes(c),
    **dropout_rates(c, 0.1),
    encoder={'input_norm': True, 'token_dim': width},
    block=Choice('post', {'feed_forward': act, 'eps': eps}),
    position=[{'learned': {'max_len': c.get('max_position_embeddings', 512)}}],
    num_token_types=c.get('type_vocab_size', 2),
    pool=Choice('first'),
    head=Choice('mlp', {'hidden_dim': c['hidden_size']}),
    vocabulary_head={'activation': act, 'eps': eps, 'tied': is_tied},
    prefix=prefix,
    rows={**EMBEDDINGS, **of_layers(LAYERS)},
    heads={
      'head': 'classifier',
      **masked_head(
        c,
        f'{transform}.dense',
        f'{transform}.LayerNorm',
        'cls.predictions.decoder',
        'cls.predictions.bias',
      ),
    },
    ignored=('*embeddings.position_ids', '*decoder.bias', '*predictions.bias'),
  )


def bert(c: Config) -> Model:
  """BERT (Devlin et al. 2019)."""
  return encoder(c, 'bert').replace(rows=POOLER)


def roberta(c: Config, prefix: str = 'roberta') -> Model:
  """RoBERTa (Liu et al. 2019), and XLM-R and CamemBERT.

  Rows of the table of positions up to the id of padding belong to none. Its
  tokenizer says of no token that it is of a second text.
  """
  c.refuse(type_vocab_size=1)
  model = encoder(c.with_defaults(type_vocab_size=1), prefix)
  table = model.position[0]['learned']
  first = c.get('pad_token_id', 1) + 1
  names = 'dense', 'layer_norm', 'decoder', 'bias'
  return model.replace(
    position=[{'learned': {**table, 'offset': first}}],
    vocabulary_head={'activation': 'gelu_exact'},
    heads={**ROBERTA_HEAD, **masked_head(c, *(f'lm_head.{n}' for n in names))},
    ignored=(*model.ignored, 'lm_head.bias'),
  )


def distilbert(c: Config) -> Model:
  """DistilBERT (Sanh et al. 2019)."""
  model = encoder(Config({**c, 'type_vocab_size': 0}), 'distilbert')
  layers = {
    'attention/query': 'attention.q_lin',
    'attention/key': 'attention.k_lin',
    'attention/value': 'attention.v_lin',
    'attention/out': 'attention.out_lin',
    'norm_attention': 'sa_layer_norm',
    'mlp_in': 'ffn.lin1',
    'mlp_out': 'ffn.lin2',
    'norm_mlp': 'output_layer_norm',
  }
  return model.replace(
    head=model.head.with_options(activation='relu'),
    rows=of_layers(layers, 'transformer.layer'),
    heads={
      'head/dense': 'pre_classifier',
      **masked_head(
        c,
        'vocab_transform',
        'vocab_layer_norm',
        'vocab_projector',
        'vocab_projector.bias',
      ),
    },
  )


def electra(c: Config) -> Model:
  """ELECTRA (Clark et al. 2020): embeddings may be narrower than layers."""
  width = c.get('embedding_size', 128)
  model = encoder(c, 'electra', 0 if width == c['hidden_size'] else width)
  return model.replace(
    head=model.head.with_options(activation='gelu_exact'),
    vocabulary_head={'activation': 'gelu_exact'},
    heads={
      **ROBERTA_HEAD,
      **masked_head(
        c,
        'generator_predictions.dense',
        'generator_predictions.LayerNorm',
        'generator_lm_head',
        'generator_lm_head.bias',
      ),
    },
  )


def mpnet(c: Config) -> Model:
  """MPNet (Song et al. 2020): RoBERTa with the relative biases of T5."""
  c.refuse(relative_attention_num_buckets=32)
  # Whatever the config says of padding.
  model = roberta(Config({**c, 'pad_token_id': 1}), 'mpnet')
  rows = {
    'attention/query': 'attention.attn.q',
    'attention/key': 'attention.attn.k',
    'attention/value': 'attention.attn.v',
    'attention/out': 'attention.attn.o',
    'norm_attention': 'attention.LayerNorm',
  }
  tables = {
    'encoder/position/learned/table': 'embeddings.position_embeddings.weight',
    'encoder/position/t5/table': 'encoder.relative_attention_bias.weight',
  }
  position = [{**model.position[0], 't5': {}}]
  rows = of_layers(rows) | tables
  return model.replace(num_token_types=0, position=position, rows=rows)


def albert(c: Config) -> Model:
  """ALBERT (Lan et al. 2020): all layers share their parameters."""
  c.refuse(num_hidden_groups=1, inner_group_num=1)
  c = c.with_defaults(
    hidden_act='gelu_new', hidden_dropout=0.0, attention_dropout=0.0
  )
  model = encoder(c, 'albert', c.get('embedding_size', 128))
  layer = {
    'attention/query': 'attention.query',
    'attention/key': 'attention.key',
    'attention/value': 'attention.value',
    'attention/out': 'attention.dense',
    'norm_attention': 'attention.LayerNorm',
    'mlp_in': 'ffn',
    'mlp_out': 'ffn_output',
    'norm_mlp': 'full_layer_layer_norm',
  }
  only = 'encoder.albert_layer_groups.0.albert_layers.0'
  rows = {f'encoder/block_*/{n}': f'{only}.{name}' for n, name in layer.items()}
  rows['encoder/in'] = 'encoder.embedding_hidden_mapping_in'
  return model.replace(
    encoder={'share_layers': True},
    rows={**rows, 'head/dense': 'pooler'},
    heads=masked_head(
      c,
      'predictions.dense',
      'predictions.LayerNorm',
      'predictions.decoder',
      'predictions.bias',
    ),
  )


def esm(c: Config) -> Model:
  """ESM-1b and ESM-2 (Rives et al. 2021; Lin et al. 2023), without contacts."""
  c.refuse(is_folding_model=False)
  known = {'position_embedding_type': 'absolute', 'hidden_act': 'gelu'}
  usual = c.with_defaults(max_position_embeddings=1026)
  model = roberta(Config({**usual, **known, 'type_vocab_size': 1}), 'esm')
  if c.get('position_embedding_type') == 'rotary':
    rotary = {'base': c.get('rope_theta', 10_000.0)}
    model = model.replace(position=[{'rotary': rotary}])
  else:
    c.refuse(position_embedding_type='absolute')
  options = {'input_norm': c.get('emb_layer_norm_before', False)}
  if c.get('token_dropout', False):
    # As many tokens as were no [MASK] in its training.
    options |= {'input_scale': 1 - 0.15 * 0.8}
    options |= {'token_dropout_id': c['mask_token_id']}
  norms = {'norm_attention': 'attention.LayerNorm', 'norm_mlp': 'LayerNorm'}
  return model.replace(
    encoder=options,
    num_token_types=0,
    block=Choice('pre', model.block.options),
    rows={
      **of_layers(norms),
      'encoder/norm_in': 'embeddings.layer_norm',
      'encoder/norm_out': 'encoder.emb_layer_norm_after',
    },
    ignored=(*model.ignored, '*inv_freq', '*contact_head.regression.*'),
  )


def roformer(c: Config) -> Model:
  """RoFormer (Su et al. 2021): positions by rotation."""
  c.refuse(rotary_value=False)
  width = c.get('embedding_size', c['hidden_size'])
  model = encoder(c, 'roformer', 0 if width == c['hidden_size'] else width)
  act = activation(c.get('hidden_act', 'gelu'))
  return model.replace(
    position=[{'rotary': {'layout': 'interleaved'}}],
    head=model.head.with_options(activation=act),
    heads=ROBERTA_HEAD,
    ignored=(*model.ignored, '*encoder.embed_positions.weight'),
  )
