"""Writes the tables of the docs that are made from code or from results.

    bash scripts/run.sh python scripts/make_tables.py

One of code is between `<!-- table: NAME -->` and `<!-- end -->`, one of results
between `<!-- results ... -->` and `<!-- end -->`, as results.py says. A test
compares what is there with what this writes.
"""

import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import results

from configs import default
from experiments.command import app, command_line, fields, schema
from experiments.command.values import flat_keys, shown
from experiments.settings import reference
from selfattn import positions
from selfattn.kernels import unsupported_reason
from selfattn.positions import POSITIONS

ROOT = pathlib.Path(__file__).parent.parent
FILES = (
  'README.md',
  'docs/attention.md',
  'docs/positions.md',
  'docs/results.md',
  'docs/tasks.md',
  'docs/performance.md',
  'docs/configuration.md',
  'docs/data.md',
  'docs/language_models.md',
  'docs/longer_contexts.md',
  'docs/pretrained.md',
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
  """A heading per section of the config, and per choice with its entries."""
  values = flat_keys(default.get_config())
  meanings, allowed = reference.meanings(), reference.allowed()
  sections: dict[str, list] = {}
  for key, meaning in meanings.items():
    row = f'`{key}`', _value(values[key]), allowed[key], meaning
    sections.setdefault(key.partition('.')[0], []).append(row)
  titles = [('key', 'default', 'allowed', 'meaning'), ('---',) * 4]
  text = ''
  for section, rows in sections.items():
    text += f'\n## {section}\n\n{markdown([*titles, *rows])}'
    for key, table in reference.tables().items():
      if key.partition('.')[0] == section:
        text += f'\n### {key}\n\n{_entries(table)}'
  return text


def _entries(table) -> str:
  """Entries of a table, with what they are and their options.

  Those of `text` are keys, `data.text`.
  """
  rows = [('name', 'what it is'), ('---',) * 2]
  # Options of every entry are said once.
  shared = fields.options(table.base)
  for option, value in shared.items():
    meaning = schema.meaning(table.base, option)
    rows.append((f'of each: {option} = {_value(value) or "empty"}', meaning))
  for name, cls in table.entries.items():
    rows.append((f'`{name}`', reference.first_sentence(cls)))
    for option, value in fields.options(cls).items():
      if option in shared:
        continue
      meaning = schema.meaning(cls, option)
      rows.append((f'{option} = {_value(value) or "empty"}', meaning))
  return markdown(rows)


def command_flags() -> str:
  """A heading per command, with what it does and its flags."""
  text = ''
  for path in sorted((ROOT / 'experiments').glob('[a-z]*.py')):
    command = importlib.import_module(f'experiments.{path.stem}')
    values = app.flags.FlagValues()
    command._define(values)
    rows = [
      (f'`--{name}`', _value(default), meaning)
      for name, (meaning, default) in command_line.described_flags(
        values
      ).items()
    ]
    what = (command.__doc__ or '').partition('\n')[0]
    text += f'\n### experiments.{path.stem}\n\n{what}\n\n'
    head = [('flag', 'default', 'meaning'), ('---',) * 3]
    text += markdown([*head, *rows]) if rows else 'It has no flags.\n'
  return text


def _value(value) -> str:
  text = shown(value).replace('\n', '\\n')
  return f'`{text}`' if text else ''


TABLES = {
  'positions': position_properties,
  'keys': config_keys,
  'flags': command_flags,
}


def markdown(rows) -> str:
  """A table of Markdown; the second row is that of its rule."""
  cells = (
    [cell.replace('|', '\\|').replace('<', '&lt;') for cell in row]
    for row in rows
  )
  return ''.join(f'| {" | ".join(row)} |\n' for row in cells)


def filled(text: str) -> str:
  """A page with its tables as they are now."""
  text = _BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)
  return results.filled(text)


def _yes(holds: bool) -> str:
  return 'yes' if holds else 'no'


if __name__ == '__main__':
  for name in FILES:
    path = ROOT / name
    path.write_text(filled(path.read_text()))
