"""From texts to token ids, with the vocabulary of a workdir."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.command.calls import Call
from experiments.command.errors import UserError
from experiments.command.log import Reporter, log
from experiments.data.batches import Examples, offsets
from experiments.data.contract import Dataset
from experiments.data.data_settings import DataSettings
from experiments.data.rows import Rows, parted
from experiments.data.selection import Selection
from experiments.data.store import Arrays, Store, packed, unpacked
from experiments.data.token_labels import word_begins, words_of
from experiments.data.vocabularies import (
  SEPARATOR,
  SPECIAL_TOKENS,
  Vocabulary,
  add_separator,
  adds_tokens,
)

# Warn if a greater part of the tokens of a split is unknown.
_MANY_UNKNOWN = 0.1


def read_tokenizer(workdir: str):
  """The vocabulary of a workdir; UserError if it is missing or corrupt."""
  import tokenizers

  path = os.path.join(workdir, 'tokenizer.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is this the folder of a run?')
  try:
    return tokenizers.Tokenizer.from_file(path)
  # The library raises bare Exception for a file that it cannot parse.
  except Exception as error:
    raise UserError(f'{path} is not a vocabulary: {error}') from error


def words(tokenizer) -> dict[str, int]:
  """The ids of tokens that are words, by word.

  Of pieces of words they are those with a space before: others stand inside.
  """
  from tokenizers import pre_tokenizers

  ids = tokenizer.get_vocab()
  for token in (*SPECIAL_TOKENS, SEPARATOR):
    ids.pop(token, None)
  if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
    return ids
  texts = {tokenizer.decoder.decode([t]): index for t, index in ids.items()}
  return {text[1:]: i for text, i in texts.items() if text[:1] == ' ' != text}


def check_texts(texts: list[str], flag: str = '--text') -> None:
  """UserError if a text of a flag is not valid UTF-8."""
  for text in texts:
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise UserError(f'{flag}={text!a} is not UTF-8') from error


def encode(
  tokenizer,
  texts: Sequence[str | tuple[str, ...]],
  max_length: int,
) -> tuple[Examples, np.ndarray]:
  """(token ids of texts or pairs, truncated; whether each was). No labels."""
  are_pairs = bool(texts) and not isinstance(texts[0], str)
  if are_pairs or adds_tokens(tokenizer):
    tokens, lengths, is_truncated = special_ids(tokenizer, texts, max_length)
  else:
    tokens, lengths = token_ids(tokenizer, texts)
    is_truncated = lengths > max_length
  labels = np.zeros(len(lengths), np.int32)
  starts = offsets(lengths)
  lengths = np.minimum(lengths, np.int32(max_length))
  # One more token, so that the start of an empty last text is a valid index.
  examples = Examples(np.append(tokens, 0), starts, lengths, labels)
  return examples, is_truncated


def token_ids(
  tokenizer, texts, special: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  """int32: (the token ids of all texts, not truncated; how many each has).

  Args:
    special: whether those are among them that a tokenizer puts around a text.
  """
  # As of pairs.
  tokenizer.encode_special_tokens = True
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=special)
  return _concatenated([one.ids for one in encoded])


def words_begun(
  tokenizer, texts: Sequence[str], max_length: int
) -> list[np.ndarray]:
  """The word that each token of a text begins, or -1, int32, for each text.

  Texts with special tokens are truncated, as `special_ids` truncates them, and
  others are not.
  """
  special = tokenizer.num_special_tokens_to_add(False)
  tokenizer.encode_special_tokens = True
  if special:
    tokenizer.enable_truncation(max_length)
  # With offsets, which the fast function does not have.
  encoded = tokenizer.encode_batch(texts)
  tokenizer.no_truncation()
  begun = []
  for text, one in zip(texts, encoded, strict=True):
    # Offsets of special tokens are 0, and a token may begin with a space.
    offsets = one.offsets if len(one.ids) > special else []
    ends = np.array([end for _, end in offsets])
    # How many words begin before the end of each token.
    until = np.searchsorted(np.array(word_begins(text)), ends)
    is_first = np.diff(until, prepend=0) > 0
    begun.append(np.where(is_first, until - 1, -1).astype(np.int32))
  return begun


def special_ids(
  tokenizer, texts: Sequence[str | tuple[str, ...]], max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Token ids of texts or pairs with special tokens, truncated.

  Pairs (a, b) are `a [SEP] b [SEP]` by a tokenizer that add_separator has had,
  and as the tokenizer of a published model writes them. The longer text of a
  pair is truncated first. A text, or a pair of two, without tokens has none.
  Returns int32 ids of all texts, how many each has, and whether it was
  truncated.
  """
  are_pairs = bool(texts) and not isinstance(texts[0], str)
  special = tokenizer.num_special_tokens_to_add(are_pairs)
  if max_length <= special:
    raise UserError(
      f'config.data.max_length = {max_length} must be at least {special + 1}: '
      f'the vocabulary puts {special} special tokens around a text'
    )
  # The text '[PAD]' is tokenised as characters, not as a special token.
  tokenizer.encode_special_tokens = True
  tokenizer.enable_truncation(max_length, strategy='longest_first')
  encoded = tokenizer.encode_batch_fast(texts)
  tokenizer.no_truncation()
  ids = [one.ids if len(one.ids) > special else [] for one in encoded]
  is_truncated = [len(one.overflowing) > 0 for one in encoded]
  return *_concatenated(ids), np.array(is_truncated, bool)


