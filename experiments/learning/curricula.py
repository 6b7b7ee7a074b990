"""Curricula: how many tokens of a text training reads, by step."""

from __future__ import annotations

import dataclasses
import operator
from typing import SupportsIndex

from experiments.command.errors import UserError, require
from experiments.data.batches import Batch


@dataclasses.dataclass(frozen=True)
class Whole:
  """All tokens of a text, and the contract of an entry of CURRICULA.

  Fields are options of the entry.
  """

  def longest(self, progress: float, most: int) -> int:
    """Tokens that a text is cut to, at least 1.

    Each number is a program of its own, so they should be few.

    Args:
      progress: share of the steps of the run that are done, below 1.
      most: tokens of the longest text of the data.
    """
    del progress
    return most


@dataclasses.dataclass(frozen=True)
class Longer(Whole):
  """Lengths that double, each for as many steps (Li et al. 2022, section 4).

  Attributes:
    start: tokens at the first step.
    over: share of the steps after which texts have all their tokens.
  """

  start: int = 32
  over: float = 0.5

  def __post_init__(self):
    require(self.start >= 1, 'start', self.start, 'at least 1')
    require(0 < self.over <= 1, 'over', self.over, 'above 0, and at most 1')

  def longest(self, progress, most):
    lengths = [self.start]
    while 2 * lengths[-1] < most:
      lengths.append(2 * lengths[-1])
    if progress >= self.over:
      return most
    return min(lengths[int(progress / self.over * len(lengths))], most)


CURRICULA: dict[str, type[Whole]] = {'whole': Whole, 'longer': Longer}


def cut(batch: Batch, count: int) -> Batch:
  """A batch with the first tokens of each text, and no wider than they are."""
  if count >= batch.tokens.shape[1]:
    return batch
  return batch._replace(
    tokens=batch.tokens[:, :count], lengths=batch.lengths.clip(max=count)
  )


def longest(curriculum: Whole, step: int, steps: int, most: int) -> int:
  """Tokens that texts are cut to after some steps of a run of `steps` steps.

  UserError if that is no positive integer.
  """
  found = curriculum.longest(step / steps, most)
  if not (isinstance(found, SupportsIndex) and operator.index(found) >= 1):
    raise UserError(
      f'config.train.curriculum: longest() returns {found!r}, and must return '
      'an integer, at least 1'
    )
  return operator.index(found)


def changes(curriculum: Whole, steps: int, most: int) -> dict[int, int]:
  """`longest` of the first step, and of each from which it is another."""
  found: dict[int, int] = {}
  count = 0
  for step in range(steps):
    if (now := longest(curriculum, step, steps, most)) != count:
      found[step] = count = now
  return found


def check_goes_on(
  curriculum: Whole, taken: int, steps: int, more: int, most: int
) -> None:
  """UserError unless more steps leave the lengths of those taken.

  Args:
    taken: updates of the run so far.
    steps: updates of the run as it was.
    more: updates that it is to have.
    most: tokens of the longest text of the data.
  """
  if any(
    longest(curriculum, step, steps, most)
    != longest(curriculum, step, more, most)
    for step in range(taken)
  ):
    raise UserError(
      f'config.train.steps = {more}, and config.train.curriculum would have '
      f'cut texts of the {taken} steps so far to other lengths; choose another '
      '--workdir'
    )
