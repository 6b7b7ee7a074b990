"""Formats of texts: the files that a name means, and the records in each.

A format is a class here and a line in FORMATS, or a class of one's own as
`module:Class`. A record is a dict of what a row holds, by column: strings, or
for JSON, Parquet and the hub whatever else they hold. That of a blank line is
None, so that each row keeps its number.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from experiments.command.errors import UserError
from experiments.data import arrow_tables
from experiments.data.conll import Conll, Conllu
from experiments.data.contract import (
  Files,
  Format,
  InvalidRow,
  matched,
  paths,
)
from experiments.data.tables import Csv, Tsv
from experiments.data.text_format import TextFormat


class _Number(float):
  """A number of JSON with a point or an exponent; its str is as written."""

  def __init__(self, written: str):
    self._written = written

  def __str__(self) -> str:
    return self._written


_DECODER = json.JSONDecoder(parse_float=_Number)


@dataclasses.dataclass(frozen=True)
class Json(TextFormat):
  """An object on each line, or an array of objects."""

  def parse(self, text, columns) -> Iterator[Any]:
    while (char := text.read(1)).isspace():
      if char == '\n':
        yield None
    if char == '[':
      yield from map(_object, _DECODER.decode(char + text.read()))
    elif char:
      for line in itertools.chain([char + text.readline()], text):
        yield _object(_DECODER.decode(line)) if line.strip() else None


def _object(value: Any) -> dict:
  if not isinstance(value, dict):
    shown = 'null' if value is None else ascii(value)[:200]
    raise InvalidRow(f'not a JSON object but {shown}; correct or remove it')
  return value


@dataclasses.dataclass(frozen=True)
class Lines(TextFormat):
  """On each line a label, a space or tab, and a text; or a text alone."""

  has_columns = False

  def parse(self, text, columns) -> Iterator[dict | None]:
    for line in text:
      values = [line.removesuffix('\n').removesuffix('\r')]
      if len(columns) > 1:
        label, *rest = re.split('[ \t]', values[0], maxsplit=1)
        values = [''.join(rest), label]
      row = dict(zip(columns, values, strict=True))
      yield row if line.strip() else None


def named(entry: str) -> tuple[str, str]:
  """(name, rest) of `name=rest`; the rest may be empty.

  A name with an equals sign has it twice: `x==1=rest`.
  """
  name, _, rest = entry.replace('==', '\0').partition('=')
  return name.replace('\0', '='), rest.replace('\0', '==')


@dataclasses.dataclass(frozen=True)
class ClassFiles(Lines):
  """A file for each class, with a text on each line, named as `label=file`."""

  def files(self, name, directory, key, is_labelled) -> Files:
    if not is_labelled:
      return super().files(name, directory, key, is_labelled)
    label, path = named(name)
    if not path:
      raise UserError(f"{key} = {name!r}: write label=file for 'class_files'")
    return [(label, path) for path in paths(path, directory, key, False)]


@dataclasses.dataclass(frozen=True)
class ClassFolders(TextFormat):
  """A folder with a folder for each class, and a file for each text."""

  has_columns = False
  may_be_page = True

  def files(self, name, directory, key, is_labelled) -> Files:
    """The files of class folders or, without labels, of the folders named.

    Hidden files and folders are left out.
    """
    place = f'{key} = {name!r}'
    folders = paths(name, directory, key, True)
    if is_labelled:
      inside = [path for folder in folders for path in _visible(folder)]
      folders = [path for path in inside if os.path.isdir(path)]
    files = []
    for folder in folders:
      texts = _visible(folder)
      inner = [path for path in texts if os.path.isdir(path)]
      if inner:
        raise UserError(f'{place}: {inner[0]} is a folder, not a file of text')
      if not texts:
        raise UserError(f'{place}: {folder} has no file')
      label = os.path.basename(folder) if is_labelled else None
      files += [(label, path) for path in texts]
    if not files:
      raise UserError(f'{place} has no class folder')
    return files

  def parse(self, text, columns) -> list[dict]:
    return [{columns[0]: text.read()}]


FORMATS: dict[str, type[Format]] = {
  'tsv': Tsv,
  'csv': Csv,
  'json': Json,
  'parquet': arrow_tables.Parquet,
  'lines': Lines,
  'conll': Conll,
  'conllu': Conllu,
  'class_files': ClassFiles,
  'class_folders': ClassFolders,
  'hub': arrow_tables.Hub,
}


def _visible(folder: str) -> list[str]:
  return [os.path.join(folder, name) for name in matched('*', folder)]
