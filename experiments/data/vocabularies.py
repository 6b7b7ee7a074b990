"""Vocabularies: text to token ids, by the tokenizers library.

Words, and pieces of words, are those of the text in Unicode normal form C.
A vocabulary is trained on the training split only and stored in the workdir as
tokenizer.json, for evaluation and prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from experiments.command.errors import UserError, require
from experiments.data import published
from experiments.data.contract import Tokenization

PAD, UNK = 0, 1
SPECIAL_TOKENS = ['[PAD]', '[UNK]']
# Ends each text of a pair; the last id of a vocabulary for pairs.
SEPARATOR = '[SEP]'
# Mask tokens of published vocabularies.
MASKS = ('[MASK]', '<mask>')


class Vocabulary(NamedTuple):
  """What a model has to know about token ids.

  Attributes:
    size: V, the number of token ids.
    tokens: the token of each id.
    separator: the id that ends each text of a pair; None: there is none.
    special: ids of the tokens around texts, of a published vocabulary.
    mask: the id of its mask token; None: it has none.
  """

  size: int
  tokens: tuple[str, ...] = ()
  separator: int | None = None
  special: tuple[int, ...] = ()
  mask: int | None = None

  @classmethod
  def of(cls, tokenizer) -> Vocabulary:
    """What a model has to know of a tokenizers.Tokenizer."""
    added = tokenizer.get_added_tokens_decoder()
    size = max([tokenizer.get_vocab_size() - 1, *added]) + 1
    tokens = tuple(tokenizer.id_to_token(index) or '' for index in range(size))
    counts = map(tokenizer.num_special_tokens_to_add, (False, True))
    of_text, of_pair = counts
    separator = tokenizer.encode('', '').ids[-1] if of_pair > of_text else None
    special = {n: token.content for n, token in added.items() if token.special}
    if not set(special.values()) - {*SPECIAL_TOKENS, SEPARATOR}:
      # One of this project.
      return cls(size, tokens, separator)
    masks = (n for n, token in special.items() if token in MASKS)
    return cls(size, tokens, separator, tuple(special), next(masks, None))


@dataclasses.dataclass(frozen=True)
class Word(Tokenization):
  """Words and, by default, punctuation marks; rare words are unknown.

  Attributes:
    size: largest number of ids, including the two special tokens.
    min_count: smallest number of occurrences of a word.
    lowercase: whether to lowercase texts.
    split_punctuation: whether runs of punctuation marks are words of their own;
      False: a word is what is between whitespace, for texts that are tokenised
      already, as "does n't".
  """

  size: int = 20_000
  min_count: int = 1
  lowercase: bool = True
  split_punctuation: bool = True

  def check(self) -> None:
    _check(self, size=3, min_count=1)

  def train(self, texts: Iterable[str | list[str]]):
    from tokenizers import models, pre_tokenizers, trainers

    splitter = (
      pre_tokenizers.Whitespace()
      if self.split_punctuation
      else pre_tokenizers.WhitespaceSplit()
    )
    tokenizer = _tokenizer(models.WordLevel(), splitter, self.lowercase)
    trainer = trainers.WordLevelTrainer(
      vocab_size=self.size,
      min_frequency=self.min_count,
      special_tokens=SPECIAL_TOKENS,
      show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    # A word [UNK] of the texts has a second id, and leaves a hole.
    words = [
      w for w in sorted(ids, key=ids.__getitem__) if w not in SPECIAL_TOKENS
    ]
    vocab = {word: index for index, word in enumerate(SPECIAL_TOKENS + words)}
    model = models.WordLevel(vocab, unk_token='[UNK]')
    tokenizer = _tokenizer(model, splitter, self.lowercase)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


@dataclasses.dataclass(frozen=True)
class BytePair(Tokenization):
  """Byte-level BPE (Sennrich et al. 2016), without unknown tokens.

  Attributes:
    adds_space: whether each text gets a space at its start, so that the first
      word has the tokens of any other.
    size: largest number of ids; 258 of them are bytes and special tokens.
    min_count: smallest number of occurrences of a pair to be merged.
    lowercase: whether to lowercase texts.
  """

  size: int = 8_000
  min_count: int = 2
  lowercase: bool = True
  adds_space: ClassVar[bool] = True

  def of_stream(self) -> Tokenization:
    return _StreamBytePair(**vars(self))

  def check(self) -> None:
    _check(self, size=258, min_count=1)

  def train(self, texts: Iterable[str | list[str]]):
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = _tokenizer(
      models.BPE(unk_token='[UNK]'),
      pre_tokenizers.ByteLevel(add_prefix_space=self.adds_space),
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
    # Decodes ids to characters.
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class _StreamBytePair(BytePair):
  adds_space = False


@dataclasses.dataclass(frozen=True)
class Byte(Tokenization):
  """UTF-8 bytes: always 258 ids.

  Attributes:
    lowercase: whether to lowercase texts.
  """

  lowercase: bool = False

  def train(self, texts: Iterable[str | list[str]]):
    from tokenizers import normalizers

    tokenizer = _StreamBytePair(size=258, min_count=1).train([])
    steps = [normalizers.Lowercase()] if self.lowercase else []
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


@dataclasses.dataclass(frozen=True)
class Published(Tokenization):
  """The tokenizer.json of a published model, with its special tokens.

  Attributes:
    path: its folder, or a name of the Hugging Face hub.
  """

  path: str = ''
  is_published = True

  def check(self) -> None:
    require(
      bool(self.path), 'path', self.path, 'the folder of a tokenizer.json'
    )

  def train(self, texts: Iterable[str | list[str]]):
    from selfattn import pretrained

    del texts
    tokenizer = None
    try:
      tokenizer = pretrained.read_tokenizer(published.folder(self.path))
    except ValueError as error:
      raise UserError(str(error)) from error
    if tokenizer is None:
      raise UserError(
        f'{self.path} has no tokenizer.json; where it has other files of a '
        'tokenizer, AutoTokenizer of transformers loads them, and '
        'save_pretrained writes it'
      )
    return tokenizer


def adds_tokens(tokenizer, to_pairs: bool = False) -> bool:
  """Whether a tokenizer puts special tokens around a text, or a pair."""
  return tokenizer.num_special_tokens_to_add(to_pairs) > 0


def add_separator(tokenizer) -> None:
  """Gives a tokenizers.Tokenizer the token [SEP], as its last id.

  It then encodes a pair, for those who read tokenizer.json, as a run does. A
  UserError says that it has the token as another id.
  """
  from tokenizers import processors

  tokenizer.add_special_tokens([SEPARATOR])
  index, last = tokenizer.token_to_id(SEPARATOR), tokenizer.get_vocab_size() - 1
  if index != last:
    raise UserError(
      f'config.data.vocabulary has {SEPARATOR} as id {index}; for pairs of '
      f'texts it must be the last one, {last}, or missing'
    )
  tokenizer.post_processor = processors.TemplateProcessing(
    single='$A',
    pair=f'$A:0 {SEPARATOR}:0 $B:1 {SEPARATOR}:1',
    special_tokens=[(SEPARATOR, index)],
  )


VOCABULARIES: dict[str, type[Tokenization]] = {
  'word': Word,
  'bpe': BytePair,
  'byte': Byte,
  'published': Published,
}


def _tokenizer(model, pre_tokenizer, lowercase: bool):
  import tokenizers

  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = pre_tokenizer
  # A letter with an accent has one code point or two, by the program that wrote
  # it: the same word would have two ids.
  steps = [tokenizers.normalizers.NFC()]
  if lowercase:
    steps.append(tokenizers.normalizers.Lowercase())
  tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
  return tokenizer


def _check(vocabulary: Tokenization, **least: int) -> None:
  for option, low in least.items():
    value = getattr(vocabulary, option)
    require(value >= low, option, value, f'at least {low}')
