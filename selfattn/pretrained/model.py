"""What an architecture is: choices of this package, and where weights are.

Nothing here reads a file. An architecture is a function from the fields of a
config.json to a Model, and `module` makes that a TextClassifier.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from selfattn import positions
from selfattn.blocks import BLOCKS
from selfattn.classifier import TextClassifier
from selfattn.encoders import AttentionEncoder
from selfattn.feed_forward import Experts
from selfattn.heads import HEADS, Identity, TokenHead, VocabularyHead
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions.contract import require_one_of


@dataclasses.dataclass(frozen=True)
class Choice:
  """An entry of a table, by name, with its options.

  Attributes:
    name: of the table.
    options: by name, those that differ from their defaults or not.

  Examples:
    >>> block = pretrained.Choice('pre', {'norm': 'rms'})
    >>> block.with_options(feed_forward='swiglu').options
    {'norm': 'rms', 'feed_forward': 'swiglu'}
  """

  name: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def with_options(self, **options) -> Choice:
    """A Choice of the same entry of its table, with further options."""
    return Choice(self.name, {**self.options, **options})


@dataclasses.dataclass(frozen=True)
class From:
  """Where a parameter is in a file.

  Attributes:
    name: of the tensor, or of the module that it belongs to; * is the number of
      the layer, and + counts tensors that are stacked on the first axis.
    part: which part of the tensor it is, of several parameters that are joined
      in the order of their parts.
    groups: the output channels are so many groups, each of which has some of
      every part: 1 where whole parts stand one after another.
    transposes: whether the last axis of the tensor is the input, as that of
      torch.nn.Linear. Vectors and tables have no such axis.

  Examples:
    >>> value = pretrained.From('layers.*.attention.query_key_value', part=2)
    >>> value.transposes
    True
  """

  name: str
  part: int = 0
  groups: int = 1
  transposes: bool = True


Rows = Mapping[str, str | From]


@dataclasses.dataclass(frozen=True)
class Model:
  """A published model as choices of this package.

  Attributes:
    vocab_size, num_layers, num_heads, embed_dim, mlp_dim: V, number of blocks,
      H, D, F.
    encoder: options of AttentionEncoder.
    block: of BLOCKS.
    position: of each of the first layers, methods that are joined; repeated.
    normaliser: of each of the first layers, of NORMALISERS; repeated.
    experts: options of Experts, or None.
    num_token_types: see TextClassifier.
    pool, head: of POOLS and HEADS, for one prediction per text; options of the
      pool are those of such a head alone.
    vocabulary_head: options of VocabularyHead, for one per token.
    dropout_rate, attention_dropout_rate: those of its config.
    prefix: name of the part of the model that has no head, which may or may not
      begin the names of its tensors in a file.
    rows: where parameters are, by the path of a parameter or of the module that
      has it; block_* are all blocks. `head` and `vocabulary_head` are those of
      the heads. Names of tensors do not begin with the prefix.
    heads: names of modules in the file that are no part of `prefix`.
    word_head: that of a TokenHead, for one prediction per word; '': there is
      none that is an affine function.
    twins: names that a file may have in place of another, or beside it for the
      same tensor. Those of a tied output layer and of the embeddings need not
      be among them.
    ignored: names in the file that hold no parameter, as patterns of fnmatch.
    constants: names in the file, each of all layers, that hold a number which
      is the same in all files.

  Examples:
    >>> model = pretrained.read_model(folder)
    >>> model.embed_dim, model.num_heads, model.block.options['feed_forward']
    (12, 3, 'swiglu')
  """

  vocab_size: int
  num_layers: int
  num_heads: int
  embed_dim: int
  mlp_dim: int
  encoder: Mapping[str, Any]
  block: Choice
  position: Sequence[Mapping[str, Mapping[str, Any]]]
  rows: Rows
  normaliser: Sequence[Choice] = (Choice('softmax'),)
  experts: Mapping[str, Any] | None = None
  num_token_types: int = 0
  pool: Choice = Choice('mean')
  head: Choice = Choice('linear')
  vocabulary_head: Mapping[str, Any] | None = None
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  prefix: str = 'model'
  heads: Rows = dataclasses.field(default_factory=dict)
  word_head: str = 'classifier'
  twins: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: Sequence[str] = ()
  constants: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def replace(self, **changes) -> Model:
    """A copy; of a field that is a mapping, with these entries added."""
    for name, change in changes.items():
      before = getattr(self, name)
      if isinstance(before, Mapping) and isinstance(change, Mapping):
        changes[name] = {**before, **change}
    return dataclasses.replace(self, **changes)


def module(
  model: Model,
  head: str = 'vocabulary',
  num_classes: int = 1,
  dtype: jnp.dtype = jnp.float32,
) -> TextClassifier:
  """The Flax module of a model, without parameters.

  Args:
    head: 'vocabulary', logits of each token; 'text', logits of each text;
      'words', logits of each token for classes; or 'none', the pooled vector of
      each text.
    num_classes: of a head for texts, or for words.
    dtype: of the computation.

  Raises:
    ValueError: an option is out of range, or there is no such head.

  Examples:
    >>> model = pretrained.read_model(folder)
    >>> made = pretrained.module(model, head='text', num_classes=3)
    >>> made.num_classes
    3
  """
  causal, H = bool(model.encoder.get('causal', False)), model.num_heads
  K = model.encoder.get('head_dim') or model.embed_dim // H
  width = model.encoder.get('token_dim') or model.embed_dim
  sizes = {'embed_dim': width, 'num_heads': H, 'causal': causal}
  known = {'vocab_size': model.vocab_size, 'head_width': K}
  position = positions.layered(
    [
      {
        name: positions.POSITIONS[name](**sizes, **known, **options)
        for name, options in of_layer.items()
      }
      for of_layer in model.position
    ]
  )
  normalisers = tuple(
    NORMALISERS[one.name](H, head_dim=K, **one.options)
    for one in model.normaliser
  )
  block = BLOCKS[model.block.name](**model.block.options, parent=None)
  block.check()
  encoder = AttentionEncoder(
    num_layers=model.num_layers,
    num_heads=H,
    mlp_dim=model.mlp_dim,
    position=position,
    normaliser=normalisers,
    block=block,
    experts=model.experts and Experts(**model.experts),
    embed_dim=model.embed_dim,
    dtype=dtype,
    parent=None,
    **model.encoder,
  )
  encoder.check(model.embed_dim, drops_weights=False, platform=None)
  require_one_of(('vocabulary', 'text', 'words', 'none'), 'head', head)
  token_head, of_text = None, Identity(parent=None)
  pool = POOLS[model.pool.name](parent=None)
  if head == 'text':
    pool = POOLS[model.pool.name](**model.pool.options, parent=None)
    of_text = HEADS[model.head.name](**model.head.options, parent=None)
  elif head == 'vocabulary':
    if model.vocabulary_head is None:
      raise ValueError("this model has no output layer: head must be 'text'")
    made = VocabularyHead(**model.vocabulary_head, parent=None)
    token_head = {'vocabulary': made}
  elif head == 'words':
    if not model.word_head:
      raise ValueError(
        'the head for words of this architecture is not supported: head must '
        "not be 'words'"
      )
    token_head = {'words': TokenHead(num_classes, parent=None)}
  return TextClassifier(
    vocab_size=model.vocab_size,
    num_classes=num_classes,
    embed_dim=model.embed_dim,
    encoder=encoder,
    pool=pool,
    head=of_text,
    num_token_types=model.num_token_types,
    token_head=token_head,
    dtype=dtype,
  )
