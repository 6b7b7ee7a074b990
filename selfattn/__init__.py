"""Self-attention and positional encodings in JAX and Flax.

Axis letters are suffixes of every array that outlives a line:
B batch, L queries, M keys, H heads, K width of a head, D width of the model,
F width of the feed-forward layer, V vocabulary, C classes, G KV heads,
N rows of a table, such as one of distances, P width of a pooled text,
S width of a hidden layer of a head or a pool, T tokens near each one,
R channels that are rotated. A digit is the size of its axis.

Examples of this package begin with

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import selfattn
"""

from selfattn.attention import Attention
from selfattn.backends import BACKENDS, attend
from selfattn.blocks import BLOCKS, Block
from selfattn.chapters import (
  MultiHeadAttention,
  PositionalEncoding,
  SelfAttention,
  scaled_dot_product_attention,
)
from selfattn.classifier import TextClassifier
from selfattn.contract import Encoder
from selfattn.dropout import Bits, Dropout
from selfattn.encoders import ENCODERS, AttentionEncoder, BowEncoder
from selfattn.heads import HEADS, Head
from selfattn.kernels import unsupported_reason
from selfattn.normalisers import NORMALISERS
from selfattn.plots import plot, show_heatmaps
from selfattn.pools import POOLS, Pool
from selfattn.positions import POSITIONS, Combined, Position
from selfattn.positions.sampling import SAMPLINGS
from selfattn.tokens import Tokens

# pyproject.toml, CITATION.cff and the newest section of CHANGELOG.md agree.
__version__ = '0.1.0'

__all__ = [
  'BACKENDS',
  'BLOCKS',
  'ENCODERS',
  'HEADS',
  'NORMALISERS',
  'POOLS',
  'POSITIONS',
  'SAMPLINGS',
  'Attention',
  'AttentionEncoder',
  'Bits',
  'Block',
  'BowEncoder',
  'Combined',
  'Dropout',
  'Encoder',
  'Head',
  'MultiHeadAttention',
  'Pool',
  'Position',
  'PositionalEncoding',
  'SelfAttention',
  'TextClassifier',
  'Tokens',
  'attend',
  'plot',
  'scaled_dot_product_attention',
  'show_heatmaps',
  'unsupported_reason',
]
