"""What an algorithmic task is, and strings drawn from one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Task:
  """An algorithmic task.

  Attributes:
    write: maps (generator, length) to tokens and label.
    twin: maps (generator, tokens) to the same tokens in another order, with
      another label, and that label: a minimal pair. Both are in the data, one
      after the other, so that a model without positions is right in half of
      the strings at most.
    has_token_labels: whether a label is one of tokens, see
      experiments.data.token_labels.
  """

  write: Callable
  twin: Callable | None = None
  has_token_labels: bool = False


def strings(
  task: Task, rng, lengths: tuple[int, int], count: int
) -> list[tuple[str, str]]:
  """`count` pairs (text, label), with lengths uniform in [first, last].

  Lengths that a task does not have are skipped.
  """
  pairs = []
  while len(pairs) < count:
    length = int(rng.integers(lengths[0], lengths[1] + 1))
    tokens, label = task.write(rng, length)
    if not lengths[0] <= len(tokens) <= lengths[1]:
      continue
    pairs.append((' '.join(tokens), label))
    if task.twin is not None:
      twin, other = task.twin(rng, tokens)
      pairs.append((' '.join(twin), other))
  return pairs[:count]


def choose(rng, letters: str, count: int) -> list[str]:
  """`count` letters, uniform."""
  return [letters[index] for index in rng.integers(len(letters), size=count)]
