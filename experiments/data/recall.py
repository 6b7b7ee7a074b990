"""Algorithmic tasks of recall: one token, somewhere before, is the label.

Flip-flop, indirect indexing and associative recall, each with a twin: the same
tokens in another order, with another label.
"""

from __future__ import annotations

import itertools

from experiments.data.strings import choose


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
  others = range(1, len(tokens), 2)
  return exchanged(rng, tokens, last, others)


def indirect_indexing(rng, length: int) -> tuple[list[str], str]:
  """The letter at a distance from another one, which is named at the end.

  Of `a b P c Q a d ; Q <4`, the letter four before Q: b. As in Gopalakrishnan
  et al. 2025, section 4.1. The capitals P, Q, R and S stand once each, and
  distances are at most 9, whatever the length. Needs at least 10 tokens.
  """
  n = max(length - 3, 7)
  while True:
    tokens = choose(rng, 'abcd', n)
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
  return exchanged(rng, tokens, target, letters)


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
  values = choose(rng, 'abcd', num_pairs)
  while len(set(values)) == 1:
    values = choose(rng, 'abcd', num_pairs)
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
  return exchanged(rng, tokens, target, values)


def exchanged(rng, tokens, target, others) -> tuple[list[str], str]:
  """Tokens with two of different content exchanged, and the new label.

  Args:
    target: index of the token that is the label.
    others: indices of those that it may be exchanged with.
  """
  others = [n for n in others if tokens[n] != tokens[target]]
  other = others[rng.integers(len(others))]
  tokens = list(tokens)
  tokens[target], tokens[other] = tokens[other], tokens[target]
  return tokens, tokens[target]
