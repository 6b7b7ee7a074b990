"""Spans of words, as labels B-PER, I-PER and O write them; on the host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LABEL = re.compile(r'O|[BIESLU](-.+)?')
# The label of spans that have none, as seqeval calls it.
_NO_LABEL = '_'


class Span(NamedTuple):
  """Words from `begin` to before `end` of a text."""

  label: str
  begin: int
  end: int


def are_parts(names: Iterable[str]) -> bool:
  """Whether classes are parts of spans: B-LABEL, I-, E-, S- and O.

  BILOU writes L- for E-, and U- for S-. Spans may have no label: B, I and O.
  """
  names = set(names)
  bare = names & set('BIESLU')
  return (
    bool(names - {'O'})
    and all(map(_LABEL.fullmatch, names))
    # Other letters are classes by themselves.
    and (not bare or {'B', 'O'} <= names)
  )


def label_of(name: str) -> str:
  """The label of the spans of which a class is a part, which is not O."""
  return name.partition('-')[2] or _NO_LABEL


def of_words(labels: Sequence[str | None]) -> list[Span]:
  """The spans of a text; a word that is not read is in none.

  I-LABEL goes on with a span of the label, and begins one where there is none:
  as conlleval reads IOB1 and IOB2, and seqeval by default.
  """
  spans: list[Span] = []
  is_open = False
  for index, name in enumerate(labels):
    if name in (None, 'O'):
      is_open = False
      continue
    part, label = name[0], label_of(name)
    if is_open and part in 'IEL' and spans[-1].label == label:
      spans[-1] = spans[-1]._replace(end=index + 1)
    else:
      spans.append(Span(label, index, index + 1))
    is_open = part in 'BI'
  return spans
