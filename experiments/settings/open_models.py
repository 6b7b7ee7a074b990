"""Published models as values of a config: the folder is the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from experiments.command import calls, schema
from experiments.command.calls import Table, option_text
from experiments.command.errors import UserError
from experiments.command.values import flat_keys
from experiments.data import published
from experiments.settings.settings import (
  ModelSettings,
  Settings,
  default_config,
)
from experiments.workdir.workdir import check_json, read_json

# Keys and options of the encoder that change no logit of a published model.
_OF_TRAINING = {'head', 'pool', 'dropout_rate', 'attention_dropout_rate'}
# Options, by key, that change no logit of evaluation.
_OF_COMPUTATION = {
  'encoder': ('scan', 'remat', 'backend', 'broadcast_dropout'),
  'block': ('hidden_dropout',),
}
# In a workdir, what the folder of config.model.pretrained says.
FILE = 'published.json'
_KINDS = {'config': dict, 'pool': str | None, 'ends': list[int]}


def of_flags(values) -> Any:
  """The ConfigDict of a command line, as of `expanded`."""
  from ml_collections import ConfigDict

  names = [name for name in values if name.startswith('config.')]
  given = {n.removeprefix('config.') for n in names if values[n].present}
  workdir = values.workdir if 'workdir' in values else None
  config = values.config.to_dict()
  return ConfigDict(expanded(config, given, workdir or ''))


def described(name: str) -> dict[str, Any]:
  """What the folder of a published model says, as FILE has it.

  A UserError says that there is no such folder, or that it says nothing.
  """
  from selfattn import pretrained

  try:
    folder = published.folder(name)
    config = pretrained.read_config(folder)
    return {
      'config': config,
      'pool': pretrained.read_pool(folder),
      'ends': pretrained.read_ends(folder),
    }
  except ValueError as error:
    raise UserError(f'config.model.pretrained = {name!r}: {error}') from None


def stored(workdir: str) -> dict[str, Any]:
  """What a workdir knows of the folder of its published model; or {}."""
  says = read_json(workdir, FILE, {})
  check_json(workdir, FILE, says, _KINDS, _KINDS if says else ())
  return says


def ends(settings: Settings, workdir: str) -> tuple[int, ...]:
  """Ids of the tokens that end a text, of a run with a published vocabulary."""
  if settings.data.vocabulary.name != 'published':
    return ()
  return tuple(stored(workdir).get('ends', ()))


def expanded(config: dict, given: Collection[str], workdir: str = '') -> dict:
  """A nested config with what config.model.pretrained says.

  A key keeps its value if it is given, or is not the default.

  Args:
    given: dotted keys.
    workdir: of a run that may have begun with the model, and then knows what
      its folder said.

  Raises:
    UserError: there is no such model, or its architecture is not known.
  """
  name = config['model']['pretrained']
  if not name:
    return config
  # Late: it imports jax.
  from selfattn import pretrained

  says = stored(workdir) if workdir else {}
  says = says or described(name)
  try:
    model = pretrained.model_of(says['config'])
  except ValueError as error:
    raise UserError(f'config.model.pretrained = {name!r}: {error}') from None
  config = json.loads(json.dumps(config))
  usual = flat_keys(default_config())
  values = values_of(model, name)
  if pool := says['pool']:
    values |= {'model.pool': pool, 'model.head': 'linear'}
  for key, value in values.items():
    section, last = key.split('.')
    if key not in given and config[section][last] == usual[key]:
      config[section][last] = value
  return config


def values_of(model, name: str = '') -> dict[str, Any]:
  """Values by dotted key, of a selfattn.pretrained.Model.

  Args:
    name: of the folder or the hub, for the vocabulary.
  """
  values = {
    f'model.{key}': getattr(model, key)
    for key in (
      'num_layers',
      'num_heads',
      'embed_dim',
      'mlp_dim',
      'vocab_size',
      'num_token_types',
      'dropout_rate',
      'attention_dropout_rate',
    )
  }
  values['model.encoder'] = _call('attention', model.encoder)
  values['model.position'] = ','.join(
    '+'.join(_call(name, options) for name, options in of_layer.items())
    for of_layer in model.position
  )
  values['model.normaliser'] = ','.join(map(_choice, model.normaliser))
  for key in ('block', 'pool', 'head'):
    values[f'model.{key}'] = _choice(getattr(model, key))
  if model.experts is not None:
    values['model.experts'] = _call('experts', model.experts)
  if model.vocabulary_head is not None:
    values['model.token_head'] = _call('vocabulary', model.vocabulary_head)
  if name:
    values['data.vocabulary'] = f'published(path={name!r})'
  return values


def table(key: str) -> Table:
  """The table of a key of config.model that is a choice."""
  _, entry, _ = schema.fields_by_key(ModelSettings)[key]
  return entry.metadata['table']


def changed(settings, model) -> str:
  """KEY = VALUE of each key that differs from a published model, for people."""
  defaults = schema.defaults(ModelSettings)
  theirs = {
    key.removeprefix('model.'): value for key, value in values_of(model).items()
  }
  of_model = schema.read(ModelSettings, {**defaults, **theirs}, 'model')
  pairs = []
  for key in theirs.keys() - _OF_TRAINING:
    ours, other = getattr(settings, key), getattr(of_model, key)
    for option in _OF_COMPUTATION.get(key, ()):
      ours, other = ours.without(option), other.without(option)
    if ours != other:
      text = ours if isinstance(ours, int | float | str) else calls.text(ours)
      pairs.append(f'config.model.{key} = {text}')
  return ', '.join(pairs)


def _choice(choice) -> str:
  return _call(choice.name, choice.options)


def _call(name: str, options: Iterable) -> str:
  inside = ', '.join(f'{k}={option_text(v)}' for k, v in dict(options).items())
  return f'{name}({inside})' if inside else name
