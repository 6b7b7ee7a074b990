"""What a workdir keeps of its data: labels, counts and a fingerprint."""

from __future__ import annotations

import json
import os
from typing import Any

from experiments.command.errors import UserError
from experiments.data.contract import UNLABELLED

_KEYS = {'labels', 'of_train', 'counts', 'fingerprint'}


def exist(workdir: str) -> bool:
  """Whether a workdir has facts, so that its data is fixed; '' has none."""
  return bool(workdir) and os.path.exists(_path(workdir))


def read_facts(workdir: str) -> dict[str, Any]:
  """The facts of the data of a workdir, as of selection.Selection.

  A UserError says that data.json is missing or corrupt.
  """
  path = _path(workdir)
  if not os.path.exists(path):
    raise UserError(f'{path} does not exist; is --workdir the folder of a run?')
  try:
    with open(path, encoding='utf-8') as file:
      facts = json.load(file)
    if not isinstance(facts, dict) or not facts.keys() >= _KEYS:
      raise ValueError(f'it needs {", ".join(sorted(_KEYS))}')
  except ValueError as error:
    raise UserError(f'{path} is corrupt: {error}') from error
  return facts


def check(workdir: str, facts: dict[str, Any]) -> None:
  """UserError if these are not the facts of the workdir."""
  known = read_facts(workdir)
  if UNLABELLED not in facts:
    # What only evaluates does not read them.
    known.pop(UNLABELLED, None)
  if known != facts:
    raise UserError(
      f'the data has changed since {workdir} was created: '
      f'{_counts(known)} then, {_counts(facts)} now; '
      'restore it, or choose another --workdir'
    )


def _counts(facts: dict[str, Any]) -> dict[str, int]:
  """Number of texts of all splits."""
  more = facts.get(UNLABELLED)
  return facts['counts'] | ({UNLABELLED: more['count']} if more else {})


def _path(workdir: str) -> str:
  return os.path.join(workdir, 'data.json')
