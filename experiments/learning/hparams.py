"""Hyperparameters that do not change the compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import numpy as np


def from_key(key: str, make: Callable = np.float32, **more):
  """A field of HParams whose value is this key of the config."""
  return dataclasses.field(metadata={'key': key, 'make': make} | more)


def _rate(value: float) -> np.float32 | None:
  return np.float32(value) if value else None


def _matching(flat: Mapping[str, Any], key: str) -> dict[str, str]:
  """Keys that match a key with a *, by the text that the * matches."""
  before, _, after = key.partition('*')
  return {
    name[len(before) : len(name) - len(after)]: name
    for name in flat
    if name.startswith(before) and name.endswith(after)
  }


@chex.dataclass(frozen=True, mappable_dataclass=False)
class HParams:
  """Hyperparameters that do not change the program; each may be traced.

  This is the only list of them: each field has its key of the config, explained
  in configs/default.py, and the function that makes a NumPy scalar of its value
  (a Python float has a weak type, and another type is another program). None
  leaves a hyperparameter out, so one that is `removable` is another program
  where it is 0. A key with a * matches several keys: its field is a dict by the
  text that the * matches.
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

  @classmethod
  def of(cls, flat: Mapping[str, Any]) -> HParams:
    """The hyperparameters of a run, from its settings by dotted key."""
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
    """The settings by dotted key on which the program and its loop depend."""
    found = dict(flat)
    for field in dataclasses.fields(cls):
      key = field.metadata['key']
      if field.metadata.get('removable'):
        found[key] = bool(flat[key])
      elif '*' in key:
        for name in _matching(flat, key).values():
          del found[name]
      else:
        del found[key]
    return found
