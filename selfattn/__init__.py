"""Self-attention and positional encodings in JAX and Flax.

Axis letters are suffixes of every array that outlives a line:
B batch, L query position, M key position, H heads, K width of a head,
D width of the model, F width of the feed-forward layer, V vocabulary,
C classes.
"""

from selfattn.attention import BACKENDS, Attention, attend
from selfattn.chapters import (
  MultiHeadAttention,
  PositionalEncoding,
  SelfAttention,
  scaled_dot_product_attention,
)
from selfattn.classifier import POOLS, TextClassifier
from selfattn.dropout import Dropout
from selfattn.encoders import ENCODERS, AttentionEncoder, BagEncoder
from selfattn.plots import plot, show_heatmaps
from selfattn.positions import POSITIONS, Position

__all__ = [
  'BACKENDS',
  'ENCODERS',
  'POOLS',
  'POSITIONS',
  'Attention',
  'AttentionEncoder',
  'BagEncoder',
  'Dropout',
  'MultiHeadAttention',
  'Position',
  'PositionalEncoding',
  'SelfAttention',
  'TextClassifier',
  'attend',
  'plot',
  'scaled_dot_product_attention',
  'show_heatmaps',
]
