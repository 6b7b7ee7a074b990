"""Position methods, each a frozen dataclass of pure functions.

A method may fill any of five hooks; attention and the encoder know the hooks
and no method by name:

  embed    added to the tokens
  rotate   turns queries and keys
  bias     added to the scores, a function of the two positions alone
  content  added to the scores, a function of queries, not turned, too
  value    added to the output, a function of the attention weights too

To add a method: a class in this folder with its options as fields, a line in
POSITIONS, a row in test_positions.py and in the README's table. Tests
refuse to broadcast an array to more axes: write them out.
"""

from __future__ import annotations

from collections.abc import Mapping

from selfattn.positions.absolute import Learned, Sinusoidal
from selfattn.positions.biases import T5, Alibi, Continuous, Fire, Kerple
from selfattn.positions.contract import (
  Combined,
  NoPosition,
  Position,
  check_positions,
)
from selfattn.positions.relative import MusicTransformer, Shaw
from selfattn.positions.rotary import Rotary

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
}


def make(
  blocks: Mapping[str, Mapping], embed_dim: int, num_heads: int, causal: bool
) -> Position:
  """A method, or several at once.

  Args:
    blocks: options by name of POSITIONS; several names are combined.
    embed_dim, num_heads, causal: see Position.

  Raises:
    ValueError: `NAME.OPTION = VALUE must be ...`.
  """
  made = {}
  for name, options in blocks.items():
    try:
      method = POSITIONS[name](embed_dim, num_heads, causal, **options)
    except ValueError as error:
      raise ValueError(f'{name}.{error}') from None
    made[name] = method
  if len(made) == 1:
    return method
  return Combined(embed_dim, num_heads, causal, tuple(made.items()))


__all__ = [
  'POSITIONS',
  'Combined',
  'NoPosition',
  'Position',
  'check_positions',
  'make',
]
