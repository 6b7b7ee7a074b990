"""From labelled texts to token ids: splits, labels, vocabulary.

A workdir stores the vocabulary and a fingerprint of the data, so that a run
cannot be resumed or evaluated on other data than it was trained on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, facts, pairs, selection, streams
from experiments.data import rows as rows_lib
from experiments.data.batches import Examples, bucket_lengths
from experiments.data.contract import UNLABELLED
from experiments.data.data_settings import DataSettings
from experiments.data.facts import read_facts
from experiments.data.file_names import matching
from experiments.data.labels import CLASSES, LabelFacts, Labels
from experiments.data.rows import Row, Rows
from experiments.data.store import Arrays, Store, default_folder, digest
from experiments.data.text_files import Text
from experiments.data.token_labels import TokenLabels, check_aligned
from experiments.data.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Data:
  """The tokenised data of a run.

  Attributes:
    splits: examples of train, validation and test.
    with_unlabelled: those of train, followed by the unlabelled ones, whose
      labels mean nothing.
    label_facts: names of the outputs, and what train has of each.
    vocabulary: number of token ids, and which of them begin a word.
    bucket_lengths: lengths that batches are padded to, ascending.
    files: files to store in the workdir, content by name.
    num_bytes: of a stream, the bytes of UTF-8 of each split; else empty.
    rows: what was read; None: of another file than those of a run.
    indices: of the row of each example, by split.
  """

  splits: dict[str, Examples]
  with_unlabelled: Examples
  label_facts: LabelFacts
  vocabulary: Vocabulary
  bucket_lengths: tuple[int, ...]
  files: dict[str, str]
  num_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
  rows: Rows | None = None
  indices: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def row(self, split: str, index: int) -> Row:
    """The row of an example, with its file relative to the folder of all."""
    assert self.rows is not None
    row = self.rows.row(int(self.indices[split][index]))
    folder = self.rows.directory or '.'
    return row._replace(file=os.path.relpath(row.file, folder))

  def scores(
    self, split: str, task, outputs, examples: Examples | None = None
  ) -> dict[str, float]:
    """The metrics of a split: of the task, and of a stream, bits per byte.

    Args:
      outputs: of the task for all examples of the split.
      examples: in other windows of the stream; None: those of the split.

    Raises:
      UserError: a task of one's own lacks some of its metrics.
    """
    examples = examples or self.splits[split]
    scores = task.scores(outputs, examples.labels)
    if missing := sorted(task.metrics.keys() - scores.keys()):
      raise UserError(
        f'{type(task).__name__}.scores returns {sorted(scores)}, without '
        f'{missing} of its metrics'
      )
    if split in self.num_bytes:
      scores['bits_per_byte'] = streams.bits_per_byte(
        scores['loss'], examples, self.num_bytes[split]
      )
    return scores


def load(
  settings: DataSettings,
  workdir: str,
  tokenizer=None,
  labels: Labels | None = CLASSES,
) -> Data:
  """Reads, splits and tokenises, with the vocabulary of the workdir if any.

  What was read before is taken from `store`. Writes nothing into the workdir:
  `files` of the result are to be stored there.

  Args:
    workdir: folder of a run; '' for none.
    tokenizer: that of a new run, with [SEP] for pairs; None: it has its own.
    labels: how the task reads them; None: it does not.

  Raises:
    UserError: the data is invalid, or not that of this workdir.
  """
  source, directory = settings.dataset(), settings.dir
  # Data that a program makes is made again as fast as it is read. A class that
  # inherits its key may read otherwise.
  key_of = vars(type(source)).get('key')
  store = Store(default_folder() if key_of else None)
  with settings.source.checked():
    rows, key = _read(
      store,
      directory,
      lambda: pairs.checked(source.read(directory, settings.seed), source),
      lambda: key_of(source, directory, digest) if key_of else None,
    )
  choose = streams.select if settings.is_stream else selection.select
  reader = labels or Labels()
  chosen = selection.stored(store, key, rows, source, settings, reader, choose)
  is_new = not facts.exist(workdir)
  if not is_new:
    facts.check(workdir, chosen.facts)
    tokenizer = encoding.read_tokenizer(workdir)
  elif tokenizer is None:
    tokenizer = encoding.vocabulary(
      store, rows, chosen, settings.vocabulary, source
    )
  arrays = encoding.tokens(store, key, rows, tokenizer, settings.pair_length)
  if is_new:
    unknown = encoding.unknown_tokens(arrays, chosen.splits)
    for problem in [*chosen.problems, *unknown]:
      log(f'WARNING: {problem}')
  files = {
    'tokenizer.json': tokenizer.to_str(pretty=True),
    'data.json': json.dumps(chosen.facts, indent=2),
  }
  known = LabelFacts.of(chosen.facts)
  if settings.is_stream:
    return _stream(arrays, rows, chosen.splits, tokenizer, settings, files)
  data = _data(
    arrays, rows, chosen.splits, reader, known, tokenizer, settings, files
  )
  return dataclasses.replace(data, rows=rows, indices=chosen.splits)


def load_file(
  settings: DataSettings,
  workdir: str,
  name: str,
  options: Mapping[str, Any],
  labels: Labels | None,
  unknown_labels: str,
) -> Data:
  """Another file than those of a run.

  Args:
    settings: of the run.
    workdir: of the run; its own files are not read.
    name: as in config.data.text.test, of a file below the current folder.
    options: fields of Text in which the file differs from those of the run.
    labels: how the task reads them; None: not at all.
    unknown_labels: what to do with rows of other labels: 'error' or 'drop'.

  Returns:
    the file as the only split, test.

  Raises:
    UserError: the data of the run is made by a program, or the file is invalid.
  """
  source = settings.dataset()
  if not isinstance(source, Text):
    raise UserError(
      f'--file={name} needs a run on texts, but this one has '
      f'config.data.source = {settings.source}'
    )
  source = source.changed(options)
  if labels is None and source.format != 'lines':
    source = source.changed({'label_column': '', 'label_columns': ()})
  directory = '' if source.format == 'hub' else os.getcwd()
  files = {'test': matching(source.format, name, directory, '--file')}
  store = Store(default_folder())
  rows, key = _read(
    store,
    directory,
    lambda: source.read(directory, 0, files),
    lambda: source.key(directory, digest, files),
  )
  reader, known = labels or Labels(), LabelFacts.of(read_facts(workdir))
  _, is_known = reader.values(rows.names, known.names)
  chosen, problems = selection.known(
    rows,
    np.arange(len(rows)),
    is_known[rows.labels],
    '--file',
    unknown_labels,
    reader.allowed(known.names),
    '--unknown_labels=drop leaves such rows out',
  )
  if not len(chosen):
    raise UserError(f'--file={name} has no text of a label of the run')
  tokenizer, splits = encoding.read_tokenizer(workdir), {'test': chosen}
  arrays = encoding.tokens(store, key, rows, tokenizer, settings.pair_length)
  for problem in [*problems, *encoding.unknown_tokens(arrays, splits)]:
    log(f'WARNING: {problem}')
  if settings.is_stream:
    return _stream(arrays, rows, splits, tokenizer, settings, {})
  return _data(arrays, rows, splits, reader, known, tokenizer, settings, {})


def _read(
  store: Store,
  directory: str,
  read: Callable[[], Mapping[str, Iterable[Row]]],
  key_of: Callable[[], Any],
) -> tuple[Rows, Any]:
  """(the rows of all files, the key of what they depend on)."""

  def make():
    yield from rows_lib.chunks(read(), directory)
    if key_of() != key:
      raise UserError(
        f'a file in {directory} has changed while it was read; run the same '
        'command again'
      )

  key = key_of()
  return rows_lib.of(store.arrays('rows', key, make), directory), key


def _data(
  arrays: Arrays,
  rows: Rows,
  splits: dict[str, np.ndarray],
  reader: Labels,
  label_facts: LabelFacts,
  tokenizer,
  settings: DataSettings,
  files: dict[str, str],
) -> Data:
  """Rows and their tokens as a run has them; logs how many are truncated."""
  values, _ = reader.values(rows.names, label_facts.names)
  examples, most = {}, settings.max_length
  for split, part in splits.items():
    starts, ends = arrays['offsets'][part], arrays['offsets'][part + 1]
    lengths = (ends - starts).astype(np.int32)
    if isinstance(reader, TokenLabels):
      check_aligned(rows, part, lengths)
    is_truncated = lengths > most
    if 'is_truncated' in arrays:
      is_truncated = arrays['is_truncated'][part]
    encoding.log_truncated(is_truncated, most, f'{split} texts')
    examples[split] = Examples(
      arrays['tokens'],
      starts,
      np.minimum(lengths, most),
      values[rows.labels[part]],
    )
  longest = max(int(e.lengths.max(initial=0)) for e in examples.values())
  unlabelled = examples.pop(UNLABELLED, None)
  # The first split: train, or that of another file.
  first = next(iter(examples.values()))
  return Data(
    examples,
    first.followed_by(unlabelled) if unlabelled else first,
    label_facts,
    Vocabulary.of(tokenizer),
    bucket_lengths(first.lengths, settings.num_buckets, longest),
    files,
  )


def _stream(
  arrays: Arrays,
  rows: Rows,
  splits: dict[str, np.ndarray],
  tokenizer,
  settings: DataSettings,
  files: dict[str, str],
) -> Data:
  """The windows of each split of a stream; raises UserError if there are none.

  Args:
    splits: ranges of rows.
  """
  offsets, examples = arrays['offsets'], {}
  for split, part in splits.items():
    tokens = arrays['tokens'][offsets[part[0]] : offsets[part[-1] + 1]]
    if len(tokens) < 2:
      raise UserError(f'the {split} split has no token that follows another')
    examples[split] = streams.windows(tokens, settings.max_length)
  return Data(
    examples,
    next(iter(examples.values())),
    LabelFacts(),
    Vocabulary.of(tokenizer),
    (settings.max_length + 1,),
    files,
    {split: streams.num_bytes(rows, part) for split, part in splits.items()},
  )
