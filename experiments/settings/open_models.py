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
from experiments.settings.settings import ModelSettings, default_config


def of_flags(values) -> Any:
  """The ConfigDict of a command line, as of `expanded`."""
  from ml_collections import ConfigDict

  names = [name for name in values if name.startswith('config.')]
  given = {n.removeprefix('config.') for n in names if values[n].present}
  return ConfigDict(expanded(values.config.to_dict(), given))


def expanded(config: dict, given: Collection[str]) -> dict:
  """A nested config with what config.model.pretrained says.

  A key keeps its value if it is given, or is not the default.

  Args:
    given: dotted keys.

  Raises:
    UserError: there is no such model, or its architecture is not known.
  """
  name = config['model']['pretrained']
  if not name:
    return config
  # Late: it imports jax.
  from selfattn import pretrained

  try:
    model = pretrained.read_model(published.folder(name))
  except ValueError as error:
    raise UserError(f'config.model.pretrained = {name!r}: {error}') from None
  config = json.loads(json.dumps(config))
  usual = flat_keys(default_config())
  values = values_of(model, name)
  if pool := pretrained.read_pool(published.folder(name)):
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
  for key in theirs:
    ours, other = getattr(settings, key), getattr(of_model, key)
    if ours != other and key not in ('head', 'pool', 'dropout_rate'):
      text = ours if isinstance(ours, int | float | str) else calls.text(ours)
      pairs.append(f'config.model.{key} = {text}')
  return ', '.join(pairs)


def _choice(choice) -> str:
  return _call(choice.name, choice.options)


def _call(name: str, options: Iterable) -> str:
  inside = ', '.join(f'{k}={option_text(v)}' for k, v in dict(options).items())
  return f'{name}({inside})' if inside else name
