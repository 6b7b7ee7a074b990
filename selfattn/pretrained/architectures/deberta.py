"""DeBERTa, versions 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping

from selfattn.pretrained.architectures.bert import (
  EMBEDDINGS,
  encoder,
  of_layers,
)
from selfattn.pretrained.fields import activation
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import From, Model

TERMS = {
  ('c2p', 'p2c'): 'both',
  ('c2p',): 'content_to_position',
  ('p2c',): 'position_to_content',
}
TABLE = {
  'table': 'encoder.rel_embeddings.weight',
  'norm_scale': 'encoder.LayerNorm.weight',
  'norm_bias': 'encoder.LayerNorm.bias',
}
LM_HEAD = {
  'vocabulary_head/dense': 'lm_predictions.lm_head.dense',
  'vocabulary_head/norm': 'lm_predictions.lm_head.LayerNorm',
  'vocabulary_head/bias': 'lm_predictions.lm_head.bias',
}


def deberta(c: Config) -> Model:
  """DeBERTa (He et al. 2021)."""
  c.refuse(talking_head=False)
  names = {
    'key': 'attention.self.pos_proj',
    'query': 'attention.self.pos_q_proj',
  }
  rows = of_layers(of_position('attention', names))
  joined = 'encoder.layer.*.attention.self'
  for part, name in enumerate(('query', 'key', 'value')):
    kernel = From(f'{joined}.in_proj.weight', part, c['num_attention_heads'])
    path, bias = f'encoder/block_*/attention/{name}', f'{name[0]}_bias'
    rows |= {f'{path}/kernel': kernel, f'{path}/bias': f'{joined}.{bias}'}
  model = disentangled(c, {'projection_bias': 'query'})
  return model.replace(encoder={'use_key_bias': False}, rows=rows)


def deberta_v2(c: Config) -> Model:
  """DeBERTa v2 and v3 (He et al. 2021, 2023): distances in buckets."""
  c.refuse(conv_kernel_size=0)
  options = {
    'num_buckets': max(c.get('position_buckets', -1), 0),
    'share_projections': c.get('share_att_key', False),
    'projection_bias': 'both',
    'table_norm': 'layer_norm' in c.get('norm_rel_ebd', 'none').lower(),
    'eps': c.get('layer_norm_eps', 1e-7),
  }
  sides = ('query', 'key', 'value')
  names = {f'attention/{n}': f'attention.self.{n}_proj' for n in sides}
  tables = {n: f'attention.self.pos_{n}_proj' for n in sides[:2]}
  rows = of_layers(names | of_position('attention', tables))
  return disentangled(c, options).replace(rows=rows)


def of_position(before: str, names: Mapping[str, str]) -> dict[str, str]:
  """Rows of the position method, alone and as a part of a join."""
  return {
    f'{before}/position/{part}{ours}': theirs
    for part in ('', 'deberta/')
    for ours, theirs in names.items()
  }


def disentangled(c: Config, options: Mapping) -> Model:
  """What the versions share.

  Args:
    options: of the position method.
  """
  D = c['hidden_size']
  head_dim = D // c['num_attention_heads']
  c.refuse(embedding_size=D, pooler_hidden_size=D, attention_head_size=head_dim)
  usual = c.with_defaults(layer_norm_eps=1e-7, type_vocab_size=0)
  model = encoder(usual, 'deberta')
  is_biased = c.get('position_biased_input', True)
  position, rows = model.position[0] if is_biased else {}, {}
  terms = c.get('pos_att_type', [])
  if isinstance(terms, str):
    terms = [term.strip() for term in terms.lower().split('|')]
  if c.get('relative_attention', False):
    if tuple(sorted(terms)) not in TERMS:
      raise ValueError(f'config.json: pos_att_type = {terms} is not supported')
    distance = c.get('max_relative_positions', -1)
    if distance < 1:
      distance = c.get('max_position_embeddings', 512)
    known = {'max_distance': distance, 'terms': TERMS[tuple(sorted(terms))]}
    position = {**position, 'deberta': {**known, **options}}
    learned = {'learned/table': EMBEDDINGS['encoder/position/table']}
    rows = of_position('encoder', TABLE | learned)
  else:
    c.refuse(pos_att_type=[])
  act = activation(c.get('pooler_hidden_act', 'gelu'))
  head = {} if c.get('legacy', True) else LM_HEAD
  return model.replace(
    position=[position or {'none': {}}],
    head=model.head.with_options(activation=act),
    rows=rows,
    heads={'head/dense': 'pooler.dense', **head},
  )
