"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log, withheld
from experiments.data import encoding, groups, selection, streams
from experiments.data import rows as rows_lib
from experiments.data.batches import Examples, bucket_lengths
from experiments.data.contract import Dataset
from experiments.data.data_settings import DataSettings
from experiments.data.labels import CLASSES, Classes, LabelFacts, Labels
from experiments.data.rows import Row, Rows
from experiments.data.selection import read_facts
from experiments.data.store import (
  Arrays,
  Store,
  default_folder,
  digest,
  packed,
)
from experiments.data.text_files import Text
from experiments.data.token_labels import TokenLabels, check_words, of_tokens
from experiments.data.vocabularies import Vocabulary

Splits = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    label_facts: names of the outputs, and what train has of each.
    vocabulary: number of token ids, and which of them begin a word.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
    rows: what was read.
    indices: of the row of each example, or of the pieces of a stream, by split.
    is_truncated: whether each text of a split is; of a stream empty.
    num_bytes: of a stream, the bytes of UTF-8 of each split; else empty.
  """

  splits: dict[str, Examples]
  label_facts: LabelFacts
  vocabulary: Vocabulary
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]
  rows: Rows
  indices: Splits
  is_truncated: Splits = dataclasses.field(default_factory=dict)
  num_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

  @property
  def longest(self) -> int:
    """Tokens of the longest text, or of a window that predicts as many."""
    return self.bucket_lengths[-1] - bool(self.num_bytes)

  def row(self, split: str, index: int) -> Row:
    """The row of an example, with its file relative to the folder of all."""
    row = self.rows.row(int(self.indices[split][index]))
    folder = self.rows.directory or '.'
    return row._replace(file=os.path.relpath(row.file, folder))

  def scores(
    self, split: str, task, outputs, examples: Examples | None = None
  ) -> dict[str, float | None]:
    """The metrics of a split: of the task, and of a stream, bits per byte.

    A UserError says which metrics a task of one's own lacks. `examples` are
    other windows of the stream than those of the split.
    """
    examples = examples or self.splits[split]
    scores = task.scores(outputs, examples.labels)
    if missing := sorted(task.all_metrics().keys() - scores.keys()):
      raise UserError(
        f'{type(task).__name__}.scores returns {sorted(scores)}, without '
        f'{missing} of its metrics'
      )
    if split in self.num_bytes:
      scores['bits_per_byte'] = streams.bits_per_byte(
        scores['loss'], len(examples.tokens), self.num_bytes[split]
      )
    return scores


def load(
  settings: DataSettings,
  workdir: str,
  tokenizer=None,
  labels: Labels | None = CLASSES,
) -> Data:
  """Reads, splits and tokenises; a UserError says what is invalid.

  What was read before is taken from `store`. Writes nothing into the workdir:
  `files` of the result are to be stored there.

  Args:
    workdir: of a run, whose data and vocabulary it must be; '' for none.
    tokenizer: that of a new run, with [SEP] for pairs; None: it has its own.
    labels: how the task reads them; None: it does not.
  """
  source, rows, key, store, chosen = selected(settings, labels)
  reader = labels or Labels()
  # Else its data is fixed.
  is_new = not (workdir and os.path.exists(os.path.join(workdir, 'data.json')))
  if not is_new:
    selection.check_facts(workdir, chosen.facts)
    tokenizer = encoding.read_tokenizer(workdir)
  elif tokenizer is None:
    tokenizer = encoding.vocabulary(
      store, rows, chosen, settings.vocabulary, source
    )
  has_words = isinstance(reader, TokenLabels)
  num_apart = source.num_apart
  arrays = encoding.tokens(
    store, key, rows, tokenizer, settings, num_apart, has_words
  )
  parts = Tokenised(rows, arrays, chosen.splits, tokenizer, num_apart)
  if is_new:
    _warn([*rows.warnings, *chosen.problems], parts)
    for said in groups.balance(rows, chosen.splits, settings.group_column):
      log(said)
  files = {
    'tokenizer.json': tokenizer.to_str(pretty=True),
    'data.json': json.dumps(chosen.facts, indent=2),
  }
  return _data(parts, settings, reader, LabelFacts.of(chosen.facts), files)


def check_unchanged(
  settings: DataSettings, workdirs: list[str], labels: Labels | None
) -> None:
  """UserError for a run on other data than there is now; says if it is gone.

  Data that is generated or of the hub is not compared.

  Args:
    workdirs: of runs with these settings.
    labels: how their task reads them.
  """
  if not settings.dir:
    # It is generated, or of the hub.
    return
  try:
    facts = selected(settings, labels)[-1].facts
  except UserError as error:
    log(
      'WARNING: nobody knows whether the data is that of the result, since it '
      f'cannot be read: {error}'
    )
    return
  for workdir in workdirs:
    selection.check_facts(workdir, facts)


def selected(settings: DataSettings, labels: Labels | None):
  """(data set, rows, what they depend on, store, Selection) of settings.

  A UserError says what is invalid.
  """
  source = settings.dataset()
  with settings.source.checked():
    rows, key, store = _read(
      source, settings.dir, settings.seed, column=settings.group_column
    )
  reader = labels or Labels()
  chosen = selection.stored(store, key, rows, source, settings, reader)
  return source, rows, key, store, chosen


def load_file(
  settings: DataSettings,
  workdir: str,
  name: str,
  options: Mapping[str, Any],
  labels: Labels | None,
) -> Data:
  """Another file than those of a run, as the only split, `test`.

  A UserError says that it is invalid, or that a program makes the data of the
  run.

  Args:
    workdir: of the run with these settings, whose own files are not read.
    name: as in config.data.text.test, of a file below the current folder.
    options: fields of Text in which the file differs from those of the run.
    labels: how the task reads them; None: not at all.
  """
  source = settings.dataset()
  if not isinstance(source, Text):
    raise UserError(
      f'--file={name} needs a run on texts, but this one has '
      f'config.data.source = {settings.source}'
    )
  source = source.changed(options)
  format = source.format.make()
  if labels is None and format.has_columns:
    source = source.changed({'label_column': '', 'label_columns': ()})
  directory = os.getcwd() if format.has_files else ''
  files = {
    'test': format.files(name, directory, '--file', source.label_column != '')
  }
  rows, key, store = _read(source, directory, 0, files)
  reader, known = labels or Labels(), LabelFacts.of(read_facts(workdir))
  values, is_known = reader.values(rows.names, known.names)
  chosen, problems = selection.known(
    rows,
    np.arange(len(rows)),
    is_known[rows.labels],
    '--file',
    source.unknown_labels,
    reader.allowed(known.names),
    '--config.data.text.unknown_labels=drop leaves such rows out',
  )
  if not len(chosen):
    of_labels = ' of a label of the run' if known.names else ''
    raise UserError(f'--file={name} has no text{of_labels}')
  tokenizer, splits = encoding.read_tokenizer(workdir), {'test': chosen}
  has_words = isinstance(reader, TokenLabels)
  num_apart = source.num_apart
  arrays = encoding.tokens(
    store, key, rows, tokenizer, settings, num_apart, has_words
  )
  if not source.is_stream:
    problems += selection.problems(rows, splits)
  if isinstance(reader, Classes):
    of_test = {'test': values[rows.labels[chosen]]}
    problems += selection.missing(of_test, [*known.names])
  parts = Tokenised(rows, arrays, splits, tokenizer, num_apart)
  _warn([*rows.warnings, *problems], parts)
  return _data(parts, settings, reader, known, {})


def _read(
  source: Dataset, directory: str, seed: int, *files: Any, column: str = ''
) -> tuple[Rows, Any, Store]:
  """(the rows of a data set, what they depend on, where they are stored).

  With a column, the rows have the groups of it.
  """
  # Data that a program makes is made again as fast as it is read. A class that
  # inherits its key may read otherwise.
  key_of = vars(type(source)).get('key')
  if isinstance(source, Text) and ':' in source.format.name:
    # Its file may change.
    key_of = None
  store = Store(default_folder() if key_of else None)

  def key_now() -> Any:
    return key_of(source, directory, digest, *files) if key_of else None

  def make() -> Iterator[Arrays]:
    splits = source.read(directory, seed, *files)
    checked = {s: rows_lib.checked(rows, source) for s, rows in splits.items()}
    with withheld() as warnings:
      yield from rows_lib.chunks(checked, directory)
    yield {'warnings': packed(warnings)}

  def unchanged(arrays: Iterator[Arrays]) -> Iterator[Arrays]:
    yield from arrays
    if key_now() != key:
      raise UserError(
        f'a file in {directory} has changed while it was read; run the same '
        'command again'
      )

  key = key_now()
  arrays = store.arrays('rows', key, lambda: unchanged(make()))
  rows = rows_lib.of(arrays, directory)
  if column and isinstance(source, Text):

    def grouped() -> Iterator[Arrays]:
      return unchanged(groups.read(source, directory, column, rows))

    arrays = store.arrays('groups', [key, column], grouped)
    rows = dataclasses.replace(rows, **arrays)
  return rows, key, store


class Tokenised(NamedTuple):
  """Rows, their tokens as of encoding.tokens, and row indices by split."""

  rows: Rows
  arrays: Arrays
  splits: Splits
  tokenizer: Any
  num_apart: int

  def places(self) -> Splits:
    """Where the arrays have the texts of each split."""
    return {
      split: encoding.places(chosen, self.num_apart)
      for split, chosen in self.splits.items()
    }


def _warn(problems: list[str], parts: Tokenised) -> None:
  places = parts.places()
  unknown = encoding.unknown_tokens(parts.arrays, places)
  empty = encoding.empty_apart(parts.arrays, places)
  for problem in [*problems, *unknown, *empty]:
    log(f'WARNING: {problem}')


def _data(
  parts: Tokenised,
  settings: DataSettings,
  reader: Labels,
  label_facts: LabelFacts,
  files: dict[str, str],
) -> Data:
  """The data of a run; logs how many texts are truncated."""
  if settings.is_stream:
    return _stream(parts, settings, files)
  rows, arrays, most = parts.rows, parts.arrays, settings.max_length
  values, _ = reader.values(rows.names, label_facts.names)
  values = reader.learned(values, label_facts)
  examples, cut, words = {}, {}, arrays.get('words')
  for split, places in parts.places().items():
    chosen = parts.splits[split]
    starts, ends = arrays['offsets'][places], arrays['offsets'][places + 1]
    lengths = (ends - starts).astype(np.int32)
    cut[split] = lengths > most
    if 'is_truncated' in arrays:
      cut[split] = arrays['is_truncated'][places]
    encoding.log_truncated(cut[split], most, f'{split} texts')
    lengths, labels = np.minimum(lengths, most), values[rows.labels[chosen]]
    if words is not None:
      check_words(rows, chosen, arrays['num_words'])
      labels = of_tokens(labels, words, starts, lengths)
    examples[split] = Examples(arrays['tokens'], starts, lengths, labels)
  longest = max(int(e.lengths.max(initial=0)) for e in examples.values())
  # The first split: train, or that of another file.
  first = next(iter(examples.values()))
  return Data(
    examples,
    label_facts,
    Vocabulary.of(parts.tokenizer),
    bucket_lengths(first.longest, settings.num_buckets, longest),
    files,
    rows,
    parts.splits,
    cut,
  )


def _stream(
  parts: Tokenised, settings: DataSettings, files: dict[str, str]
) -> Data:
  """The windows of each split, a range of rows; UserError if one has none."""
  offsets, examples, sizes = parts.arrays['offsets'], {}, {}
  for split, chosen in parts.splits.items():
    begin, end = offsets[[chosen[0], chosen[-1] + 1]]
    tokens = parts.arrays['tokens'][begin:end]
    if len(tokens) < 2:
      raise UserError(f'the {split} split has no token that follows another')
    examples[split] = streams.windows(tokens, settings.max_length)
    sizes[split] = streams.num_bytes(parts.rows, chosen)
  return Data(
    examples,
    LabelFacts(),
    Vocabulary.of(parts.tokenizer),
    (settings.max_length + 1,),
    files,
    parts.rows,
    parts.splits,
    num_bytes=sizes,
  )