def _concatenated(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
  lengths = np.array([len(of_text) for of_text in ids], np.int32)
  return np.fromiter(itertools.chain.from_iterable(ids), np.int32), lengths


def log_truncated(is_truncated: np.ndarray, max_length: int, name: str) -> None:
  """Logs what `truncated` says."""
  if said := truncated(is_truncated, max_length, name):
    log(said)


def truncated(is_truncated: np.ndarray, max_length: int, name: str) -> str:
  """How many texts, by what they are called, are truncated; '' for none."""
  if not is_truncated.any():
    return ''
  return (
    f'{is_truncated.sum()} of {is_truncated.size} {name} are truncated to '
    f'{max_length} tokens (config.data.max_length)'
  )


def vocabulary(
  store: Store,
  rows: Rows,
  chosen: Selection,
  choice: Call,
  source: Dataset,
):
  """The vocabulary of the train texts, trained once.

  That of pairs has [SEP], as its last id; that of a stream is `of_stream`.
  """
  import tokenizers

  trained = choice.make()
  trained = trained.of_stream() if source.is_stream else trained
  if trained.is_published:
    return trained.train(())

  def make():
    train, said = chosen.splits['train'], '{} texts read for the vocabulary'
    texts = Reporter(said, len(train)).counted(rows.stream(train))
    if source.has_pairs or source.num_apart:
      parts_of = (map(parted, chunk) for chunk in texts)
      texts = (list(itertools.chain.from_iterable(c)) for c in parts_of)
    tokenizer = trained.train(texts)
    first = [tokenizer.id_to_token(n) for n in range(len(SPECIAL_TOKENS))]
    if first != SPECIAL_TOKENS:
      raise UserError(
        f'config.data.vocabulary = {choice}: its first ids are {first}, and '
        f'must be {SPECIAL_TOKENS}'
      )
    yield {'tokenizer': packed(tokenizer.to_str())}

  # The file of a class of one's own may change.
  store = Store(None) if ':' in choice.name else store
  key = [chosen.facts, repr(trained), tokenizers.__version__]
  arrays = store.arrays('vocabulary', key, make)
  tokenizer = tokenizers.Tokenizer.from_str(unpacked(arrays['tokenizer']))
  if source.has_pairs:
    add_separator(tokenizer)
  return tokenizer


def tokens(
  store: Store,
  key: Any,
  rows: Rows,
  tokenizer,
  settings: DataSettings,
  num_apart: int = 0,
  has_words: bool = False,
) -> Arrays:
  """The tokens of all rows: `tokens`, `offsets` as of texts, `unknown` counts.

  Texts with special tokens are truncated to settings.max_length, and
  `is_truncated` says which are. Where the texts of a row are encoded apart,
  each has a place of its own, see `places`. If it `has_words`, `words` has the
  word that each token begins, or -1, and `num_words` how many a text has. The
  key is that of the rows, and num_apart that of their data set.
  """
  import tokenizers

  are_pairs = settings.pair_length is not None
  is_special = are_pairs or adds_tokens(tokenizer)
  is_special &= not settings.is_stream
  unknown_token = getattr(tokenizer.model, 'unk_token', None) or ''
  unknown_id = tokenizer.token_to_id(unknown_token)

  def make():
    dtype = np.min_scalar_type(Vocabulary.of(tokenizer).size - 1)
    end = 0
    yield {'offsets': np.zeros(1, np.int64)}
    report = Reporter('{} texts tokenised', len(rows))
    for texts in report.counted(rows.stream()):
      more = {}
      if num_apart:
        texts = [*itertools.chain.from_iterable(map(parted, texts))]
      if is_special:
        several = list(map(parted, texts)) if are_pairs else texts
        ids, lengths, is_truncated = special_ids(
          tokenizer, several, settings.max_length
        )
        more['is_truncated'] = is_truncated
      else:
        ids, lengths = token_ids(tokenizer, texts)
      if has_words:
        counts = np.array([len(words_of(text)) for text in texts], np.int32)
        # Where each token is a word, that is known without its offsets.
        if not is_special and (counts == lengths).all():
          begun = [np.arange(count, dtype=np.int32) for count in counts]
        else:
          begun = words_begun(tokenizer, texts, settings.max_length)
        more |= {'num_words': counts, 'words': np.concatenate(begun)}
      text_of = np.repeat(np.arange(len(texts)), lengths)
      is_unknown = ids == (-1 if unknown_id is None else unknown_id)
      unknown = np.bincount(text_of[is_unknown], minlength=len(texts))
      yield {
        'tokens': ids.astype(dtype),
        'offsets': np.cumsum(lengths, dtype=np.int64) + end,
        'unknown': unknown.astype(np.int32),
        **more,
      }
      end += len(ids)
    # As in `encode`.
    yield {'tokens': np.zeros(1, dtype)}

  # Equal vocabularies of different runs have equal token ids.
  of_ids: list = [tokenizer.to_str(), tokenizers.__version__]
  if is_special:
    of_ids.append(settings.max_length)
  if has_words:
    of_ids.append('words')
  return store.arrays('tokens', [key, of_ids], make)


def places(chosen: np.ndarray, num_apart: int) -> np.ndarray:
  """Where `tokens` has the texts of these rows: (rows,), or (rows, texts)."""
  if not num_apart:
    return chosen
  return chosen[:, None] * num_apart + np.arange(num_apart)


def empty_apart(arrays: Arrays, splits: dict[str, np.ndarray]) -> list[str]:
  """Messages about rows of which one of several texts has no token.

  Args:
    splits: `places` of each.
  """
  lines, begins = [], arrays['offsets']
  for split, at in splits.items():
    is_empty = begins[at + 1] == begins[at]
    if at.ndim > 1 and is_empty.any():
      count = is_empty.any(axis=1).sum()
      lines.append(f'{split} rows with an empty text: {count} of {len(at)}')
  return lines


def unknown_tokens(arrays: Arrays, splits: dict[str, np.ndarray]) -> list[str]:
  """Messages about splits with many tokens that are not in the vocabulary.

  Args:
    splits: `places` of each.
  """
  lines, begins = [], arrays['offsets']
  for split, chosen in splits.items():
    unknown = int(arrays['unknown'][chosen].sum())
    count = int((begins[chosen + 1] - begins[chosen]).sum())
    if split in ('validation', 'test') and unknown > _MANY_UNKNOWN * count:
      lines.append(
        f'unknown tokens of {split}: {unknown} of {count} '
        f'({unknown / count:.0%}); config.data.vocabulary=bpe has none'
      )
  return lines
