"""Hyperparameters that do not change the compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import chex
import jax
import numpy as np


def _at(path: str, make: Callable = np.float32, removable: bool = False):
  """A field of HParams: the value at this path of the settings.

  Args:
    make: makes a NumPy scalar of it. A Python float has a weak type, and
      another type is another program.
    removable: 0 leaves the hyperparameter out, which is another program.
  """
  metadata = {'path': path, 'make': make, 'removable': removable}
  return dataclasses.field(metadata=metadata)


@chex.dataclass(frozen=True, mappable_dataclass=False)
class HParams:
  """Hyperparameters that do not change the program; each may be traced.

  This is the only list of them. None leaves one out.

  Attributes:
    learning_rate_scales: of each group of config.optimizer.groups, by name.
    Further fields are those of the settings; `key` is made of the seed.
  """

  key: chex.PRNGKey = _at('seed', jax.random.key)
  learning_rate: chex.Numeric = _at('optimizer.learning_rate')
  weight_decay: chex.Numeric = _at('optimizer.weight_decay')
  warmup_steps: chex.Numeric = _at('optimizer.warmup_steps')
  label_smoothing: chex.Numeric = _at('optimizer.label_smoothing')
  dropout_rate: chex.Numeric | None = _at('model.dropout_rate', removable=True)
  attention_dropout_rate: chex.Numeric | None = _at(
    'model.attention_dropout_rate', removable=True
  )
  word_dropout_rate: chex.Numeric | None = _at(
    'model.word_dropout_rate', removable=True
  )
  ema_decay: chex.Numeric | None = _at('train.ema_decay', removable=True)
  learning_rate_scales: dict[str, chex.Numeric]

  @classmethod
  def of(cls, settings: Any) -> HParams:
    """The hyperparameters of a run, from its Settings."""
    made: dict[str, Any] = {}
    for name, (path, make, removable) in _fields().items():
      value = attrgetter(path)(settings)
      made[name] = make(value) if value or not removable else None
    groups = settings.optimizer.groups_by_name()
    scales = {n: np.float32(g.learning_rate_scale) for n, g in groups.items()}
    return cls(**made, learning_rate_scales=scales)

  @classmethod
  def program(cls, settings: Any) -> dict[str, Any]:
    """What the program and its loop depend on, by key of the config."""
    values = settings.flat()
    for path, _, removable in _fields().values():
      if removable:
        values[path] = bool(values[path])
      else:
        del values[path]
    values['optimizer.groups'] = [
      str(call.without('learning_rate_scale'))
      for call in settings.optimizer.groups
    ]
    return values


def _fields() -> dict[str, tuple[str, Callable, bool]]:
  """(path, make, removable) by name of the field."""
  return {
    field.name: tuple(field.metadata.values())
    for field in dataclasses.fields(HParams)
    if field.metadata
  }
