"""From texts to token ids, with the vocabulary of a workdir."""

from __future__ import annotations

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
  ids = token_ids(tokenizer, texts)
  lengths = np.array([len(i) for i in ids], np.int32)
  log_truncated(lengths, max_length, name)
  lengths = np.minimum(lengths, max_length)
  # One more token, so that the start of an empty last text is a valid index.
  ids = [*(i[:max_length] for i in ids), [0]]
  labels = np.zeros(len(lengths), np.int32)
  tokens = concatenated(ids, np.int32)
  return Examples(tokens, offsets(lengths), lengths, labels)


def token_ids(tokenizer, texts: list[str]) -> list[list[int]]:
  """Token ids of each text, not truncated."""
  # The text '[PAD]' is tokenised as characters, not as a special token.
  tokenizer.encode_special_tokens = True
  encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
  return [one.ids for one in encoded]


def concatenated(ids: list[list[int]], dtype) -> np.ndarray:
  """The ids of all texts, one after the other."""
  return np.fromiter(itertools.chain.from_iterable(ids), dtype)


def log_truncated(lengths: np.ndarray, max_length: int, name: str) -> None:
  """Logs how many texts have more than max_length tokens, if any has."""
  if num_truncated := int((lengths > max_length).sum()):
    log(
      f'{num_truncated} of {len(lengths)} {name} are truncated to {max_length} '
      'tokens (config.data.max_length)'
    )
