"""From texts to token ids, with the vocabulary of a workdir."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import numpy as np

from experiments.command.calls import Call
from experiments.command.errors import UserError
from experiments.command.log import Reporter, log
from experiments.data.batches import Examples, offsets
from experiments.data.rows import Rows
from experiments.data.selection import Selection
from experiments.data.store import Arrays, Store, packed, unpacked
from experiments.data.text_files import UNLABELLED
from experiments.data.vocabularies import SPECIAL_TOKENS, UNK

# Warn if a greater part of the tokens of a split is unknown.
_MANY_UNKNOWN = 0.1


def read_tokenizer(workdir: str):
  """The vocabulary of a workdir.

  Raises:
    UserError: tokenizer.json is missing or corrupt.
  """
  import tokenizers

  path = os.path.join(workdir, 'tokenizer.json')
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir the folder of a run?')
  try:
    return tokenizers.Tokenizer.from_file(path)
  # The library raises bare Exception for a file that it cannot parse.
  except Exception as error:
    raise UserError(f'{path} is not a vocabulary: {error}') from error


def check_texts(texts: list[str]) -> None:
  """UserError if a text of --text is not valid UTF-8."""
  for text in texts:
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise UserError(f'--text={text!a} is not UTF-8') from error


def encode(
  tokenizer, texts: list[str], max_length: int, name: str = 'texts'
) -> Examples:
  """Token ids of each text, truncated to max_length; labels are all 0.

  Logs how many were truncated.

  Args:
    name: what the texts are called in that message.
  """
  tokens, lengths = token_ids(tokenizer, texts)
  labels = np.zeros(len(lengths), np.int32)
  # One more token, so that the start of an empty last text is a valid index.
  examples = Examples(np.append(tokens, 0), offsets(lengths), lengths, labels)
  return truncated(examples, max_length, name)


def token_ids(tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
  """int32: (the token ids of all texts, not truncated; how many each has)."""
  # The text '[PAD]' is tokenised as characters, not as a special token.
  tokenizer.encode_special_tokens = True
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
  ids = [one.ids for one in encoded]
  lengths = np.array([len(of_text) for of_text in ids], np.int32)
  return np.fromiter(itertools.chain.from_iterable(ids), np.int32), lengths


def truncated(examples: Examples, max_length: int, name: str) -> Examples:
  """At most max_length tokens of each; logs how many had more, if any had.

  Args:
    name: what the examples are called in that message.
  """
  lengths = examples.lengths
  if num_truncated := int((lengths > max_length).sum()):
    log(
      f'{num_truncated} of {len(lengths)} {name} are truncated to {max_length} '
      'tokens (config.data.max_length)'
    )
  return dataclasses.replace(examples, lengths=np.minimum(lengths, max_length))


def vocabulary(store: Store, rows: Rows, chosen: Selection, choice: Call):
  """The vocabulary of the train and the unlabelled texts, trained once."""
  import tokenizers

  parts = [
    chosen.splits[s] for s in ('train', UNLABELLED) if s in chosen.splits
  ]

  def make():
    report = Reporter('{} texts read for the vocabulary')
    texts = report.counted(rows.stream(np.sort(np.concatenate(parts))))
    tokenizer = choice.make().train(texts)
    first = [tokenizer.id_to_token(n) for n in range(len(SPECIAL_TOKENS))]
    if first != SPECIAL_TOKENS:
      raise UserError(
        f'config.data.vocabulary = {choice}: its first ids are {first}, and '
        f'must be {SPECIAL_TOKENS}'
      )
    yield {'tokenizer': packed(tokenizer.to_str())}

  # The file of a class of one's own may change.
  store = Store(None) if ':' in choice.name else store
  key = [chosen.facts, str(choice), tokenizers.__version__]
  arrays = store.arrays('vocabulary', key, make)
  return tokenizers.Tokenizer.from_str(unpacked(arrays['tokenizer']))


def tokens(store: Store, key: Any, rows: Rows, tokenizer) -> Arrays:
  """The tokens of all rows: `tokens`, `offsets` as of texts, `unknown` counts.

  Args:
    key: a JSON value, all that the rows depend on.
  """
  import tokenizers

  def make():
    dtype = np.min_scalar_type(tokenizer.get_vocab_size() - 1)
    end = 0
    yield {'offsets': np.zeros(1, np.int64)}
    for texts in Reporter('{} texts tokenised').counted(rows.stream()):
      ids, lengths = token_ids(tokenizer, texts)
      text_of = np.repeat(np.arange(len(texts)), lengths)
      unknown = np.bincount(text_of[ids == UNK], minlength=len(texts))
      yield {
        'tokens': ids.astype(dtype),
        'offsets': np.cumsum(lengths, dtype=np.int64) + end,
        'unknown': unknown.astype(np.int32),
      }
      end += len(ids)
    # As in `encode`.
    yield {'tokens': np.zeros(1, dtype)}

  # Equal vocabularies of different runs have equal token ids.
  of_ids = [tokenizer.to_str(), tokenizers.__version__]
  return store.arrays('tokens', [key, of_ids], make)


def unknown_tokens(arrays: Arrays, splits: dict[str, np.ndarray]) -> list[str]:
  """Messages about splits with many tokens that are not in the vocabulary.

  Args:
    arrays: as of `tokens`.
    splits: row indices of each split.
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
