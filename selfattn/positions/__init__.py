"""Position methods, each a frozen dataclass of pure functions.

To add a method: a class in this folder with its options as fields, a line in
POSITIONS, a row in test_positions.py and in the table of the README. In tests,
broadcasting to a higher rank is an error: write axes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfattn.layers import period
from selfattn.positions.absolute import ComplexOrder, Learned, Sinusoidal
from selfattn.positions.accumulated import Carope, Grape, Selective
from selfattn.positions.additive import GrapeA, GrapeAp, Inkling
from selfattn.positions.biases import (
  T5,
  Alibi,
  Kerple,
  Sandwich,
)
from selfattn.positions.combined import Combined
from selfattn.positions.contextual import Cope, Dape, Forgetting
from selfattn.positions.contract import (
  NoPosition,
  Position,
  check_positions,
  require_one_of,
)
from selfattn.positions.deberta import Deberta
from selfattn.positions.disentangled import TransformerXL, Tupe
from selfattn.positions.lie import LieRe
from selfattn.positions.local import Convolutional, Recurrent
from selfattn.positions.networks import Continuous, Fire
from selfattn.positions.path import Path
from selfattn.positions.predicted import RePo
from selfattn.positions.relative import MusicTransformer, Shaw
from selfattn.positions.rotary import Pope, Rotary, XPos
from selfattn.positions.some_heads import limited
from selfattn.positions.wall import Wall

POSITIONS: dict[str, type[Position]] = {
  'none': NoPosition,
  'sinusoidal': Sinusoidal,
  'learned': Learned,
  'shaw': Shaw,
  'music_transformer': MusicTransformer,
  't5': T5,
  'alibi': Alibi,
  'rotary': Rotary,
  'kerple': Kerple,
  'fire': Fire,
  'continuous': Continuous,
  'complex_order': ComplexOrder,
  'pope': Pope,
  'cope': Cope,
  'forgetting': Forgetting,
  'transformer_xl': TransformerXL,
  'deberta': Deberta,
  'tupe': Tupe,
  'xpos': XPos,
  'lie_re': LieRe,
  'sandwich': Sandwich,
  'dape': Dape,
  'path': Path,
  'selective': Selective,
  'grape': Grape,
  'carope': Carope,
  'repo': RePo,
  'grape_a': GrapeA,
  'grape_ap': GrapeAp,
  'inkling': Inkling,
  'wall': Wall,
  'convolutional': Convolutional,
  'recurrent': Recurrent,
}
"""Position methods by name.

Examples:
  >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
  >>> sizes = {'embed_dim': 12, 'num_heads': 3, 'causal': False}
  >>> alibi = selfattn.POSITIONS['alibi'](**sizes)
  >>> selfattn.attend(q_BLHK, k_BMHK, v_BMHK, position=alibi)[0].shape
  (2, 5, 3, 4)
"""
ALIASES = {'rope': 'rotary', 'cpb': 'continuous', 'cable': 'forgetting'}
"""Second names of position methods.

CABLE has the bias of `forgetting`; its published code does not scale the
scores, besides.

Examples:
  >>> selfattn.positions.ALIASES['rope']
  'rotary'
