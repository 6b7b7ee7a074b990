"""Algorithmic tasks that map a string to a string.

The eight tasks of Deletang et al. 2023 with more than one output. As there, the
text is the input and `?` for each output that is read; the labels of
these tokens are the outputs. Where an output may be shorter than the number of
`?`, it ends with `end`, and what follows has no label. Numbers of two operands
are binary, their lowest digit first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from experiments.data.strings import Task, choose
from experiments.data.token_labels import NONE

END = 'end'


def stack_manipulation(tokens: list[str]) -> list[str]:
  """A stack of 0 and 1 after `pop`, `push0` and `push1`, from its top.

  The input has its top last. `pop` leaves an empty stack as it is.
  """
  stack: list[str] = []
  for token in tokens:
    if token == 'pop':
      del stack[-1:]
    else:
      stack.append(token[-1])
  return [*stack[::-1], END]


def compute_sqrt(tokens: list[str]) -> list[str]:
  """The square root, rounded down, of half as many digits, rounded up.

  The highest digit of both is first.
  """
  root, count = math.isqrt(int(''.join(tokens), 2)), len(tokens)
  return list(f'{root:0{-(-count // 2)}b}')


@dataclasses.dataclass(frozen=True)
class Transduction:
  """Writes strings of one task.

  Attributes:
    outputs: from the tokens of an input to the outputs.
    draw: from (generator, number of tokens) to the tokens of an input.
    room: from that number to the number of `?`.
    least: fewest tokens of an input.
  """

  outputs: Callable[[list[str]], list[str]]
  draw: Callable
  room: Callable[[int], int] = lambda n: n
  least: int = 1

  def __call__(self, rng, length: int) -> tuple[list[str], str]:
    """Tokens and labels; an input as long as `length` tokens have room for."""
    fitting = range(length, self.least, -1)
    n = next((n for n in fitting if n + self.room(n) <= length), self.least)
    tokens = self.draw(rng, n)
    outputs = self.outputs(tokens)
    rest = [NONE] * (self.room(n) - len(outputs))
    labels = [*[NONE] * n, *outputs, *rest]
    return [*tokens, *['?'] * self.room(n)], ' '.join(labels)


def _operands(tokens: list[str], operator: str) -> list[int]:
  parts = ''.join(tokens).split(operator)
  return [int(part[::-1], 2) for part in parts]


def _digits(number: int) -> list[str]:
  return [*f'{number:b}'[::-1], END]


def _letters(letters: str) -> Callable:
  return lambda rng, n: choose(rng, letters, n)


def _positive(rng, n: int) -> list[str]:
  """The digits of a number above 0, uniform."""
  while True:
    digits = choose(rng, '01', n)
    if '1' in digits:
      return digits


def _numbers(operator: str) -> Callable:
  def draw(rng, n: int) -> list[str]:
    first = int(rng.integers(1, n - 1))
    rest = n - 1 - first
    return [*_positive(rng, first), operator, *_positive(rng, rest)]

  return draw


def _stack(rng, n: int) -> list[str]:
  depth = int(rng.integers(1, n))
  actions = ('pop', 'push0', 'push1')
  chosen = [actions[k] for k in rng.integers(len(actions), size=n - depth)]
  return choose(rng, '01', depth) + chosen


def _task(*how) -> Task:
  return Task(Transduction(*how), has_token_labels=True)


_BITS = _letters('01')
TRANSDUCTIONS = {
  'reverse_string': _task(lambda tokens: tokens[::-1], _BITS),
  'duplicate_string': _task(
    lambda tokens: tokens + tokens, _BITS, lambda n: 2 * n
  ),
  # As their description has it; their code has the even ones first.
  'odds_first': _task(lambda tokens: tokens[::2] + tokens[1::2], _BITS),
  'bucket_sort': _task(sorted, _letters('01234')),
  # `0 1 + 1`, and the sum without zeros after its last 1.
  'binary_addition': _task(
    lambda tokens: _digits(sum(_operands(tokens, '+'))),
    _numbers('+'),
    lambda n: n + 1,
    3,
  ),
  'binary_multiplication': _task(
    lambda tokens: _digits(math.prod(_operands(tokens, '*'))),
    _numbers('*'),
    lambda n: n,
    3,
  ),
  'compute_sqrt': _task(compute_sqrt, _positive, lambda n: -(-n // 2)),
  'stack_manipulation': _task(stack_manipulation, _stack, lambda n: n + 1, 2),
}
