"""How labels are read: from the strings of rows to what a task predicts.

A reader is made for the distinct strings of a data set, so that a batch takes
its labels from an array. It names the outputs of a model, from the strings of
train, and has a value for each string.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from experiments.command.errors import UserError

# A list, tuple or set of strings as programs print it; a list of numbers, which
# may be a class; and one of several as NumPy prints it, which is none.
_STRINGS = re.compile(r'[\[({]\s*([\'"]).*\1,?\s*[\])}]', re.DOTALL)
_NUMBERS = re.compile(r'\[[-+.,\s\d]*\]')
_NUMBER = r'[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?'
_OF_NUMPY = re.compile(rf'\[\s*{_NUMBER}(?:\s+{_NUMBER})+\s*\]')
# The value of config.data.text.label_separator for such lists, and their items:
# strings, and numbers; of NumPy, with spaces alone between them.
PRINTED = '[]'
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+.\w]*\d[-+.\w]*"""
_PRINTED = re.compile(
  rf'[\[({{]\s*(?:(?:{_ITEM})(?:\s*,\s*|\s+|(?=[\])}}])))*[\])}}]'
)
# How MySQL and Hive write that there is no value.
NULL = r'\N'
# The sum of the squares of as many errors as a batch has texts is far below the
# largest float32.
_TOO_LARGE = 1e15
# Cells of columns that say whether a text has a label.
_MARKS = {'0': False, '1': True, 'false': False, 'true': True}


@dataclasses.dataclass(frozen=True)
class LabelFacts:
  """What a task knows of the labels of its data; a workdir keeps it.

  Attributes:
    names: of the outputs of the model, in order.
    rows: number of texts of train.
    counts: for each name, number of texts of train that have it; empty for
      numbers.
    mean, std: of the numbers of train.
  """

  names: tuple[str, ...] = ()
  rows: int = 0
  counts: tuple[int, ...] = ()
  mean: float = 0.0
  std: float = 1.0

  def to_json(self) -> dict[str, Any]:
    """All but the names, as data.json of a workdir holds it."""
    values = dataclasses.asdict(self)
    del values['names']
    return values

  @classmethod
  def of(cls, facts: dict[str, Any]) -> LabelFacts:
    """Facts from data.json."""
    values = facts['of_train'] | {'counts': tuple(facts['of_train']['counts'])}
    return cls(tuple(facts['labels']), **values)


@dataclasses.dataclass(frozen=True)
class Labels:
  """The contract of a reader; this one reads nothing.

  Attributes:
    least: fewest outputs that can be learned.
    is_listable: whether config.data.text.labels may list the names.
    is_optional: whether texts may have none, an empty string.
  """

  least: ClassVar[int] = 0
  is_listable: ClassVar[bool] = False
  is_optional: ClassVar[bool] = False

  def names(self, train: Iterable[str]) -> list[str]:
    """Names of the outputs, from the distinct strings of train."""
    return []

  def values(
    self, strings: Sequence[str], names: Sequence[str]
  ) -> tuple[np.ndarray, np.ndarray]:
    """(value of each label as it was read, whether it is one of `names`)."""
    count = len(strings)
    return np.zeros(count, np.int32), np.ones(count, bool)

  def facts(self, names: Sequence[str], values: np.ndarray) -> LabelFacts:
    """Facts of the names, and of the values of all rows of train."""
    return LabelFacts(tuple(names), len(values))

  def learned(self, values: np.ndarray, facts: LabelFacts) -> np.ndarray:
    """What Examples have of the values; not float64, which devices round."""
    return values

  def allowed(self, names: Sequence[str]) -> str:
    """What a string must be, for messages."""
    return 'anything'


@dataclasses.dataclass(frozen=True)
class Classes(Labels):
  """One of several classes; a value is the index of its name, or -1."""

  least: ClassVar = 2
  is_listable: ClassVar = True

  def names(self, train: Iterable[str]) -> list[str]:
    """Sorted, numbers by value; UserError for a list of labels."""
    names = sorted(train, key=by_value)
    if sets := [name for name in names if is_joined(name)]:
      raise UserError(
        f'the label {sets[0]:.200} is a list, and config.task reads one class '
        'of each text: change it to config.task=multilabel, or write the class '
        'without a list'
      )
    return names

  def values(self, strings, names):
    index_of = {name: index for index, name in enumerate(names)}
    indices = [index_of.get(string, -1) for string in strings]
    values = np.array(indices, np.int32)
    return values, values >= 0

  def facts(self, names, values):
    counts = np.bincount(values[values >= 0], minlength=len(names))
    return LabelFacts(tuple(names), len(values), tuple(counts.tolist()))

  def allowed(self, names):
    return f'one of [{first(map(repr, names))}]'


@dataclasses.dataclass(frozen=True)
class Sets(Labels):
  """Any number of labels; a value is 0 or 1 for each name.

  A string is a JSON list of names, as `joined` writes it.
  """

  least: ClassVar = 1
  is_listable: ClassVar = True

  def names(self, train: Iterable[str]) -> list[str]:
    return sorted({n for s in train for n in parts(s) or ()}, key=by_value)

  def values(self, strings, names):
    index_of = {name: index for index, name in enumerate(names)}
    values = np.zeros((len(strings), len(names)), np.float32)
    is_known = np.zeros(len(strings), bool)
    for row, string in enumerate(strings):
      labels = parts(string)
      is_known[row] = labels is not None and index_of.keys() >= set(labels)
      if is_known[row]:
        values[row, [index_of[label] for label in labels or ()]] = 1
    return values, is_known

  def facts(self, names, values):
    counts = values.sum(axis=0, dtype=np.int64)
    return LabelFacts(tuple(names), len(values), tuple(counts.tolist()))

  def allowed(self, names):
    return (
      f'a list of labels of [{first(map(repr, names))}], as config.data.text'
      '.label_separator and label_columns make them'
    )


