"""From texts to token ids, with the vocabulary of a workdir."""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data.batches import Examples, offsets


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
