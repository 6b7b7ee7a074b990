"""Hyperparameters: the numbers of a run that do not change its program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import numpy as np


def from_key(key: str, make: Callable = np.float32, **more):
  """A field of HParams with this key of the config."""
  return dataclasses.field(metadata={'key': key, 'make': make} | more)


def _rate(value: float) -> np.float32 | None:
  return np.float32(value) if value else None


def _matching(flat: Mapping[str, Any], key: str) -> dict[str, str]:
  """Keys that a key with a * stands for, by what the * stands for."""
  before, _, after = key.partition('*')
  return {
    name[len(before) : len(name) - len(after)]: name
    for name in flat
    if name.startswith(before) and name.endswith(after)
  }


@chex.dataclass(frozen=True, mappable_dataclass=False)
class HParams:
  """Numbers that do not change the program; each may be traced.

  This is the list of them: a field says which key of the config it has its
  value from, and what makes a NumPy scalar of it (a Python number would have a
  weak type, and another type is another program). One that is None is left out
  of the program, so `removable` ones are another program where they are 0.
  Those that are not `swept` are the same for all runs that train together. A
  key with a * stands for several: its field is a dict by what * stands for.
  """

  key: chex.PRNGKey = from_key('seed', jax.random.key)
  learning_rate: chex.Numeric = from_key('optimizer.learning_rate')
  learning_rate_scales: dict[str, chex.Numeric] = from_key(
    'optimizer.groups.*.learning_rate_scale'
  )
  weight_decay: chex.Numeric = from_key('optimizer.weight_decay')
  warmup_steps: chex.Numeric = from_key('optimizer.warmup_steps')
  label_smoothing: chex.Numeric = from_key('optimizer.label_smoothing')
  dropout_rate: chex.Numeric | None = from_key(
    'model.dropout_rate', _rate, removable=True
  )
  attention_dropout_rate: chex.Numeric | None = from_key(
    'model.attention_dropout_rate', _rate, removable=True
  )
  word_dropout_rate: chex.Numeric | None = from_key(
    'model.word_dropout_rate', _rate, removable=True
  )
  ema_decay: chex.Numeric | None = from_key(
    'train.ema_decay', _rate, removable=True
  )
  log_every: chex.Numeric = from_key('train.log_every', np.int32, swept=False)

  @classmethod
  def of(cls, flat: Mapping[str, Any]) -> HParams:
    """From the settings of a run by dotted key."""
    made = {}
    for field in dataclasses.fields(cls):
      key, make = field.metadata['key'], field.metadata['make']
      several = _matching(flat, key) if '*' in key else None
      made[field.name] = (
        make(flat[key])
        if several is None
        else {part: make(flat[name]) for part, name in several.items()}
      )
    return cls(**made)

  @classmethod
  def program(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
    """What settings by dotted key say of the program, and of its loop."""
    found = dict(flat)
    for field in dataclasses.fields(cls):
      key = field.metadata['key']
      if field.metadata.get('removable'):
        found[key] = bool(flat[key])
      elif '*' in key:
        for name in _matching(flat, key).values():
          del found[name]
      elif field.metadata.get('swept', True):
        del found[key]
    return found
