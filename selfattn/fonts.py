"""Fonts of texts in figures, in any script.

matplotlib is imported only for drawing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def _characters(path: str) -> frozenset[int]:
  """Code points that a font has."""
  from matplotlib import font_manager

  return frozenset(font_manager.get_font(path).get_charmap())


def families(texts: Iterable[str]) -> tuple[list[str], str]:
  """The families that have the characters of texts, and those that none has.

  The first is matplotlib's default; the others are installed fonts with what it
  lacks. matplotlib draws a character in the first family that has it. Since
  3.11 it also orders texts that run from right to left.
  """
  from matplotlib import font_manager

  default = font_manager.FontProperties()
  found = list(default.get_family())
  characters = {ord(c) for c in set().union(*texts) if c.isprintable()}
  missing = characters - _characters(font_manager.findfont(default))
  if not missing:
    return found, ''
  names = {
    font.name
    for font in font_manager.fontManager.ttflist
    if (font.style, font.weight) == ('normal', 400)
  }
  fonts = {
    name: _characters(font_manager.findfont(name))
    for name in sorted(names)
    # The last resort has a box for every character.
    if not name.startswith('Last Resort')
  }
  while missing:
    best = max(fonts, key=lambda name: len(fonts[name] & missing))
    if not fonts[best] & missing:
      break
    found.append(best)
    missing -= fonts[best]
  return found, ''.join(map(chr, sorted(missing)))


def token_style(tokens: Sequence[str]) -> dict:
  """Style of tokens on an axis: no formulas, in fonts with their characters."""
  found, _ = families(tokens)
  # A dollar sign in a token is not a formula.
  return {'parse_math': False, 'fontsize': 7, 'fontfamily': found}
