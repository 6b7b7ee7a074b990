"""The contracts of data sets and of vocabularies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

SPLITS = ('train', 'validation', 'test')


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
    classes: the labels in order; empty: those of train, sorted, numbers by
      value.
    unknown_labels: what to do with rows of other labels: 'error' or 'drop'.
    has_token_labels: whether the labels of a generated data set are of tokens,
      as experiments.data.token_labels reads them.
  """

  is_generated: ClassVar[bool] = False
  is_stream: ClassVar[bool] = False
  has_pairs: ClassVar[bool] = False
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


@dataclasses.dataclass(frozen=True)
class Tokenization:
  """The contract of how texts become tokens; fields are options."""

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
