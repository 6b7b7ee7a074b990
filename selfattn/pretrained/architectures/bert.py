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
  'encoder/in': 'embeddings_project',
}
POOLER = {'head/dense': 'pooler.dense'}
ROBERTA_HEADS = {
  'head/dense': 'classifier.dense',
  'head': 'classifier.out_proj',
  'vocabulary_head/dense': 'lm_head.dense',
  'vocabulary_head/norm': 'lm_head.layer_norm',
  'vocabulary_head/bias': 'lm_head.bias',
}


def of_layers(rows: Mapping, before: str = 'encoder.layer') -> dict[str, str]:
  """Rows of all layers from those of one."""
  return {
    f'encoder/block_*/{ours}': f'{before}.*.{theirs}'
    for ours, theirs in rows.items()
  }


def encoder(c: Config, prefix: str, width: int = 0) -> Model:
  """What the encoders of this file share.

  Args:
    prefix: see Model.
    width: of embeddings, which a linear map takes to that of the layers; 0:
      that of the layers.
  """
  c.refuse(
    position_embedding_type='absolute',
    is_decoder=False,
    tie_word_embeddings=True,
  )
  eps = c.get('layer_norm_eps', 1e-12)
  act = activation(c.get('hidden_act', 'gelu'))
  return Model(
    **sizes(c),
    encoder={'input_norm': True, 'token_dim': width},
    block=Choice('post', {'feed_forward': act, 'eps': eps}),
    position=[{'learned': {'max_len': c.get('max_position_embeddings', 512)}}],
    num_token_types=c.get('type_vocab_size', 2),
    dropout_rate=c.get('hidden_dropout_prob', 0.1),
    attention_dropout_rate=c.get('attention_probs_dropout_prob', 0.1),
    pool=Choice('first'),
    head=Choice('mlp', {'hidden_dim': c['hidden_size']}),
    vocabulary_head={'activation': act, 'eps': eps},
    prefix=prefix,
    rows={**EMBEDDINGS, **of_layers(LAYERS)},
    heads={
      'head': 'classifier',
      'vocabulary_head/dense': 'cls.predictions.transform.dense',
      'vocabulary_head/norm': 'cls.predictions.transform.LayerNorm',
      'vocabulary_head/bias': 'cls.predictions.bias',
    },
    unused=('*embeddings.position_ids', 'cls.predictions.decoder.*'),
  )


def bert(c: Config, prefix: str = 'bert') -> Model:
  """BERT (Devlin et al. 2019)."""
  return encoder(c, prefix).replace(rows=POOLER)


def ernie(c: Config) -> Model:
  """ERNIE (Sun et al. 2019), which is BERT; 2.0 has embeddings of tasks."""
  c.refuse(use_task_id=False)
  return bert(c, 'ernie')


def bert_generation(c: Config) -> Model:
  """The encoder of BERT2BERT (Rothe et al. 2020), without token types."""
  model = encoder(Config(c, type_vocab_size=0), 'bert')
  return model.replace(vocabulary_head=None)


def megatron_bert(c: Config) -> Model:
  """Megatron-LM's BERT (Shoeybi et al. 2019): norms before the branches."""
  model = pre_norm(bert(c), 'attention.ln', 'ln', 'encoder.ln')
  return model.replace(encoder={'input_norm': False})


def pre_norm(model: Model, attention: str, mlp: str, last: str) -> Model:
  """A model with norms before the branches, which have these names."""
  rows = of_layers({'norm_attention': attention, 'norm_mlp': mlp})
  block = Choice('pre', model.block.options)
  return model.replace(block=block, rows=rows | {'encoder/norm_out': last})


def roberta(c: Config, prefix: str = 'roberta') -> Model:
  """RoBERTa (Liu et al. 2019), and XLM-R, CamemBERT and data2vec.

  Rows of the table of positions up to the id of padding belong to none.
  """
  model = encoder(c, prefix)
  table = model.position[0]['learned']
  first = c.get('pad_token_id', 1) + 1
  return model.replace(
    position=[{'learned': {**table, 'offset': first}}],
    vocabulary_head={'activation': 'gelu_exact'},
    heads=ROBERTA_HEADS,
    unused=('*embeddings.position_ids', 'lm_head.decoder.*'),
  )


def data2vec(c: Config) -> Model:
  """data2vec for text (Baevski et al. 2022)."""
  return roberta(c, 'data2vec_text')


def ibert(c: Config) -> Model:
  """I-BERT (Kim et al. 2021) before it is quantised, which is RoBERTa."""
  c.refuse(quant_mode=False)
  model = roberta(c, 'ibert')
  ranges = ('*_factor', '*_integer', '*.x_max', '*.x_min', '*.shift')
  return model.replace(unused=(*model.unused, *ranges))


def roberta_prelayernorm(c: Config) -> Model:
  """RoBERTa of fairseq with norms before the branches (Ott et al. 2019)."""
  model = roberta(c, 'roberta_prelayernorm')
  names = 'attention.LayerNorm', 'intermediate.LayerNorm', 'LayerNorm'
  return pre_norm(model, *names)


def xlm_roberta_xl(c: Config) -> Model:
  """XLM-R XL (Goyal et al. 2021): norms before the branches."""
  defaults = {'type_vocab_size': 1, 'layer_norm_eps': 1e-5}
  defaults['max_position_embeddings'] = 514
  model = roberta(Config(defaults | c))
  names = 'attention.self_attn_layer_norm', 'LayerNorm', 'encoder.LayerNorm'
  model = pre_norm(model, *names)
  return model.replace(encoder={'input_norm': False})


