"""Writes the tables of the docs that are made from code or from results.

    bash scripts/run.sh python scripts/make_tables.py

A table is between `<!-- table: NAME -->` and `<!-- end -->`; a test compares
what is there with what this writes.
"""

import importlib
import itertools
import json
import pathlib
import re

import jax
import jax.numpy as jnp

from configs import default
from experiments.command import app
from experiments.command.values import flat_keys, typed
from experiments.settings import reference
from experiments.settings.keys import CHOICES, name_key
from selfattn import positions
from selfattn.kernels import unsupported_reason
from selfattn.positions import POSITIONS

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / 'docs/results'
FILES = (
  'README.md',
  'docs/positions.md',
  'docs/results.md',
  'docs/configuration.md',
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
  return _table(rows)


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
    text += f'\n## {section}\n\n{_table([*_KEY_TITLES, *own])}'
    for choice, (table, block) in CHOICES.items():
      if block.partition('.')[0] == section:
        text += f'\n### {name_key(choice)}\n\n{_entries(table)}'
        if options[choice]:
          text += f'\n{_table([*_KEY_TITLES, *options[choice]])}'
  return text


_KEY_TITLES = [('key', 'default', 'allowed', 'meaning'), ('---',) * 4]


def _entries(table) -> str:
  """Names of a table, with the first sentences of their docstrings."""
  rows = [
    (f'`{name}`', ' '.join(cls.__doc__.partition('\n\n')[0].split()))
    for name, cls in table.items()
  ]
  return _table([('name', 'what it is'), ('---',) * 2, *rows])


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
    text += _table([('flag', 'default', 'meaning'), ('---',) * 3, *rows])
  return text


def _value(value) -> str:
  return f'`{typed(value)}`' if typed(value) else ''


def _table(rows) -> str:
  cells = (
    [cell.replace('|', '\\|').replace('<', '&lt;') for cell in row]
    for row in rows
  )
  return ''.join(f'| {" | ".join(row)} |\n' for row in cells)


def scores(
  columns: dict[str, str],
  *,
  missing: bool = True,
  digits: int = 2,
  differences: bool = False,
) -> str:
  """Accuracy of each method, mean over seeds; a column per results file.

  Args:
    columns: title by name of the file.
    missing: whether to list methods that are not in all of the files.
    digits: after the point.
    differences: whether the paired difference to `none` follows each column.
  """
  found = {}
  for name, title in columns.items():
    path = RESULTS / f'{name}.json'
    if path.exists():
      table = json.loads(path.read_text())['table']
      found[title] = {e['model.position.name']: e for e in table}
  titles = ((title, 'to `none`')[: 1 + differences] for title in found)
  header = ['method', *itertools.chain(*titles)]
  rows = [header, ['---'] * len(header)]
  for name in POSITIONS:
    entries = [column.get(name, {}) for column in found.values()]
    if missing or all(entry.get('n') for entry in entries):
      rows.append([f'`{name}`'])
      for entry in entries:
        rows[-1].append(_score(entry, digits))
        if differences:
          rows[-1].append(_interval(entry.get('difference'), f'+.{digits}f'))
  return _table(rows)


def _score(entry: dict, digits: int) -> str:
  """Test with its interval, and the mean on validation in brackets."""
  if not entry.get('n'):
    return ''
  validation = f'{entry["validation"]["mean"]:.{digits}f}'
  shown = f'{_interval(entry["test"], f".{digits}f")} ({validation})'
  if entry['missing']:
    shown += f', {entry["n"]} of {entry["n"] + entry["missing"]} seeds'
  return shown


def _interval(summary: dict | None, form: str) -> str:
  """A mean and the half-width of its interval, if it has one."""
  if not summary:
    return ''
  shown = f'{summary["mean"]:{form}}'
  if summary['half_width'] is not None:
    shown += f' ± {summary["half_width"]:{form.lstrip("+")}}'
  return shown


def accuracy() -> str:
  """Accuracy of the configs, a row for each with a results file."""
  rows = [('config', 'reported on', 'accuracy', 'over', 'one run')]
  rows.append(('---',) * len(rows[0]))
  for label, (_, reported_on, *_) in _CONFIGS.items():
    found, entry = _found(label)
    if entry is None:
      continue
    over = f'{entry["n"]} seeds'
    if 'pooled' in entry:
      over = f'{entry["n"]} folds, together {entry["pooled"]:.3f}'
    seconds = found['seconds'] / sum(found['trials'].values())
    shown = f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'
    rows.append((label, reported_on, _spread(entry['test']), over, shown))
  return _table(rows)


def published() -> str:
  """Accuracy of the configs beside the best that was found published."""
  rows = [
    (
      'config',
      'data',
      'here',
      'self-attention, published',
      'any model, published',
    )
  ]
  rows.append(('---',) * len(rows[0]))
  for label, (_, _, data, *best) in _CONFIGS.items():
    _, entry = _found(label)
    if entry is not None and best:
      rows.append((label, data, _spread(entry['test']), *best))
  return _table(rows)


def _found(label: str) -> tuple[dict, dict | None]:
  """The results file of a config, and the row of its defaults, if any."""
  name, *_ = _CONFIGS[label]
  path = RESULTS / f'{name}.json'
  if not path.exists():
    return {}, None
  found = json.loads(path.read_text())
  wanted = _LEARNED if len(found['table']) > 1 else {}
  (entry,) = (e for e in found['table'] if wanted.items() <= e.items())
  return found, entry


def _spread(summary: dict) -> str:
  """A mean and its standard deviation."""
  return f'{summary["mean"]:.3f} ({summary["std"]:.3f})'


def costs() -> str:
  """Time and memory of the gradient of attention, docs/results/attention*.

  One row per method and per normaliser; times are ratios to attention without
  positions and with softmax, of the same length and causality.
  """
  # Where two have a length, the last: the one of many repetitions.
  paths = sorted(RESULTS.glob('attention_*.json'))
  entries = [e for path in paths for e in json.loads(path.read_text())['rows']]
  lengths = sorted({entry['length'] for entry in entries})
  found: dict[str, dict] = {}
  for entry in entries:
    of_softmax = entry['normaliser'] == 'softmax'
    name = entry['position' if of_softmax else 'normaliser']
    causal = ' (causal)' if entry['causal'] else ''
    found.setdefault(f'`{name}`{causal}', {})[entry['length']] = entry
  rows = [
    (
      'method or normaliser',
      *(f'time, {length:,}' for length in lengths),
      'slope',
      'MiB',
      'slope of MiB',
    ),
    ('---',) * (4 + len(lengths)),
  ]
  for name, of_length in found.items():
    ratios = (of_length.get(n, {}).get('ratio') for n in lengths)
    rows.append([name])
    rows[-1] += ['' if ratio is None else f'{ratio:.2f}' for ratio in ratios]
    last = of_length.get(lengths[-1])
    rows[-1] += (
      ['', '', '']
      if last is None
      else [
        str(last['time_slope']),
        f'{last["temporary_mib"]:,.0f}',
        str(last['memory_slope']),
      ]
    )
  return _table(rows)


# Of sweeps over positions, the row of the position method of the config.
_LEARNED = {'model.position.name': 'learned'}
# Of each config its results file, what is reported on, and the data; with the
# best published from scratch, of self-attention and of any model.
_CONFIGS = {
  '`trec.py`': (
    'trec',
    'test',
    'TREC, 6 classes',
    '0.896, complex-order (Wang et al. 2020)',
    '0.930, DCNN (Kalchbrenner et al. 2014, in Kim 2014)',
  ),
  '`sst2.py`, eight members': (
    'sst2',
    'dev',
    'SST-2 phrases, dev of GLUE',
    '0.8348, MHBA-Mixer (README of Liu-Xiaoyan97/MHBA-Mixer; split not stated)',
    '0.8521, BiLSTM (the Flax example)',
  ),
  '`sst2.py`, one': ('sst2_one', 'dev', 'SST-2 phrases'),
  '`sst2_cnn.py`, one': ('sst2_cnn_one', 'dev', 'SST-2 phrases'),
  '`sst2_recurrent.py`': (
    'sst2_recurrent',
    'dev',
    'the same',
    'the same',
    'the same',
  ),
  '`sst2_sentences.py`': ('sst2_sentences', 'test', 'SST-2 sentences'),
  '`mr.py`, ten folds': (
    'mr_folds',
    'ten folds',
    'MR',
    '0.746, complex-order (Wang et al. 2020)',
    '0.794, NBSVM (Wang and Manning 2012, in Kim 2014)',
  ),
  '`r8.py`': (
    'r8',
    'test',
    'R8',
    'none found',
    '0.9707, Text GCN (Yao et al. 2019), which reads the texts of test',
  ),
}
_TEXTS = {
  'trec': 'TREC',
  'sst2_sentences': 'SST-2, sentences',
}
_GENERATED = {
  'word_order': 'word_order',
  'a_before_b': 'a_before_b',
  'even_pairs': 'even_pairs',
  'cycle_navigation': 'cycle_navigation',
  'flip_flop': 'flip_flop',
  'associative_recall': 'associative_recall',
  'indirect_indexing': 'indirect_indexing',
}
_RANDOMISED = {
  name + end: title + end.replace('_', ', ')
  for name, title in _GENERATED.items()
  for end in ('', '_randomised')
  if (RESULTS / f'{name}_randomised.json').exists()
}
TABLES = {
  'positions': position_properties,
  'lengths': lambda: scores(_GENERATED),
  'texts': lambda: scores(_TEXTS, digits=3, differences=True),
  'randomised': lambda: scores(_RANDOMISED, missing=False),
  'accuracy': accuracy,
  'published': published,
  'costs': costs,
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