"""


def make(
  blocks: Mapping[str, Mapping],
  embed_dim: int,
  num_heads: int,
  causal: bool,
  vocab_size: int | None = None,
  head_width: int | None = None,
) -> Position:
  """A method, or several at once.

  Args:
    blocks: options by name of POSITIONS or ALIASES; several names are combined.
    embed_dim, num_heads, causal, vocab_size, head_width: see Position.

  Raises:
    ValueError: no name, an unknown one, or one method by two names;
      `NAME.OPTION = VALUE must be ...`; several methods rotate.
    TypeError: an unknown option.

  Examples:
    >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
    >>> sizes = {'embed_dim': 12, 'num_heads': 3, 'causal': False}
    >>> method = selfattn.positions.make({'rotary': {'base': 500.0}}, **sizes)
    >>> selfattn.attend(q_BLHK, k_BMHK, v_BMHK, position=method)[0].shape
    (2, 5, 3, 4)
  """
  if not blocks:
    raise ValueError("no position method is named; 'none' is one")
  parts, sizes = {}, (embed_dim, num_heads, causal)
  known = {'vocab_size': vocab_size, 'head_width': head_width}
  for alias, options in blocks.items():
    # A table may have an entry of a second name.
    name = alias if alias in POSITIONS else ALIASES.get(alias, alias)
    require_one_of(POSITIONS, 'name', name)
    if name in parts:
      raise ValueError(f'{" and ".join(blocks)} are one method: name it once')
    try:
      parts[name] = POSITIONS[name](*sizes, **known, **options)
    except ValueError as error:
      raise ValueError(f'{name}.{error}') from None
  return joined(parts)


def joined(parts: Mapping[str, Position]) -> Position:
  """Several methods as one; parameters of each are under its name.

  Methods with `heads` act on so many heads each, the first of them on the first
  heads, the next on those that follow.

  Args:
    parts: methods of the same sizes by name, at least one.

  Raises:
    ValueError: several methods rotate, or have more heads than there are.

  Examples:
    >>> sizes = {'embed_dim': 12, 'num_heads': 3, 'causal': False}
    >>> parts = {
    ...   name: selfattn.POSITIONS[name](**sizes) for name in ('rotary', 't5')
    ... }
    >>> sorted(selfattn.positions.joined(parts).hooks)
    ['bias', 'rotate']
  """
  parts, taken = dict(parts), 0
  for name, part in parts.items():
    try:
      parts[name] = limited(part, taken)
    except ValueError as error:
      raise ValueError(f'{name}.{error}') from None
    taken += part.heads
  first, *others = parts.values()
  if not others:
    return first
  rotating = [name for name, part in parts.items() if 'rotate' in part.hooks]
  if len(rotating) > 1:
    # A rotation is defined for queries and keys that are not yet rotated.
    raise ValueError(f'{"+".join(parts)} must join one of {rotating} only')
  return Combined(
    first.embed_dim,
    first.num_heads,
    first.causal,
    tuple(parts.items()),
    vocab_size=first.vocab_size,
    head_width=first.head_width,
  )


def layered(entries: Sequence[Mapping[str, Position]]) -> Position:
  """A pattern over layers: entry n is that of layers n, n + len(entries), ...

  Equal methods of several entries are one, and share their parameters, so that
  a pattern of equal entries is the method itself.

  Args:
    entries: of each of the first layers, methods to join by name.

  Raises:
    ValueError: see `joined`; or a method adds to the input of the encoder, once
      for all layers, and is not in every entry.

  Examples:
    >>> sizes = {'embed_dim': 12, 'num_heads': 3, 'causal': False}
    >>> rotary, none = (
    ...   selfattn.POSITIONS[name](**sizes) for name in ('rotary', 'none')
    ... )
    >>> entries = [{'rotary': rotary}, {'none': none}]
    >>> method = selfattn.positions.layered(entries)
    >>> [list(method.of_layer(index).hooks) for index in range(4)]
    [['rotate'], [], ['rotate'], []]
  """
  by_name: dict[str, Position] = {}
  layers = []
  for entry in entries:
    single = joined(entry)
    parts = single.parts if len(entry) > 1 else ((next(iter(entry)), single),)
    names = []
    for label, part in parts:
      same = (name for name, known in by_name.items() if known == part)
      is_taken = label in by_name
      name = next(same, f'{label}_{len(by_name)}' if is_taken else label)
      by_name[name] = part
      names.append(name)
    layers.append(tuple(names))
  size = period(layers)
  if size == 1:
    return joined(entries[0])
  for name, part in by_name.items():
    is_of_input = 'embed' in part.hooks and not part.per_layer
    if is_of_input and not all(name in names for names in layers):
      raise ValueError(
        f'{name} adds positions to the input of the encoder, for all layers at '
        'once: join it to every entry of the pattern, or to none'
      )
  first = next(iter(by_name.values()))
  return Combined(
    first.embed_dim,
    first.num_heads,
    first.causal,
    tuple(by_name.items()),
    tuple(layers[:size]),
    vocab_size=first.vocab_size,
    head_width=first.head_width,
  )


__all__ = [
  'ALIASES',
  'POSITIONS',
  'Combined',
  'NoPosition',
  'Position',
  'check_positions',
  'joined',
  'layered',
  'make',
]
