"""Algorithmic tasks: strings of any length, labelled by a small program.

The 15 tasks of Deletang et al. 2023 (and Ruoss et al. 2023), and two others,
for length generalisation: a model trained on short strings has learnt the
program only if it is correct on longer ones. Those with one output are here.
Written from the definitions in the papers; tokens are joined by spaces.
"""

from __future__ import annotations

import itertools

from experiments.data.strings import Task, choose
from experiments.data.transductions import TRANSDUCTIONS

MODULUS = 5


def even_pairs(rng, length: int) -> tuple[list[str], str]:
  """Whether `a b` and `b a` together occur an even number of times."""
  tokens = choose(rng, 'ab', length)
  changes = sum(x != y for x, y in itertools.pairwise(tokens))
  return tokens, _yes(changes % 2 == 0)


def parity(rng, length: int) -> tuple[list[str], str]:
  """Whether `b` occurs an even number of times."""
  tokens = choose(rng, 'ab', length)
  return tokens, _yes(tokens.count('b') % 2 == 0)


def cycle_navigation(rng, length: int) -> tuple[list[str], str]:
  """The final position on a cycle of 5: f forwards, b backwards, s stays."""
  tokens = choose(rng, 'fbs', length)
  position = tokens.count('f') - tokens.count('b')
  return tokens, str(position % MODULUS)


def modular_arithmetic(rng, length: int) -> tuple[list[str], str]:
  """The value modulo 5 of digits joined by +, - and *; * has precedence.

  An even length is rounded down to the next odd one.
  """
  tokens = choose(rng, '01234', 1)
  while len(tokens) + 2 <= length:
    tokens += choose(rng, '+-*', 1) + choose(rng, '01234', 1)
  total, product, sign = 0, int(tokens[0]), 1
  for operator, digit in zip(tokens[1::2], tokens[2::2], strict=True):
    if operator == '*':
      product = product * int(digit) % MODULUS
    else:
      total += sign * product
      product, sign = int(digit), 1 if operator == '+' else -1
  return tokens, str((total + sign * product) % MODULUS)


def modular_arithmetic_brackets(rng, length: int) -> tuple[list[str], str]:
  """The value modulo 5 of a fully bracketed nested expression."""
  tokens = _expression(rng, length)
  return tokens, str(_value(tokens))


def solve_equation(rng, length: int) -> tuple[list[str], str]:
  """The digit x for which a nested expression has the given value.

  The solution is unique. Needs at least three tokens.
  """
  while True:
    tokens = _expression(rng, max(length - 2, 1))
    digits = [n for n, token in enumerate(tokens) if token.isdigit()]
    index = digits[rng.integers(len(digits))]
    values = [
      _value([*tokens[:index], str(x), *tokens[index + 1 :]])
      for x in range(MODULUS)
    ]
    x = int(tokens[index])
    if values.count(values[x]) == 1:
      tokens[index] = 'x'
      return [*tokens, '=', str(values[x])], str(x)


def missing_duplicate(rng, length: int) -> tuple[list[str], str]:
  """The letter masked in a string that repeats its first half.

  It is also the letter that occurs an odd number of times, so a bag of words
  can solve it. An odd length is rounded down to the next even one, but to no
  less than two tokens.
  """
  half = choose(rng, 'ab', max(length // 2, 1))
  tokens = half + half
  index = rng.integers(len(tokens))
  label, tokens[index] = tokens[index], '_'
  return tokens, label


def a_before_b(rng, length: int) -> tuple[list[str], str]:
  """Whether the only `a` comes before the only `b`, among other letters.

  A string and its reverse have opposite labels, so a model that is blind to
  direction is at chance. Needs at least two tokens.
  """
  tokens = choose(rng, 'cdef', max(length, 2))
  first, second = sorted(rng.permutation(len(tokens))[:2])
  tokens[first], tokens[second] = 'ab' if rng.integers(2) else 'ba'
  return tokens, _yes(tokens.index('a') < tokens.index('b'))


def a_before_b_twin(rng, tokens: list[str]) -> tuple[list[str], str]:
  """The string read backwards."""
  tokens = tokens[::-1]
  return tokens, _yes(tokens.index('a') < tokens.index('b'))


def flip_flop(rng, length: int) -> tuple[list[str], str]:
  """The last bit written: `w` writes the next bit, `i` ignores it; `r` reads.

  Flip-flop language modelling (Liu et al. 2023, section 3.1), asked once, at
  the end. The last write is anywhere with the same probability. A bag of words
  is right in 1/2 of the strings, a model that sees the last of n steps alone in
  1/2 + 1/n: its bit if it is written, else the other one, since a bit that is
  not the label is the other one more often. Has an odd length of at least 5.
  """
  n = max((length - 1) // 2, 2)
  bits = choose(rng, '01', n)
  while len(set(bits)) == 1:
    bits = choose(rng, '01', n)
  last = int(rng.integers(n))
  writes = [step == last or (step < last and rng.random() < 0.2)
            for step in range(n)]  # fmt: skip
  writes[0] = True
  steps = zip(writes, bits, strict=True)
  return [
    *itertools.chain(*(('w' if write else 'i', bit) for write, bit in steps)),
    'r',
  ], bits[last]


def flip_flop_twin(rng, tokens: list[str]) -> tuple[list[str], str]:
  """The last bit written, exchanged with another one somewhere."""
  last = len(tokens) - tokens[::-1].index('w')
  others = [n for n in range(1, len(tokens), 2) if tokens[n] != tokens[last]]
  other = others[rng.integers(len(others))]
  tokens = list(tokens)
  tokens[last], tokens[other] = tokens[other], tokens[last]
  return tokens, tokens[last]


ALGORITHMS = {
  'even_pairs': Task(even_pairs),
  'parity': Task(parity),
  'cycle_navigation': Task(cycle_navigation),
  'modular_arithmetic': Task(modular_arithmetic),
  'modular_arithmetic_brackets': Task(modular_arithmetic_brackets),
  'solve_equation': Task(solve_equation),
  'missing_duplicate': Task(missing_duplicate),
  'a_before_b': Task(a_before_b, twin=a_before_b_twin),
  'flip_flop': Task(flip_flop, twin=flip_flop_twin),
} | TRANSDUCTIONS


def _yes(holds: bool) -> str:
  return 'yes' if holds else 'no'


def _expression(rng, length: int) -> list[str]:
  """A digit, `- e`, or `( e operator e )`: exactly `length` tokens."""
  if length == 1:
    return choose(rng, '01234', 1)
  if length < 5 or rng.integers(5) == 0:
    return ['-', *_expression(rng, length - 1)]
  left = int(rng.integers(1, length - 3))
  return [
    '(',
    *_expression(rng, left),
    *choose(rng, '+-*', 1),
    *_expression(rng, length - 3 - left),
    ')',
  ]


_OPERATORS = {
  '+': lambda x, y: x + y,
  '-': lambda x, y: x - y,
  '*': lambda x, y: x * y,
}


def _value(tokens: list[str]) -> int:
  """The value of an expression, modulo 5."""
  rest = iter(tokens)

  def read():
    token = next(rest)
    if token == '-':
      return -read()
    if token != '(':
      return int(token)
    left = read()
    operator = next(rest)
    value = _OPERATORS[operator](left, read())
    next(rest)
    return value % MODULUS

  return read() % MODULUS
