"""Tasks of recall: what a text asks for stands somewhere before.

Flip-flop, with its twin, the same tokens in another order and with another
label; and multi-query associative recall.
"""

from __future__ import annotations

import itertools

import numpy as np

from experiments.data.strings import choose
from experiments.data.token_labels import NONE


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


def mqar(
  rng, length: int, num_pairs: int, vocab_size: int, power: float
) -> tuple[list[str], list[str]]:
  """The tokens of a string, and the label of each or `_`.

  Multi-query associative recall (Arora et al. 2023, section 3.1, and their
  code): distinct keys, each with its value after it, then each key once more,
  at a token whose label is its value. All else is random words.

  Args:
    length: number of tokens, at least 4 num_pairs.
    num_pairs: of a key and its value. Keys are words of the first half of the
      vocabulary without its first word, values of the second one.
    vocab_size: number of words, more than 2 num_pairs + 1.
    power: of n places for a key, two tokens apart, the k-th has a probability
      proportional to k^(power - 1). All are equal for 1.
  """
  half, begin = vocab_size // 2, 2 * num_pairs
  keys = 1 + rng.choice(half - 1, num_pairs, replace=False)
  values = half + rng.choice(vocab_size - half, num_pairs, replace=False)
  weights = np.arange(1, (length - begin) // 2 + 1) ** (power - 1)
  shares = weights / weights.sum()
  places = begin + 2 * rng.choice(
    len(shares), num_pairs, replace=False, p=shares
  )
  tokens = rng.integers(vocab_size, size=length)
  tokens[:begin:2], tokens[1:begin:2], tokens[places] = keys, values, keys
  labels = [NONE] * length
  for place, value in zip(places.tolist(), values.tolist(), strict=True):
    labels[place] = str(value)
  return list(map(str, tokens.tolist())), labels
