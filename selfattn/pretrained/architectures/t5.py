"""The encoders of T5, mT5 and UMT5."""

from __future__ import annotations

from selfattn.pretrained.architectures.bert import of_layers
from selfattn.pretrained.fields import (
  activation,
  dropout_rates,
  gated,
  sizes,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Choice, Model

BIAS = 'layer.0.SelfAttention.relative_attention_bias.weight'
LAYERS = {
  'attention/query': 'layer.0.SelfAttention.q',
  'attention/key': 'layer.0.SelfAttention.k',
  'attention/value': 'layer.0.SelfAttention.v',
  'attention/out': 'layer.0.SelfAttention.o',
  'attention/position/table': BIAS,
  'norm_attention': 'layer.0.layer_norm',
  'norm_mlp': 'layer.1.layer_norm',
  'mlp_out': 'layer.1.DenseReluDense.wo',
}
# The first map, and the second one of a gated network.
PLAIN = {'mlp_in': 'layer.1.DenseReluDense.wi'}
GATED = {
  'mlp_in': 'layer.1.DenseReluDense.wi_0',
  'mlp_gated': 'layer.1.DenseReluDense.wi_1',
}


def t5(c: Config, network: str = 'relu', shared: bool = True) -> Model:
  """T5 (Raffel et al. 2020): the encoder, without its decoder.

  Args:
    network: that of a config.json which does not say.
    shared: whether all layers have the biases of distances of the first one.
  """
  c.refuse(is_decoder=False)
  *are_gated, act = c.get('feed_forward_proj', network).split('-')
  if are_gated:
    # Theirs is the approximation by tanh.
    act = gated('gelu_new' if act == 'gelu' else act)
  else:
    act = activation(act)
  H, K, D = c['num_attention_heads'], c.get('head_dim', 64), c['hidden_size']
  return Model(
    **sizes(c),
    **dropout_rates(c, 0.1),
    encoder={
      'head_dim': 0 if D == H * K else K,
      'use_bias': False,
      'scale': 1.0,
    },
    block=Choice(
      'pre',
      {
        'feed_forward': act,
        'use_bias': False,
        'norm': 'rms',
        'eps': c.get('layer_norm_epsilon', 1e-6),
        'hidden_dropout': True,
      },
    ),
    position=[
      {
        't5': {
          'num_buckets': c.get('relative_attention_num_buckets', 32),
          'max_distance': c.get('relative_attention_max_distance', 128),
          'shared': shared,
        }
      }
    ],
    prefix='',
    # The class with such a head puts another prefix before all names.
    word_head='',
    rows={
      'embed': 'shared',
      'encoder/position/table': f'encoder.block.0.{BIAS}',
      'encoder/norm_out': 'encoder.final_layer_norm',
      **of_layers(
        {**LAYERS, **(GATED if are_gated else PLAIN)}, 'encoder.block'
      ),
    },
    twins={'encoder.embed_tokens.weight': 'shared.weight'},
    ignored=('*embed_tokens.weight',),
  )


def mt5(c: Config) -> Model:
  """mT5 (Xue et al. 2021): T5 with a gated network."""
  return t5(c, 'gated-gelu')


def umt5(c: Config) -> Model:
  """UMT5 (Chung et al. 2023): layers have biases of distances of their own."""
  return t5(c, 'gated-gelu', shared=False)
