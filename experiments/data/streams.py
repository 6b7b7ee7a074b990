"""Texts as one stream of tokens, for language models.

The rows of a stream are pieces of its texts, in their order; each text is
followed by a separator. A split is a contiguous part of the stream, and an
example is a window of it, with the token after the window.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np

from experiments.command.errors import UserError, require
from experiments.data.batches import Examples
from experiments.data.contract import SPLITS
from experiments.data.rows import Row, Rows
from experiments.data.text_files import Text

# Characters of a piece, of which each is tokenised by itself. It ends before
# white space, unless a word is longer than half of it.
_PIECE = 4_096
_END = re.compile(r'\s(?!.*\s)', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Stream(Text):
  """The texts of files, with the options config.data.text, one after another.

  Labels are not read. Splits without files are the last shares of train.

  Attributes:
    separator: what follows each text.
    train_bytes: bytes of UTF-8 of the train split that are read, the first
      ones; 0: all.
    validation_bytes: the same of the validation split, if it has files.
    test_bytes: the same of the test split, if it has files.
  """

  separator: str = '\n'
  train_bytes: int = 0
  validation_bytes: int = 0
  test_bytes: int = 0
  is_stream: ClassVar[bool] = True

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, 'label_column', '')

  def check(self, directory: str) -> None:
    super().check(directory)
    for split in SPLITS:
      name = f'{split}_bytes'
      size = getattr(self, name)
      require(size >= 0, name, size, 'at least 0 (0 reads all)')
      files = f'0, or config.data.text.{split} must name files'
      require(not size or getattr(self, split), name, size, files)
    if self.join != 'space':
      raise UserError(
        f'config.data.text.join = {self.join!r} must be space for '
        'config.data.source = stream'
      )

  def read(self, directory, seed, files=None) -> dict[str, Iterable[Row]]:
    """Pieces of the texts by split; arguments and errors are those of Text.

    Sizes are of the splits of a run; other files are read whole.
    """

    def most(split: str) -> int:
      return getattr(self, f'{split}_bytes') if files is None else 0

    return {
      split: pieces(rows, self.separator, most(split))
      for split, rows in super().read(directory, seed, files).items()
    }

  key = Text.key


def pieces(
  rows: Iterable[Row], separator: str = '\n', most: int = 0
) -> Iterator[Row]:
  """Rows of the pieces of texts, for the `read` of a data set of a stream.

  Each text is followed by the separator. Only the first bytes of UTF-8 are
  read, if `most` is not 0.
  """
  left = most or float('inf')
  for row in rows:
    for text in parts(f'{row.text}{separator}'):
      size = len(text.encode())
      if size >= left:
        text = text.encode()[: int(left)].decode(errors='ignore')
        yield row._replace(text=text)
        return
      left -= size
      yield row._replace(text=text)


def parts(text: str) -> Iterator[str]:
  """Parts of a text, which are the text one after another."""
  start = 0
  while len(text) - start > _PIECE:
    end = start + _PIECE
    space = _END.search(text, start + _PIECE // 2, end)
    end = space.start() if space else end
    yield text[start:end]
    start = end
  yield text[start:]


def num_bytes(rows: Rows, chosen: np.ndarray) -> int:
  """Bytes of UTF-8 of the texts of a range of rows."""
  return int(rows.offsets[chosen[-1] + 1] - rows.offsets[chosen[0]])


def windows(tokens: np.ndarray, length: int, stride: int = 0) -> Examples:
  """Windows of `length` tokens, each with the token after it.

  All tokens but the first follow those of a window; the last window may be
  shorter. A window begins `stride` tokens after the one before; 0: `length`.
  """
  stride = stride or length
  after_first = max(len(tokens) - 1 - length, 0)
  starts = stride * np.arange(1 + -(-after_first // stride), dtype=np.int64)
  lengths = np.minimum(length + 1, len(tokens) - starts).astype(np.int32)
  return Examples(tokens, starts, lengths, np.zeros(len(starts), np.int32))


def bits_per_byte(loss: float, num_tokens: int, num_bytes: int) -> float:
  """From the mean loss of a text, in nats per token that is predicted.

  Args:
    num_tokens: of the text, with its first one, which is not predicted.
    num_bytes: of the text.
  """
  return loss * num_tokens / (num_bytes * math.log(2))