def distilbert(c: Config) -> Model:
  """DistilBERT (Sanh et al. 2019)."""
  names = {
    'hidden_size': 'dim',
    'num_hidden_layers': 'n_layers',
    'num_attention_heads': 'n_heads',
    'intermediate_size': 'hidden_dim',
    'hidden_act': 'activation',
    'hidden_dropout_prob': 'dropout',
    'attention_probs_dropout_prob': 'attention_dropout',
  }
  usual = {ours: c[name] for ours, name in names.items() if name in c}
  model = encoder(Config({**c, **usual, 'type_vocab_size': 0}), 'distilbert')
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
      'vocabulary_head/dense': 'vocab_transform',
      'vocabulary_head/norm': 'vocab_layer_norm',
      'vocabulary_head/bias': 'vocab_projector.bias',
    },
    unused=('*embeddings.position_ids', 'vocab_projector.weight'),
  )


def electra(c: Config) -> Model:
  """ELECTRA (Clark et al. 2020): embeddings may be narrower than layers."""
  width = c.get('embedding_size', 128)
  model = encoder(c, 'electra', 0 if width == c['hidden_size'] else width)
  return model.replace(
    head=model.head.with_options(activation='gelu_exact'),
    vocabulary_head={'activation': 'gelu_exact'},
    heads={
      **ROBERTA_HEADS,
      'vocabulary_head/dense': 'generator_predictions.dense',
      'vocabulary_head/norm': 'generator_predictions.LayerNorm',
      'vocabulary_head/bias': 'generator_lm_head.bias',
    },
    unused=('*embeddings.position_ids', 'generator_lm_head.weight'),
  )


def mpnet(c: Config) -> Model:
  """MPNet (Song et al. 2020): RoBERTa with the relative biases of T5."""
  c.refuse(relative_attention_num_buckets=32)
  # Whatever the config says of padding.
  model = roberta(
    Config({**c, 'pad_token_id': 1, 'type_vocab_size': 0}), 'mpnet'
  )
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
  return model.replace(position=position, rows=of_layers(rows) | tables)


def albert(c: Config) -> Model:
  """ALBERT (Lan et al. 2020): all layers share their parameters."""
  c.refuse(num_hidden_groups=1, inner_group_num=1)
  defaults = {'hidden_act': 'gelu_new', 'hidden_dropout_prob': 0.0}
  defaults['attention_probs_dropout_prob'] = 0.0
  model = encoder(Config(defaults | c), 'albert', c.get('embedding_size', 128))
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
    heads={
      'vocabulary_head/dense': 'predictions.dense',
      'vocabulary_head/norm': 'predictions.LayerNorm',
      'vocabulary_head/bias': 'predictions.bias',
    },
    unused=('*embeddings.position_ids', 'predictions.decoder.*'),
  )


def rembert(c: Config) -> Model:
  """RemBERT (Chung et al. 2021): wide output embeddings of their own."""
  defaults = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
  c.refuse(tie_word_embeddings=False)
  c = Config({**defaults, **c, 'tie_word_embeddings': True})
  model = encoder(c, 'rembert', c.get('input_embedding_size', 256))
  width = c.get('output_embedding_size', 1664)
  return model.replace(
    vocabulary_head={'tied': False, 'transform_dim': width},
    rows={'encoder/in': 'encoder.embedding_hidden_mapping_in', **POOLER},
    heads={
      'vocabulary_head/dense': 'cls.predictions.dense',
      'vocabulary_head/norm': 'cls.predictions.LayerNorm',
      'vocabulary_head/kernel': 'cls.predictions.decoder.weight',
      'vocabulary_head/bias': 'cls.predictions.decoder.bias',
    },
    unused=('*embeddings.position_ids',),
  )


def esm(c: Config) -> Model:
  """ESM-1b and ESM-2 (Rives et al. 2021; Lin et al. 2023), without contacts."""
  c.refuse(is_folding_model=False)
  known = {'position_embedding_type': 'absolute', 'hidden_act': 'gelu'}
  usual = {'max_position_embeddings': 1026}
  model = roberta(Config({**usual, **c, **known, 'type_vocab_size': 0}), 'esm')
  if c.get('position_embedding_type') == 'rotary':
    rotary = {'base': c.get('rope_theta', 10_000.0)}
    model = model.replace(position=[{'rotary': rotary}])
  else:
    c.refuse(position_embedding_type='absolute')
  names = 'attention.LayerNorm', 'LayerNorm', 'encoder.emb_layer_norm_after'
  options = {'input_norm': c.get('emb_layer_norm_before', False)}
  if c.get('token_dropout', False):
    # As many tokens as were no [MASK] in its training.
    options |= {'input_scale': 1 - 0.15 * 0.8}
    options |= {'token_dropout_id': c['mask_token_id']}
  return pre_norm(model, *names).replace(
    encoder=options,
    rows={'encoder/norm_in': 'embeddings.layer_norm'},
    unused=(*model.unused, '*inv_freq', '*contact_head.regression.*'),
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
    heads={n: ROBERTA_HEADS[n] for n in ('head', 'head/dense')},
    unused=(*model.unused, '*encoder.embed_positions.weight'),
  )
