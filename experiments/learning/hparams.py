"""Hyperparameters that do not change the compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import jax
import numpy as np
from flax import struct

# A scalar: of NumPy, or traced.
Number = Any


def _at(path: str, make: Callable = np.float32, removable: bool = False) -> Any:
  """A field of HParams: the value at this path of the settings.

  Args:
    make: makes a NumPy scalar of it. A Python float has a weak type, and
      another type is another program.
    removable: 0 leaves the hyperparameter out, which is another program.
  """
  metadata = {'path': path, 'make': make, 'removable': removable}
  return dataclasses.field(metadata=metadata)


class HParams(struct.PyTreeNode):
  """Hyperparameters that do not change the program; each may be traced.

  This is the only list of them. None leaves one out.

  Attributes:
    learning_rate_scales: of each group of config.optimizer.groups, by name.
    measure_weights: of each measure that is added to the loss, by name.
    Further fields are those of the settings; `key` is made of the seed.
  """

  key: jax.Array = _at('seed', jax.random.key)
  learning_rate: Number = _at('optimizer.learning_rate')
  weight_decay: Number = _at('optimizer.weight_decay')
  warmup_steps: Number = _at('optimizer.warmup_steps')
  label_smoothing: Number = _at('optimizer.label_smoothing')
  dropout_rate: Number | None = _at('model.dropout_rate', removable=True)
  attention_dropout_rate: Number | None = _at(
    'model.attention_dropout_rate', removable=True
  )
  word_dropout_rate: Number | None = _at(
    'model.word_dropout_rate', removable=True
  )
  ema_decay: Number | None = _at('train.ema_decay', removable=True)
  learning_rate_scales: dict[str, Number] = dataclasses.field(
    default_factory=dict
  )
  measure_weights: dict[str, Number] = dataclasses.field(default_factory=dict)

  @classmethod
  def of(cls, settings: Any) -> HParams:
    """The hyperparameters of a run, from its Settings."""
    made: dict[str, Any] = {}
    for name, (path, make, removable) in _fields().items():
      value = attrgetter(path)(settings)
      made[name] = make(value) if value or not removable else None
    groups = settings.optimizer.groups_by_name()
    scales = {n: np.float32(g.learning_rate_scale) for n, g in groups.items()}
    trained = settings.train.trained_measures()
    weights = {n: np.float32(one.weight) for n, one in trained.items()}
    return cls(**made, learning_rate_scales=scales, measure_weights=weights)

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
    trained = settings.train.trained_measures()
    values['train.measures'] = [
      (str(call.without('weight')), call.label in trained)
      for call in settings.train.measures
    ]
    return values


def _fields() -> dict[str, tuple[str, Callable, bool]]:
  """(path, make, removable) by name of the field."""
  return {
    field.name: tuple(field.metadata.values())
    for field in dataclasses.fields(HParams)
    if field.metadata
  }
