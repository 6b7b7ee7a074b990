"""Vocabularies: text to integer ids, by the tokenizers library.

A vocabulary is trained on the training split alone and stored in the workdir
as tokenizer.json, so that a trained model can be asked from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from experiments.command.errors import UserError

PAD, UNK = 0, 1
SPECIAL_TOKENS = ['[PAD]', '[UNK]']


@dataclasses.dataclass(frozen=True)
class Word:
  """Words and punctuation marks; rare words are unknown.

  Attributes:
    size: ids at most, the two special ones included.
    min_count: occurrences a word needs.
    lowercase: whether case is ignored.
  """

  size: int = 20_000
  min_count: int = 1
  lowercase: bool = True

  def check(self) -> None:
    """UserError for sizes that leave no word."""
    _check('word', self, size=3, min_count=1)

  def train(self, texts: Iterable[str]):
    """A tokenizers.Tokenizer fitted to the texts."""
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = _tokenizer(
      models.WordLevel(unk_token='[UNK]'),
      pre_tokenizers.Whitespace(),
      self.lowercase,
    )
    trainer = trainers.WordLevelTrainer(
      vocab_size=self.size,
      min_frequency=self.min_count,
      special_tokens=SPECIAL_TOKENS,
      show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclasses.dataclass(frozen=True)
class BytePair:
  """Byte pairs (Sennrich et al. 2016) over bytes: nothing is unknown.

  Attributes:
    size: ids at most; 258 of them are the bytes and the special ones.
    min_count: occurrences a pair needs to be merged.
    lowercase: whether case is ignored.
  """

  size: int = 8_000
  min_count: int = 2
  lowercase: bool = True

  def check(self) -> None:
    """UserError for a size without room for the bytes."""
    _check('bpe', self, size=258, min_count=1)

  def train(self, texts: Iterable[str]):
    """A tokenizers.Tokenizer fitted to the texts."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = _tokenizer(
      models.BPE(unk_token='[UNK]'),
      pre_tokenizers.ByteLevel(add_prefix_space=True),
      self.lowercase,
    )
    trainer = trainers.BpeTrainer(
      vocab_size=self.size,
      min_frequency=self.min_count,
      special_tokens=SPECIAL_TOKENS,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # So that an id can be read again as the characters it stands for.
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@dataclasses.dataclass(frozen=True)
class Byte:
  """The bytes of UTF-8: 258 ids, whatever the texts.

  Attributes:
    lowercase: whether case is ignored.
  """

  lowercase: bool = False

  def check(self) -> None:
    """Nothing can be wrong."""

  def train(self, texts: Iterable[str]):
    """A tokenizers.Tokenizer; it reads no text."""
    del texts
    return BytePair(size=258, min_count=1, lowercase=self.lowercase).train([])


VOCABULARIES = {'word': Word, 'bpe': BytePair, 'byte': Byte}


def _tokenizer(model, pre_tokenizer, lowercase: bool):
  import tokenizers

  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = pre_tokenizer
  if lowercase:
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
  return tokenizer


def _check(name: str, vocabulary, **least: int) -> None:
  for field, low in least.items():
    value = getattr(vocabulary, field)
    if value < low:
      raise UserError(
        f'config.data.vocabulary.{name}.{field} = {value} '
        f'must be at least {low}'
      )
