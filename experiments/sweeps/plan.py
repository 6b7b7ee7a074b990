"""Planning of sweeps: a config, and for each trial the overrides of keys.

A config file may define generators beside get_config():

    def sweep_positions():
      for name in ('none', 'rotary', 't5'):
        yield {'model.position.name': name}

Several of them are combined to their product. The name of a trial is a hash of
its overrides, so it does not depend on the other trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from experiments.command import app, config_files
from experiments.command.errors import UserError, nearest
from experiments.command.values import flat_keys, parse_tuple, split, unquoted
from experiments.data import loading
from experiments.settings import settings as settings_lib
from experiments.settings import stored
from experiments.settings.settings import Settings
from experiments.training import build, compiled


def log_uniform(low: float, high: float, count: int, seed: int) -> list[float]:
  """Random values, log-uniform in [low, high), for a sweep_ generator."""
  rng = np.random.default_rng(seed)
  return np.exp(rng.uniform(math.log(low), math.log(high), count)).tolist()


def uniform(low: float, high: float, count: int, seed: int) -> list[float]:
  """Random values, uniform in [low, high), for a sweep_ generator."""
  return np.random.default_rng(seed).uniform(low, high, count).tolist()


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


def product(sweeps: list[list[dict]]) -> list[dict]:
  """Cartesian product of lists of overrides.

  Raises:
    UserError: two sweeps override the same key.
  """
  trials = []
  for parts in itertools.product(*sweeps):
    merged: dict = {}
    for part in parts:
      twice = merged.keys() & part.keys()
      if twice:
        raise UserError(f'two sweeps override config.{min(twice)}')
      merged |= part
    trials.append(merged)
  return trials


def generated(module, name: str) -> list[dict]:
  """Overrides from the generator sweep_NAME of a config file.

  Raises:
    UserError: there is no such generator, or it does not yield dicts.
  """
  known = _generators(module)
  if name not in known:
    # Those of the default config are not inherited: they may not fit a config.
    default, _ = config_files.load_module(config_files.DEFAULT_CONFIG)
    shown = ', '.join(sorted(known)) or 'no other'
    remedy = nearest(name, known) or '; define it in that file'
    if name in _generators(default):
      remedy = f'; add to it: from configs.default import sweep_{name}'
    raise UserError(
      f'--sweep={name}: {module.__file__} has no sweep_{name}(); it has '
      f'{shown}{remedy}'
    )
  found = list(getattr(module, f'sweep_{name}')())
  if not found or not all(isinstance(entry, dict) for entry in found):
    raise UserError(f'--sweep={name}: sweep_{name}() must yield dicts of keys')
  return found


def _generators(module) -> list[str]:
  return [n.removeprefix('sweep_') for n in vars(module) if n[:6] == 'sweep_']


def grid(text: str, config) -> list[dict]:
  """Overrides of --grid 'config.KEY=VALUE,VALUE,...', parsed by type of KEY.

  A comma inside of quotes or brackets belongs to a value.

  Raises:
    UserError: no such key, or a value of another type.
  """
  name, separator, values = text.partition('=')
  key = name.removeprefix('config.')
  keys = flat_keys(config)
  if key not in keys or not separator or not values:
    raise UserError(
      f'--grid={text} is not config.KEY=VALUE,VALUE'
      f'{nearest(key, list(keys)) if key not in keys else ""}'
    )
  try:
    parts = split(values)
  except ValueError as error:
    raise UserError(f'--grid=config.{key}: {error}') from error
  return [{key: _parsed(part, keys[key], text)} for part in parts]


def _parsed(text: str, current: Any, flag: str) -> Any:
  if isinstance(current, str):
    return unquoted(text)
  try:
    if isinstance(current, bool):
      return {'true': True, 'false': False}[text.lower()]
    if isinstance(current, int | float):
      return type(current)(text)
    # Quotes of either kind enclose one word, but those of a tuple are CSV.
    word = unquoted(text)
    if word != text:
      text = '"' + word.replace('"', '""') + '"'
    return parse_tuple(text)
  except (KeyError, ValueError) as error:
    raise UserError(
      f'--grid={flag}: {text!r} is not of type {type(current).__name__}, '
      f'as {current!r} is'
    ) from error


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
  line = ' '.join(shlex.quote(word) for word in words)
  return f'bash scripts/run.sh experiments.train {line}'


def programs_of(specs: list[Spec]) -> dict[str, list[Spec]]:
  """Specs grouped by compiled program, in order of appearance."""
  groups: dict[str, list[Spec]] = {}
  for spec in specs:
    groups.setdefault(compiled.key(spec.settings), []).append(spec)
  return groups
