"""Algorithmic tasks: strings of any length, labelled by a small program.

The tasks of Ruoss et al. 2023 (and Deletang et al. 2023) with a single output,
for length generalisation: a model trained on short strings has learnt the
program only if it is correct on longer ones. Written from the definitions in
the papers; tokens are joined by spaces.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

MODULUS = 5


def even_pairs(rng, length: int) -> tuple[list[str], str]:
  """Whether `a b` and `b a` together occur an even number of times."""
  tokens = _choose(rng, 'ab', length)
  changes = sum(x != y for x, y in itertools.pairwise(tokens))
  return tokens, _yes(changes % 2 == 0)


def parity(rng, length: int) -> tuple[list[str], str]:
  """Whether `b` occurs an even number of times."""
  tokens = _choose(rng, 'ab', length)
  return tokens, _yes(tokens.count('b') % 2 == 0)


def cycle_navigation(rng, length: int) -> tuple[list[str], str]:
  """The final position on a cycle of 5: f forwards, b backwards, s stays."""
  tokens = _choose(rng, 'fbs', length)
  position = tokens.count('f') - tokens.count('b')
  return tokens, str(position % MODULUS)


def modular_arithmetic(rng, length: int) -> tuple[list[str], str]:
  """The value modulo 5 of digits joined by +, - and *; * has precedence.

  An even length is rounded down to the next odd one.
  """
  tokens = _choose(rng, '01234', 1)
  while len(tokens) + 2 <= length:
    tokens += _choose(rng, '+-*', 1) + _choose(rng, '01234', 1)
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
  half = _choose(rng, 'ab', max(length // 2, 1))
  tokens = half + half
  index = rng.integers(len(tokens))
  label, tokens[index] = tokens[index], '_'
  return tokens, label


def a_before_b(rng, length: int) -> tuple[list[str], str]:
  """Whether the only `a` comes before the only `b`, among other letters.

  A string and its reverse have opposite labels, so a model that is blind to
  direction is at chance. Needs at least two tokens.
  """
  tokens = _choose(rng, 'cdef', max(length, 2))
  first, second = sorted(rng.permutation(len(tokens))[:2])
  tokens[first], tokens[second] = 'ab' if rng.integers(2) else 'ba'
  return tokens, _yes(tokens.index('a') < tokens.index('b'))


def flip_flop(rng, length: int) -> tuple[list[str], str]:
  """The last bit written: `w` writes the next bit, `i` ignores it; `r` reads.

  Flip-flop language modelling (Liu et al. 2023, section 3.1), asked once, at
  the end. The last write is anywhere with the same probability, so that a model
  which sees the last m of n bits is right in 1/2 + m/2n of the strings. Has an
  odd length of at least 5.
  """
  n = max((length - 1) // 2, 2)
  bits = _choose(rng, '01', n)
  while len(set(bits)) == 1:
    bits = _choose(rng, '01', n)
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
  others = range(1, len(tokens), 2)
  return _exchanged(rng, tokens, last, others)


def indirect_indexing(rng, length: int) -> tuple[list[str], str]:
  """The letter at a distance from another one, which is named at the end.

  Of `a b P c Q a d ; Q <4`, the letter four before Q: b. As in Gopalakrishnan
  et al. 2025, section 4.1. The capitals P, Q, R and S stand once each, and
  distances are at most 9, whatever the length. Needs at least 10 tokens.
  """
  n = max(length - 3, 7)
  while True:
    tokens = _choose(rng, 'abcd', n)
    places = rng.permutation(n)[:4]
    for place, name in zip(places, 'PQRS', strict=True):
      tokens[place] = name
    source = int(places[rng.integers(4)])
    target = source + int(rng.integers(-9, 10))
    letters = {token for token in tokens if token in 'abcd'}
    is_inside = 0 <= target < n and tokens[target] in letters
    if is_inside and len(letters) > 1:
      break
  distance = target - source
  sign = '>' if distance > 0 else '<'
  asked = [';', tokens[source], f'{sign}{abs(distance)}']
  return [*tokens, *asked], tokens[target]


def indirect_indexing_twin(rng, tokens: list[str]) -> tuple[list[str], str]:
  """The letter asked for, exchanged with another one."""
  *text, _, name, distance = tokens
  sign = 1 if distance[0] == '>' else -1
  target = text.index(name) + sign * int(distance[1:])
  letters = [n for n, token in enumerate(text) if token in 'abcd']
  return _exchanged(rng, tokens, target, letters)


# Names of associative recall; a string has at most so many pairs.
_NAMES = tuple(f'k{number}' for number in range(32))


def associative_recall(rng, length: int) -> tuple[list[str], str]:
  """The value that follows the first place of the name at the end.

  Pairs of a name and a value, with `_` between some (Arora et al. 2023, section
  3.1), asked for one name. Needs at least 5 tokens.
  """
  n = max(length - 1, 4)
  num_pairs = min(n // 2, len(_NAMES))
  num_pairs = int(rng.integers((num_pairs + 3) // 2, num_pairs + 1))
  values = _choose(rng, 'abcd', num_pairs)
  while len(set(values)) == 1:
    values = _choose(rng, 'abcd', num_pairs)
  names = [_NAMES[k] for k in rng.permutation(len(_NAMES))[:num_pairs]]
  parts = [[pair] for pair in zip(names, values, strict=True)]
  parts += [['_']] * (n - 2 * num_pairs)
  tokens = []
  for part in rng.permutation(len(parts)):
    tokens += parts[part][0]
  asked = int(rng.integers(num_pairs))
  return [*tokens, names[asked]], values[asked]


def associative_recall_twin(rng, tokens: list[str]) -> tuple[list[str], str]:
  """The value asked for, exchanged with that of another name."""
  target = tokens.index(tokens[-1]) + 1
  values = [n for n, token in enumerate(tokens) if token in 'abcd']
  return _exchanged(rng, tokens, target, values)


def a_before_b_twin(rng, tokens: list[str]) -> tuple[list[str], str]:
  """The string read backwards."""
  del rng
  tokens = tokens[::-1]
  return tokens, _yes(tokens.index('a') < tokens.index('b'))


def _exchanged(rng, tokens, target, others):
  """The tokens at a place and at another one of other content, and the first
  of them: what the label becomes."""
  others = [n for n in others if tokens[n] != tokens[target]]
  other = others[rng.integers(len(others))]
  tokens = list(tokens)
  tokens[target], tokens[other] = tokens[other], tokens[target]
  return tokens, tokens[target]


@dataclasses.dataclass(frozen=True)
class Task:
  """An algorithmic task.

  Attributes:
    write: maps (generator, length) to tokens and label.
    labels: all labels.
    is_order_sensitive: whether the label depends on the order of the tokens;
      if so, a model without positions is at or near chance, else it can learn
      the task.
    twin: maps (generator, tokens) to the same tokens in another order, with
      another label, and that label: a minimal pair. Both are in the data, one
      after the other, so that a model without positions is right in half of
      the strings at most.
  """

  write: Callable
  labels: tuple[str, ...]
  is_order_sensitive: bool = True
  twin: Callable | None = None


_YES_NO = ('no', 'yes')
_DIGITS = tuple(map(str, range(MODULUS)))
TASKS = {
  'even_pairs': Task(even_pairs, _YES_NO),
  'parity': Task(parity, _YES_NO, is_order_sensitive=False),
  'cycle_navigation': Task(cycle_navigation, _DIGITS, is_order_sensitive=False),
  'modular_arithmetic': Task(modular_arithmetic, _DIGITS),
  'modular_arithmetic_brackets': Task(modular_arithmetic_brackets, _DIGITS),
  'solve_equation': Task(solve_equation, _DIGITS),
  'missing_duplicate': Task(
    missing_duplicate, ('a', 'b'), is_order_sensitive=False
  ),
  'a_before_b': Task(a_before_b, _YES_NO, twin=a_before_b_twin),
  'flip_flop': Task(flip_flop, ('0', '1'), twin=flip_flop_twin),
  'indirect_indexing': Task(
    indirect_indexing, tuple('abcd'), twin=indirect_indexing_twin
  ),
  'associative_recall': Task(
    associative_recall, tuple('abcd'), twin=associative_recall_twin
  ),
}


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


def _choose(rng, letters: str, count: int) -> list[str]:
  return [letters[index] for index in rng.integers(len(letters), size=count)]


def _yes(holds: bool) -> str:
  return 'yes' if holds else 'no'


def _expression(rng, length: int) -> list[str]:
  """A digit, `- e`, or `( e operator e )`: exactly `length` tokens."""
  if length == 1:
    return _choose(rng, '01234', 1)
  if length < 5 or rng.integers(5) == 0:
    return ['-', *_expression(rng, length - 1)]
  left = int(rng.integers(1, length - 3))
  return [
    '(',
    *_expression(rng, left),
    *_choose(rng, '+-*', 1),
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
