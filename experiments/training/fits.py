"""Choices made on validation after training: calibration.json of a workdir.

The temperature of probabilities, and the thresholds of several labels.
"""

from __future__ import annotations

import json
import os
from typing import Any

from experiments.command.errors import UserError
from experiments.workdir.workdir import Workdir, write_atomic

NAME = 'calibration.json'


def write(workdir: Workdir, step: int, fit: dict[str, Any]) -> None:
  """Keeps what TextTask.fit has chosen.

  Args:
    step: of the checkpoint that it was chosen for.
  """
  if workdir.writes and fit:
    text = json.dumps({'step': step, **fit}) + '\n'
    write_atomic(workdir.file(NAME), text)


def read(path: str, step: int) -> dict[str, Any]:
  """The choices for the checkpoint of a step; {} if there are none.

  Args:
    path: folder of a run.

  Raises:
    UserError: the file is corrupt.
  """
  name = os.path.join(path, NAME)
  try:
    with open(name, encoding='utf-8') as file:
      fit = json.load(file)
    return fit if fit.pop('step') == step else {}
  except FileNotFoundError:
    return {}
  except (ValueError, AttributeError, KeyError) as error:
    raise UserError(
      f'{name} is corrupt: {error}; remove it to do without calibration'
    ) from error
