"""The contracts of data sets, formats of files, and vocabularies."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from experiments.command.errors import UserError, nearest, require

SPLITS = ('train', 'validation', 'test')
# (label or None, path) of each file.
Files = Iterable[tuple[str | None, str]]


@dataclasses.dataclass(frozen=True)
class Dataset:
  """The contract of a data set: labelled texts by split; fields are options.

  A class that also defines `key(directory, digest)`, a JSON value of all that
  the rows depend on, is read once and stored (experiments.data.store); one that
  inherits it is not.

  Attributes:
    is_generated: whether a program makes it, with its test split, so that it
      has no folds.
    is_stream: whether its rows are pieces of one stream, in their order, and
      examples are windows of it; see experiments.data.streams.pieces.
    has_pairs: whether the text of each row is a tuple of two texts.
    num_apart: how many texts the tuple of each row has that are encoded apart;
      0: a row is one text, or a pair.
    classes: the labels in order; empty: those of train, sorted, numbers by
      value.
    unknown_labels: what to do with rows of other labels: 'error' or 'drop'.
    has_token_labels: whether the labels of a generated data set are of tokens,
      as experiments.data.token_labels reads them.
  """

  is_generated: ClassVar[bool] = False
  is_stream: ClassVar[bool] = False
  has_pairs: ClassVar[bool] = False
  num_apart: ClassVar[int] = 0
  classes: ClassVar[Sequence[str]] = ()
  # An option in a subclass, in its order there.
  unknown_labels = 'error'
  has_token_labels: ClassVar[bool] = False

  def check(self, directory: str) -> None:
    """ValueError `OPTION = VALUE must be ...`; no file is read."""

  def read(self, directory: str, seed: int) -> Mapping[str, Iterable[Any]]:
    """Rows, see experiments.data.rows, of train, validation and test.

    A split that is left out is held out from train, see DataSettings. The
    folder is config.data.dir, the seed is config.data.seed.
    """
    raise NotImplementedError


def check_sizes(source: Dataset, least: int, most: int, names) -> None:
  """ValueError if an option of `names` is not between two numbers."""
  for name in names:
    size = getattr(source, name)
    is_allowed = least <= size <= most
    require(is_allowed, name, size, f'between {least} and {most}')


class InvalidRow(ValueError):
  """What is wrong with a row, and the key to change.

  Attributes:
    column: the one that is wrong, the key of which ends the message; '': the
      message has its key.
  """

  def __init__(self, reason: str, column: str = ''):
    super().__init__(reason)
    self.column = column


def no_column(column: str, names: Iterable[str]) -> str:
  """The beginning of a message: what there is in place of a column."""
  names = [*names]
  # A table of another delimiter has one.
  near = nearest(column, names) if len(names) > 1 else ''
  return f'no column {column!r} in {ascii(names)[:200]}{near or ";"}'


@dataclasses.dataclass(frozen=True)
class Format:
  """The contract of a format; fields are options.

  Attributes:
    has_columns: whether the columns of a row have names; a format without them
      has a text in each row, and its label.
    has_files: whether it reads files, which are below config.data.dir; the
      names of others are all that `records` gets.
  """

  has_columns: ClassVar[bool] = True
  has_files: ClassVar[bool] = True

  def files(
    self, name: str, directory: str, key: str, is_labelled: bool
  ) -> Files:
    """The files that a name or a pattern matches, in order.

    Args:
      key: of the name, for messages.
      is_labelled: whether labels are read.

    Raises:
      UserError: there is no such file.
    """
    return [(None, path) for path in paths(name, directory, key, False)]

  def contents(self, path: str) -> list[str]:
    """The files with the content of one of `files`, for a digest of them."""
    return [path]

  def records(
    self, file: Any, columns: Sequence[str], encoding: str, all_columns: bool
  ) -> Iterator[dict | None]:
    """The values of each row, by column; None for a blank line.

    Args:
      file: open for bytes, decompressed; a name where has_files is False.
      columns: those that are needed; without columns, the names of the text
        and, if labels are read, of the label.
      encoding: of a file of text.
      all_columns: whether all other columns are needed, too.

    Raises:
      InvalidRow: of the row after those before.
    """
    raise NotImplementedError


# What systems put beside files: resource forks in a zip, and pictures of them.
_OF_SYSTEMS = {'__MACOSX', 'Thumbs.db', 'desktop.ini'}


def matched(pattern: str, directory: str) -> list[str]:
  """Names in a folder of what a pattern matches, sorted.

  A star matches no hidden file or folder, and none of a system.
  """
  names = glob.glob(pattern, root_dir=directory or None, recursive=True)
  return sorted(
    name for name in names if _OF_SYSTEMS.isdisjoint(name.split(os.sep))
  )


def paths(name: str, directory: str, key: str, is_folder: bool) -> list[str]:
  """Paths of the files, or folders, that a name or a pattern matches."""
  names = [name]
  if not os.path.exists(os.path.join(directory, name)):
    names = matched(name, directory)
  paths = [os.path.normpath(os.path.join(directory, name)) for name in names]
  paths = [path for path in paths if os.path.isdir(path) == is_folder]
  if not paths:
    kind = 'folder' if is_folder else 'file'
    where = '' if os.path.isabs(name) else f' in {directory}'
    raise UserError(
      f'{key} = {name!r}: there is no such {kind}{where}, and none that it '
      'matches'
    )
  return paths


@dataclasses.dataclass(frozen=True)
class Tokenization:
  """The contract of how texts become tokens; fields are options.

  Attributes:
    is_published: whether it is that of another model, with special tokens of
      its own, and is not fitted to texts.
  """

  is_published: ClassVar[bool] = False

  def check(self) -> None:
    """ValueError `OPTION = VALUE must be ...` for one that is out of range."""

  def of_stream(self) -> Tokenization:
    """The tokenization of texts that follow one another, as in a stream."""
    return self

  def train(self, texts: Iterable[str | list[str]]) -> Any:
    """A tokenizers.Tokenizer fitted to the texts of train.

    Its first ids are SPECIAL_TOKENS, see experiments.data.vocabularies.
    """
    raise NotImplementedError
