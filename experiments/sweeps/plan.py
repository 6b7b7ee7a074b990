"""Planning of sweeps: a config, and for each trial the overrides of keys.

The name of a trial is a hash of its overrides, so it does not depend on the
other trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from experiments.command import app, invocation
from experiments.command.errors import UserError, nearest
from experiments.command.values import flat_keys
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import build, compiled


@dataclasses.dataclass(frozen=True)
class Spec:
  """One trial.

  Attributes:
    index: id of the trial in the sweep, from 0.
    overrides: values by dotted key.
    config: the complete config, nested.
    settings: the validated settings of `config`.
    path: workdir of the trial.
    repeats: indices of duplicate trials, which are not trained.
  """

  index: int
  overrides: Mapping[str, Any]
  config: dict
  settings: Settings
  path: str
  repeats: tuple[int, ...] = ()

  @property
  def name(self) -> str:
    """The hash that is the name of the workdir."""
    return os.path.basename(self.path)


def identity(overrides: Mapping[str, Any]) -> str:
  """Eight hexadecimal digits, the same for the same overrides."""
  text = json.dumps(dict(overrides), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def make(
  base: dict,
  trials: list[dict],
  workdir: str,
  read: Callable[[dict], Settings] = settings_lib.from_config,
) -> list[Spec]:
  """Specs of all trials, all of them validated.

  Args:
    base: the nested config.
    trials: overrides of each trial.
    read: converts the nested config of a trial to settings.

  Raises:
    UserError: lists every trial that is invalid.
  """
  specs, wrong, names = [], [], {}
  for index, overrides in enumerate(trials):
    name = identity(overrides)
    if name in names:
      raise UserError(f'trials {names[name]} and {index} are equal')
    names[name] = index
    try:
      config = _changed(base, overrides)
      settings = read(config)
      path = os.path.join(os.path.abspath(workdir), 'trials', name)
      stored.check(path, settings)
      specs.append(Spec(index, overrides, config, settings, path))
    except UserError as error:
      wrong.append((index, overrides, error))
  _raise_all(wrong, len(trials))
  return specs


def check_data_and_shapes(specs: list[Spec]) -> dict[int, int]:
  """Loads the data and traces the models; returns parameter counts by index.

  Raises:
    UserError: lists every trial that is invalid.
  """
  wrong, loaded, counts = [], {}, {}
  for spec in specs:
    source = repr(spec.settings.data)
    if source not in loaded:
      try:
        loaded[source] = loading.load(spec.settings.data, '')
      except UserError as error:
        loaded[source] = error
    try:
      if isinstance(loaded[source], UserError):
        raise loaded[source]
      counts[spec.index] = _count(spec.settings, loaded[source])
    except (UserError, ValueError) as error:
      wrong.append((spec.index, spec.overrides, error))
  _raise_all(wrong, len(specs))
  return counts


def _count(settings: Settings, loaded: loading.Data) -> int:
  *earlier, last = build.models(settings, loaded.vocab_size, len(loaded.labels))
  state = jax.eval_shape(
    lambda hparams: build.init_state(settings, last, hparams, earlier),
    build.hparams(settings),
  )
  settings.optimizer.check_parameters(state.params)
  names = build.trained([*earlier, last], state.params)[-1]
  return build.count_parameters({name: state.params[name] for name in names})


def _changed(base: dict, overrides: Mapping[str, Any]) -> dict:
  config = json.loads(json.dumps(base))
  for key, value in overrides.items():
    *sections, last = key.split('.')
    node = config
    for section in sections:
      node = node.get(section) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
      keys = flat_keys(base)
      raise UserError(f'config.{key} is not a key{nearest(key, list(keys))}')
    if isinstance(node[last], dict):
      raise UserError(f'config.{key} is a section; change a key inside it')
    node[last] = value
  return config


def _raise_all(wrong: list[tuple[int, Mapping, Exception]], count) -> None:
  """One UserError for all invalid trials, grouped by reason."""
  if not wrong:
    return
  reasons: dict[str, list[str]] = {}
  for index, overrides, error in wrong:
    trial = f'trial {index} ({describe(overrides)})'
    reasons.setdefault(str(error), []).append(trial)
  lines = []
  for reason, (first, *others) in reasons.items():
    also = f' and {len(others)} more' if others else ''
    lines.append(f'{first}{also}: {reason}')
  raise UserError(
    f'{len(wrong)} of {count} trials are invalid, so none is trained: '
    + '; '.join(lines)
  )


def describe(overrides: Mapping[str, Any]) -> str:
  """KEY=VALUE, ..., for people."""
  return ', '.join(f'{key}={value}' for key, value in overrides.items())


def command(spec: Spec, config_path: str, base: dict) -> str:
  """The command line that trains this trial alone."""
  original = flat_keys(app.load_config(config_path).to_dict())
  changed = {
    key: value
    for key, value in flat_keys(base).items()
    if key in original
    and not isinstance(value, dict)
    and original[key] != value
  }
  flags = [
    f'--config.{key}={tuple(value) if isinstance(value, list) else value}'
    for key, value in (changed | dict(spec.overrides)).items()
  ]
  words = [f'--config={config_path}', *flags, f'--workdir={spec.path}']
  return invocation.shell_line(['experiments.train', *words])


def programs_of(specs: list[Spec]) -> dict[str, list[Spec]]:
  """Specs grouped by compiled program, in order of appearance."""
  groups: dict[str, list[Spec]] = {}
  for spec in specs:
    groups.setdefault(compiled.key(spec.settings), []).append(spec)
  return groups
