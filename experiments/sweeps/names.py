"""Which setting each trial of a sweep has, and what settings are called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.command.values import shown
from experiments.sweeps.plan import Spec

FOLD = 'data.fold'
# Keys that make repetitions of a setting, if they are swept.
REPEATED = ('seed', 'data.seed', FOLD)


@dataclasses.dataclass(frozen=True)
class Naming:
  """The settings of trials, without what distinguishes repetitions.

  Attributes:
    over: the keys that distinguish repetitions of a setting.
    settings: of each trial, values by dotted key of all keys that the sweep
      changes.
    names: of the setting of each trial.
  """

  over: tuple[str, ...]
  settings: list[dict[str, Any]]
  names: list[str]


def of_specs(specs: list[Spec]) -> Naming:
  """The settings of all trials of a sweep."""
  repeated = set(REPEATED) & set(swept(specs, ()))
  over = tuple(sorted(repeated, key=REPEATED.index) or REPEATED[:1])
  keys = swept(specs, over)
  values = (spec.settings.flat() | dict(spec.overrides) for spec in specs)
  settings = [{key: of_trial[key] for key in keys} for of_trial in values]
  return Naming(over, settings, of(settings))


def swept(specs: list[Spec], over: Iterable[str]) -> list[str]:
  """The keys that trials override, except those in `over`."""
  keys = dict.fromkeys(key for spec in specs for key in spec.overrides)
  return [key for key in keys if key not in over]


def of(settings: Sequence[Mapping[str, Any]]) -> list[str]:
  """A name for each setting, the same for equal ones: KEY=VALUE, ...

  Keys that all settings agree in are left out, and a key is its last part where
  no other key ends alike. Texts of the only key that has texts stand alone:

      rotary(base=100), learning_rate=0.001

  Args:
    settings: values by dotted key of the config, of the same keys.
  """
  keys = list(settings[0]) if settings else []
  differing = [
    key for key in keys if any(s[key] != settings[0][key] for s in settings)
  ]
  ends = [key.rpartition('.')[2] for key in differing]
  labels = {
    key: f'{end if ends.count(end) == 1 else key}='
    for key, end in zip(differing, ends, strict=True)
  }
  texts = [
    key
    for key in differing
    if any(isinstance(setting[key], str) for setting in settings)
  ]
  if len(texts) == 1 and all(setting[texts[0]] for setting in settings):
    labels[texts[0]] = ''
  return [
    ', '.join(f'{labels[key]}{_text(setting[key])}' for key in differing)
    or 'all'
    for setting in settings
  ]


def _text(value: Any) -> str:
  if not isinstance(value, list | tuple):
    return shown(value)
  # ('a,b',) is not ('a', 'b').
  parts = (repr(x) if ',' in str(x) else x for x in value)
  return f'[{shown([*parts])}]'
