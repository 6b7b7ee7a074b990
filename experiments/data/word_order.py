"""Sentences whose label depends on word order only.

Two clauses of opposite sentiment are joined by a conjunction, which determines
the clause that decides the label:

  positive  the plot was dull but the acting was fine
  negative  the acting was fine but the plot was dull

Every sentence has a twin, and they form a minimal pair: the same words, with
the clauses exchanged and the other label. So a bag of words, or an encoder
without positions, is correct on exactly one of each pair.
"""

from __future__ import annotations

import numpy as np

_SUBJECTS = (
  'plot', 'acting', 'music', 'ending', 'script', 'camera work', 'dialogue',
  'opening scene', 'pace', 'story', 'cast', 'humour', 'costume design',
  'final act', 'villain', 'hero', 'editing', 'sound', 'second half', 'idea',
)  # fmt: skip
_VERBS = ('was', 'seemed', 'felt', 'looked', 'proved', 'turned out')
_DEGREES = ('', '', 'very', 'quite', 'rather', 'truly', 'a little')
_GOOD = (
  'fine', 'great', 'clever', 'moving', 'sharp', 'fresh', 'lovely', 'funny',
  'bright', 'tender', 'gripping', 'elegant',
)  # fmt: skip
_BAD = (
  'dull', 'weak', 'clumsy', 'flat', 'stale', 'awkward', 'tedious', 'shallow',
  'noisy', 'messy', 'lifeless', 'crude',
)  # fmt: skip
# Conjunctions, and the index of the clause that decides the label.
_JOINS = (
  ('{} but {}', 1),
  ('{} yet {}', 1),
  ('{} although {}', 0),
  ('although {} , {}', 1),
  ('{} , and still {}', 1),
  ('{} even though {}', 0),
)


def twin_pairs(num_pairs: int, seed: int) -> list[tuple[str, str]]:
  """Distinct pairs (positive sentence, its negative twin)."""
  rng = np.random.default_rng(seed)
  pairs: dict[tuple[str, str], None] = {}
  while len(pairs) < num_pairs:
    pairs[_pair(rng)] = None
  return list(pairs)


def _pair(rng) -> tuple[str, str]:
  subjects = rng.permutation(len(_SUBJECTS))[:2]
  good = _clause(rng, subjects[0], _GOOD)
  bad = _clause(rng, subjects[1], _BAD)
  join, decides = _JOINS[rng.integers(len(_JOINS))]
  clauses = (bad, good) if decides == 1 else (good, bad)
  return join.format(*clauses), join.format(*clauses[::-1])


def _clause(rng, subject: int, adjectives: tuple[str, ...]) -> str:
  words = (
    'the',
    _SUBJECTS[subject],
    _VERBS[rng.integers(len(_VERBS))],
    _DEGREES[rng.integers(len(_DEGREES))],
    adjectives[rng.integers(len(adjectives))],
  )
  return ' '.join(word for word in words if word)
