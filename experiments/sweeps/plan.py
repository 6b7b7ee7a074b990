"""Planning of sweeps: a config, and for each trial the overrides of keys.

Overrides are from --grid, or from generators that a config file may define
beside get_config(). Several of these are combined to their product.

    def sweep_positions():
      for name in ('none', 'rotary', 't5'):
        yield {'model.position': name}

The name of a trial is the digest of its settings: trials that compute the same
are one, in whatever words and by whichever command they were planned.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from experiments.command import config_files
from experiments.command.errors import UserError, in_file, nearest
from experiments.command.log import log
from experiments.command.values import (
  flat_keys,
  is_section,
  kind_of,
  parse_tuple,
  split,
  unquoted,
)
from experiments.data import loading
from experiments.learning.hparams import HParams
from experiments.settings import open_models
from experiments.settings import settings as settings_lib
from experiments.settings.settings import FREE, Settings
from experiments.training import (
  build,
  callbacks,
  compiled,
  published_params,
  sources,
)


@dataclasses.dataclass(frozen=True)
class Spec:
  """One trial.

  Attributes:
    index: id of the trial in the sweep, from 0.
    overrides: values by dotted key.
    config: the complete config, nested.
    settings: the validated settings of `config`.
    path: workdir of the trial.
  """

  index: int
  overrides: Mapping[str, Any]
  config: dict
  settings: Settings
  path: str

  @property
  def name(self) -> str:
    """The digest that is the name of the workdir."""
    return os.path.basename(self.path)


def product(sweeps: list[list[dict]]) -> list[dict]:
  """Cartesian product of lists of overrides; UserError for a key of two."""
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
  """Overrides from a generator sweep_NAME of a config file, or a UserError."""
  known = [n.removeprefix('sweep_') for n in vars(module) if n[:6] == 'sweep_']
  if name not in known:
    # Those of the default config are not inherited: they may not fit a config.
    raise UserError(
      f'--sweep={name}: {module.__file__} has no sweep_{name}(); it has '
      f'{", ".join(sorted(known)) or "no other"}{nearest(name, known)}'
    )
  function = getattr(module, f'sweep_{name}')
  with in_file(module.__file__, f'--sweep={name}'):
    trials = list(function() or ())
  if not trials or not all(isinstance(trial, dict) for trial in trials):
    raise UserError(f'--sweep={name}: sweep_{name}() must yield dicts of keys')
  return config_files.plain(trials)


def grid(text: str, config) -> list[dict]:
  """Overrides of --grid 'config.KEY=VALUE,VALUE,...', parsed by type of KEY.

  A comma inside of quotes or brackets belongs to a value. UserError if there is
  no such key, or for a value of another type.
  """
  name, _, values = text.partition('=')
  keys = {f'config.{key}': value for key, value in _leaves(config).items()}
  if not values:
    raise UserError(f'--grid={text} is not config.KEY=VALUE,VALUE')
  if name not in keys:
    raise UserError(f'--grid={text}: {name} is not a key{nearest(name, keys)}')
  try:
    parts = [part.strip() for part in split(values)]
  except ValueError as error:
    raise UserError(f'--grid={name}: {error}') from error
  key = name.removeprefix('config.')
  return [{key: _parsed(part, keys[name], text)} for part in parts]


def _parsed(text: str, current: Any, flag: str) -> Any:
  if isinstance(current, str):
    return unquoted(text)
  try:
    if isinstance(current, bool):
      return {'true': True, 'false': False}[text.lower()]
    if isinstance(current, int | float):
      return type(current)(text)
    return parse_tuple(text)
  except (KeyError, ValueError) as error:
    raise UserError(
      f'--grid={flag}: {text!r} is not {kind_of(current)}'
    ) from error


def make(
  base: dict,
  trials: Iterable[Mapping[str, Any]],
  workdir: str,
  names: Iterable[str] | None = None,
) -> list[Spec]:
  """Specs of all trials, all of them validated.

  Args:
    base: the nested config.
    trials: overrides of each trial.
    names: of the workdirs of trials that were planned before; None: digests.

  Returns:
    One spec for each trial; its overrides hold choices as their canonical text.

  Raises:
    UserError: lists every trial that is invalid.
  """
  folder = os.path.join(os.path.abspath(workdir), 'trials')
  planned = zip(trials, names or itertools.repeat(None), strict=False)
  specs, wrong = [], []
  for index, (overrides, name) in enumerate(planned):
    try:
      config = _changed(base, overrides)
      settings = settings_lib.from_config(config)
      # The same data may be elsewhere, but what is swept makes a trial.
      free = [key for key in FREE if key not in overrides]
      path = os.path.join(folder, name or settings.digest(free))
      overrides = _canonical(overrides, settings)
      specs.append(Spec(index, overrides, config, settings, path))
    except UserError as error:
      wrong.append((index, overrides, error))
  _raise_all(wrong, len(specs) + len(wrong))
  return specs


def _canonical(overrides: Mapping[str, Any], settings: Settings) -> dict:
  """The overrides with the canonical text of each choice."""
  texts = {k: v for k, v in settings.flat().items() if isinstance(v, str)}
  return {key: texts.get(key, value) for key, value in overrides.items()}


def distinct(specs: list[Spec]) -> list[Spec]:
  """The specs, of those with equal settings the first; says which are equal."""
  first: dict[str, Spec] = {}
  repeated = [s for s in specs if first.setdefault(s.name, s) is not s]
  if repeated:
    texts = '; '.join(describe(s.overrides) or 'the default' for s in repeated)
    log(
      f'{len(repeated)} of {len(specs)} points of the grid have the settings '
      f'of an earlier one, and are one trial with it: {texts}'
    )
  return list(first.values())


def check_data_and_shapes(specs: list[Spec]) -> dict[int, int]:
  """Loads the data and traces the models; returns parameter counts by index.

  Raises:
    UserError: lists every trial that is invalid.
  """
  wrong, loaded, shapes, counts = [], {}, {}, {}
  for spec in specs:
    try:
      callbacks.named(spec.settings.train.callback)
      tokenizer = sources.vocabulary(spec.settings, spec.path)
      data, labels = spec.settings.data, spec.settings.task.entry.labels
      source = repr((data, labels)), tokenizer and tokenizer.to_str()
      if source not in loaded:
        try:
          loaded[source] = loading.load(data, '', tokenizer, labels)
        except UserError as error:
          loaded[source] = error
      if isinstance(loaded[source], UserError):
        raise loaded[source]
      # Trials that share a program have the same shapes.
      program = source, compiled.key(spec.settings)
      if program not in shapes:
        shapes[program] = _shapes(spec.settings, loaded[source])
      params = shapes[program]
      spec.settings.optimizer.check_parameters(params)
      published_params.check(spec.settings, params)
      counts[spec.index] = build.count_parameters(params)
    except (UserError, ValueError) as error:
      wrong.append((spec.index, spec.overrides, error))
  _raise_all(wrong, len(specs))
  return counts


def check_unchanged(specs: list[Spec]) -> None:
  """UserError for a trial that began with other files than there are now."""
  begun: dict[str, list[Spec]] = {}
  for spec in specs:
    if os.path.exists(os.path.join(spec.path, 'data.json')):
      settings = spec.settings
      key = repr((settings.data, settings.task.entry.labels))
      begun.setdefault(key, []).append(spec)
  for first, *others in begun.values():
    workdirs = [spec.path for spec in (first, *others)]
    labels = first.settings.task.entry.labels
    loading.check_unchanged(first.settings.data, workdirs, labels)
  sources.check_unchanged(
    spec.path for of_data in begun.values() for spec in of_data
  )


def _shapes(settings: Settings, loaded: loading.Data):
  """Shapes of the parameters."""
  num_outputs = len(loaded.label_facts.names)
  classifier = build.model(settings, loaded.vocabulary.size, num_outputs)
  state = jax.eval_shape(
    lambda hparams: build.init_state(settings, classifier, hparams),
    HParams.of(settings),
  )
  return state.params


def _leaves(config) -> dict[str, object]:
  """Dotted keys and values of a config, without its sections."""
  flat = flat_keys(config)
  return {key: value for key, value in flat.items() if not is_section(value)}


def _changed(base: dict, overrides: Mapping[str, Any]) -> dict:
  config = json.loads(json.dumps(base))
  keys, name = _leaves(base), 'model.pretrained'
  if name in overrides and config['model']['pretrained']:
    raise UserError(
      f'config.{name} is swept, so it must be empty outside of the sweep'
    )
  for key, value in overrides.items():
    if key not in keys:
      raise UserError(f'config.{key} is not a key{nearest(key, list(keys))}')
    *sections, last = key.split('.')
    functools.reduce(dict.__getitem__, sections, config)[last] = value
  return (
    open_models.expanded(config, overrides) if name in overrides else config
  )


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


def programs_of(specs: list[Spec]) -> dict[str, list[Spec]]:
  """Specs grouped by compiled program, in order of appearance."""
  groups: dict[str, list[Spec]] = {}
  for spec in specs:
    groups.setdefault(compiled.key(spec.settings), []).append(spec)
  return groups


def groups(specs: list[Spec], size: int) -> list[list[Spec]]:
  """Groups of at most `size` trials of one program, in order of appearance.

  They do not depend on what is finished, so that a resumed sweep forms the same
  groups.
  """
  return [
    same[start : start + size]
    for same in programs_of(specs).values()
    for start in range(0, len(same), size)
  ]