@dataclasses.dataclass(frozen=True)
class Numbers(Labels):
  """A number, float64; Examples have its distance from the mean of train.

  The distance is in standard deviations of train, float32.
  """

  least: ClassVar = 1

  def names(self, train: Iterable[str]) -> list[str]:
    return ['value']

  def values(self, strings, names):
    numbers = np.array([_number(string) for string in strings])
    is_known = abs(numbers) < _TOO_LARGE
    return np.where(is_known, numbers, 0.0), is_known

  def facts(self, names, values):
    # The deviation of equal numbers is not 0 where their mean is rounded.
    mean, std = float(values.mean()), float(values.std())
    std = std if np.ptp(values) > 0 else 1.0
    return LabelFacts(tuple(names), len(values), mean=mean, std=std)

  def learned(self, values, facts):
    return ((values - facts.mean) / facts.std).astype(np.float32)

  def allowed(self, names):
    return f'a finite number, absolute value below {_TOO_LARGE:.0e}'


@dataclasses.dataclass(frozen=True)
class Similarities(Labels):
  """How alike the texts of an example are, a number; without labels, NaN."""

  is_optional: ClassVar = True

  def values(self, strings, names):
    numbers = np.array([_number(string) for string in strings])
    is_known = np.array([string == '' for string in strings])
    return numbers, is_known | (abs(numbers) < _TOO_LARGE)

  def learned(self, values, facts):
    return values.astype(np.float32)

  def allowed(self, names):
    return Numbers().allowed(names)


CLASSES = Classes()


class Listed(str):
  """The labels of a list in a file, as JSON; a string is another label."""

  __slots__ = ()


def check_is_no_list(text: str, has_separator: bool) -> None:
  """ValueError for a list that a program has printed into a string."""
  is_list = _STRINGS.fullmatch(text) or _OF_NUMPY.fullmatch(text)
  if is_list or (has_separator and _NUMBERS.fullmatch(text)):
    raise ValueError(
      f'the label {text!r:.200} is a list as programs print it; '
      f'config.data.text.label_separator = {PRINTED!r} reads it'
    )


def printed(text: str) -> list[str]:
  """The labels of a list as programs print it: ['a', 'b'], ["a"], [0 27], [].

  A ValueError says that it is none.
  """
  with contextlib.suppress(ValueError):
    # JSON, whose escapes are others than those of Python.
    items = json.loads(text, parse_int=str, parse_float=str)
    if isinstance(items, list) and all(isinstance(i, str) for i in items):
      return items
  if _PRINTED.fullmatch(text) and text[0] + text[-1] in ('[]', '()', '{}'):
    items = re.findall(_ITEM, text)
    # Quotes may hold what is no string of Python.
    with contextlib.suppress(SyntaxError):
      return [ast.literal_eval(i) if i[0] in '\'"' else i for i in items]
  raise ValueError(
    f'the label {text!r:.200} is no list of strings or numbers, as '
    f'config.data.text.label_separator = {PRINTED!r} reads them; correct it'
  )


def joined(labels: Iterable[str]) -> str:
  """The string of a set of labels; equal sets have equal strings."""
  return json.dumps(sorted(set(labels)), ensure_ascii=False)


def check_is_unquoted(text: str) -> None:
  """ValueError for quotes after white space, which quote nothing in a CSV."""
  if re.fullmatch(r'\s+".*"\s*', text, re.DOTALL):
    raise ValueError(
      f'the label {text!r:.200} has white space before its quotes, which are '
      'part of it then; write no space after a delimiter'
    )


def is_joined(string: str) -> bool:
  """Whether `joined` has written it."""
  labels = parts(string)
  return labels is not None and joined(labels) == string


def check_are_names(labels: Sequence[str]) -> None:
  """ValueError for labels of one text that say of each whether it has it."""
  if len(set(labels)) < len(labels) and {*labels} <= {*_MARKS}:
    raise ValueError(
      f'the labels {[*labels]!r:.200} are repeated, but each is the name of a '
      'label that the text has; write 0 and 1 in a column for each label, and '
      'their names in config.data.text.label_columns'
    )


def parts(string: str) -> list[str] | None:
  """The labels of a JSON list; None if the string is none."""
  if not string.startswith('['):
    return None
  try:
    return [str(label) for label in json.loads(string)]
  except ValueError:
    return None


def separated(text: str, separator: str) -> list[str]:
  """The labels between separators, without white space around them."""
  labels = (part.strip() for part in text.split(separator))
  return [label for label in labels if label]


def marked(columns: Sequence[str], cells: Sequence[str]) -> list[str]:
  """The columns whose cells are 1; ValueError for other cells than 0 and 1."""
  labels = []
  for column, cell in zip(columns, cells, strict=True):
    if cell.lower() not in _MARKS:
      raise ValueError(
        f'column {column!r} is {cell!r} and must be 0 or 1; correct it, or '
        'change config.data.text.label_columns'
      )
    if _MARKS[cell.lower()]:
      labels.append(column)
  return labels


def first(words: Iterable[str]) -> str:
  """The first three words, followed by dots if there are more."""
  words = list(itertools.islice(words, 4))
  return ', '.join(words[:3] + ['...'] * (len(words) > 3))


def _number(string: str) -> float:
  """The number of a string, or NaN."""
  # Python reads 1_000, and the digits of all scripts.
  if '_' in string or not string.isascii():
    return math.nan
  try:
    return float(string)
  except ValueError:
    return math.nan


def by_value(label: str) -> tuple[float, str]:
  """A key that sorts numbers by value, before other labels."""
  number = _number(label)
  return (number if math.isfinite(number) else math.inf, label)
