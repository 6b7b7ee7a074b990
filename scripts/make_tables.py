"""Writes the tables of the docs that are made from code or from results.

    bash scripts/run.sh python scripts/make_tables.py

A table is between `<!-- table: NAME -->` and `<!-- end -->`; a test compares
what is there with what this writes.
"""

import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import result_tables
from result_tables import markdown

from configs import default
from experiments.command import app
from experiments.command.values import flat_keys, typed
from experiments.settings import reference
from experiments.settings.keys import CHOICES, name_key
from selfattn import positions
from selfattn.kernels import unsupported_reason
from selfattn.positions import POSITIONS

ROOT = pathlib.Path(__file__).parent.parent
FILES = (
  'README.md',
  'docs/positions.md',
  'docs/results.md',
  'docs/performance.md',
  'docs/configuration.md',
  'docs/data.md',
  'docs/cli.md',
)
_BLOCK = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- end -->)', re.DOTALL)


def position_properties() -> str:
  """One row per method, from its class at default options."""
  rows = [
    ('method', 'hooks', 'parameters', 'relative', 'cache', 'kernels'),
    ('---',) * 6,
  ]
  for name, cls in POSITIONS.items():
    method = positions.make({name: {}}, 64, 4, cls.causal_only, 1000)
    model, layer = (
      jax.eval_shape(init, jax.random.key(0))
      for init in (method.init_model, method.init_layer)
    )
    sizes = [
      sum(leaf.size for leaf in jax.tree.leaves(tree))
      for tree in (model, layer)
    ]
    is_absolute = method.hooks == {'embed'} and method.supports_cache
    reason = unsupported_reason(
      'xla',
      platform=None,
      dtype=jnp.float32,
      head_dim=method.rotated_dim,
      has_dropout=False,
      has_softcap=False,
      hooks=method.hooks,
    )
    rows.append(
      (
        f'`{name}`' + (' (causal only)' if cls.causal_only else ''),
        ', '.join(sorted(method.hooks)),
        f'{sizes[0] + 2 * sizes[1]:,}',
        # Of what is added to embeddings, attention sees no difference.
        '' if is_absolute else _yes(method.is_relative),
        _yes(method.supports_cache),
        _yes(reason is None),
      )
    )
  return markdown(rows)


def config_keys() -> str:
  """A heading per section of the config, and per table with its entries."""
  values = flat_keys(default.get_config())
  meanings, allowed = reference.meanings(), reference.allowed()
  rows = {
    key: (f'`{key}`', _value(values[key]), allowed[key], meaning)
    for key, meaning in meanings.items()
    if key in allowed
  }
  options = {
    choice: [
      rows.pop(key)
      for name in table
      for key in list(rows)
      if key.startswith(f'{block}.{name}.')
    ]
    for choice, (table, block) in CHOICES.items()
  }
  sections: dict[str, list] = {}
  for key, row in rows.items():
    sections.setdefault(key.partition('.')[0], []).append(row)
  text = ''
  for section, own in sections.items():
    text += f'\n## {section}\n\n{markdown([*_KEY_TITLES, *own])}'
    for choice, (table, block) in CHOICES.items():
      if block.partition('.')[0] == section:
        text += f'\n### {name_key(choice)}\n\n{_entries(table)}'
        if options[choice]:
          text += f'\n{markdown([*_KEY_TITLES, *options[choice]])}'
  return text


_KEY_TITLES = [('key', 'default', 'allowed', 'meaning'), ('---',) * 4]


def _entries(table) -> str:
  """Names of a table, with the first sentences of their docstrings."""
  rows = [
    (f'`{name}`', ' '.join(cls.__doc__.partition('\n\n')[0].split()))
    for name, cls in table.items()
  ]
  return markdown([('name', 'what it is'), ('---',) * 2, *rows])


def command_flags() -> str:
  """A heading per command, with what it does and its flags."""
  text = ''
  for path in sorted((ROOT / 'experiments').glob('[a-z]*.py')):
    command = importlib.import_module(f'experiments.{path.stem}')
    values = app.flags.FlagValues()
    command._define(values)
    rows = [
      (f'`--{name}`', _value(default), meaning)
      for name, (meaning, default) in app.described_flags(values).items()
    ]
    what = command.__doc__.partition('\n')[0]
    text += f'\n### experiments.{path.stem}\n\n{what}\n\n'
    text += markdown([('flag', 'default', 'meaning'), ('---',) * 3, *rows])
  return text


def _value(value) -> str:
  return f'`{typed(value)}`' if typed(value) else ''


TABLES = {
  'positions': position_properties,
  'lengths': lambda: result_tables.scores(result_tables.GENERATED),
  'texts': lambda: result_tables.scores(
    result_tables.TEXTS, digits=3, differences=True
  ),
  'randomised': lambda: result_tables.scores(
    result_tables.RANDOMISED, missing=False
  ),
  'accuracy': result_tables.accuracy,
  'recipe_trec': lambda: result_tables.recipe('trec_choice'),
  'masked': result_tables.masked,
  'imdb_masked': result_tables.imdb_masked,
  'pretraining': result_tables.pretraining,
  'pretraining_recipes': result_tables.pretraining_recipes,
  'pretraining_methods': result_tables.pretraining_methods,
  'published': result_tables.published,
  'costs': result_tables.costs,
  'training_step': result_tables.training_step,
  'operations': result_tables.operations,
  'attention_lengths': result_tables.attention_lengths,
  'other_suites': result_tables.other_suites,
  'large_data': result_tables.large_data,
  'measured': result_tables.measured,
  'keys': config_keys,
  'flags': command_flags,
}


def filled(text: str) -> str:
  """A page with its tables as they are now."""
  return _BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def _yes(holds: bool) -> str:
  return 'yes' if holds else 'no'


if __name__ == '__main__':
  for name in FILES:
    path = ROOT / name
    path.write_text(filled(path.read_text()))
