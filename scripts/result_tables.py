"""Tables made from the results files of docs/results/, for make_tables.py."""

import collections
import itertools
import json
import pathlib

import numpy as np

from experiments.sweeps import comparison
from selfattn.positions import POSITIONS

RESULTS = pathlib.Path(__file__).parent.parent / 'docs/results'


def markdown(rows) -> str:
  """A table of Markdown; the second row is that of its rule."""
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
      entries = json.loads(path.read_text())['table']
      found[title] = {e['model.position.name']: e for e in entries}
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
  return markdown(rows)


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
  rows = [
    (
      'config',
      'reported on',
      'accuracy',
      'tf-idf, linear',
      'over',
      'time of a run',
    )
  ]
  rows.append(('---',) * len(rows[0]))
  for label, (_, baseline, reported_on, *_) in _CONFIGS.items():
    found, entry = _found(label)
    if entry is None:
      continue
    over = f'{entry["n"]} seeds'
    if 'pooled' in entry:
      over = f'{entry["n"]} folds, pooled {entry["pooled"]:.3f}'
    shown = ''
    if '--engine=serial' in found['commands'][0]:
      seconds = found['seconds'] / sum(found['trials'].values())
      shown = f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'
    test = _spread(entry['test'])
    rows.append((label, reported_on, test, _linear(baseline), over, shown))
  return markdown(rows)


def published() -> str:
  """Accuracy of the configs beside the best that was found published."""
  rows = [
    (
      'config',
      'data',
      'here',
      'tf-idf, linear',
      'self-attention, published',
      'any model, published',
    )
  ]
  rows.append(('---',) * len(rows[0]))
  for label, (_, baseline, _, data, *best) in _CONFIGS.items():
    _, entry = _found(label)
    if entry is not None and best:
      test = _spread(entry['test'])
      rows.append((label, data, test, _linear(baseline), *best))
  return markdown(rows)


def _linear(part: str) -> str:
  """Accuracy of scripts/linear_baseline.py, by a part of its command."""
  rows = json.loads((RESULTS / 'linear_baseline.json').read_text())
  (found,) = (row for command, row in rows.items() if part in command)
  return _spread(comparison.interval(found['accuracy']))


def _found(label: str) -> tuple[dict, dict | None]:
  """The results file of a config, and its row, if any."""
  name, *_ = _CONFIGS[label]
  path = RESULTS / f'{name}.json'
  if not path.exists():
    return {}, None
  found = json.loads(path.read_text())
  (entry,) = found['table']
  return found, entry


def _spread(summary: dict) -> str:
  """A mean and its standard deviation, of more than one."""
  mean, std = f'{summary["mean"]:.3f}', summary['std']
  return mean if std is None else f'{mean} ({std:.3f})'


def recipe(file: str) -> str:
  """A recipe and what differs from it in one thing, on validation.

  Args:
    file: of a sweep `choice`.
  """
  found = json.loads((RESULTS / f'{file}.json').read_text())
  rows = [('what differs', 'validation'), ('---',) * 2]
  for entry in found['table']:
    name = entry['setting']
    setting = 'nothing' if name == 'all' else f'`{name}`'
    rows.append((setting, _spread(entry['validation'])))
  return markdown(rows)


def masked() -> str:
  """Training from a model of masked tokens, and without, by learning rate."""
  rows = [('learning rate', 'begins with', 'validation', 'test'), ('---',) * 4]
  found = json.loads((RESULTS / 'sst2_sentences_masked.json').read_text())
  key = 'train.init_from'
  for entry in sorted(
    found['table'], key=lambda e: (e['optimizer.learning_rate'], e[key])
  ):
    begins = 'masked tokens' if entry[key] else 'drawn parameters'
    scores = (_spread(entry[split]) for split in ('validation', 'test'))
    rows.append((f'{entry["optimizer.learning_rate"]:g}', begins, *scores))
  return markdown(rows)


def imdb_masked() -> str:
  """Training of IMDB with and without masked tokens first, by setting."""
  rows = [('setting', 'begins with', 'accuracy', 'loss'), ('---',) * 4]
  for row in _rows('imdb_masked'):
    setting = ', '.join(
      (
        f'learning rate {row["optimizer.learning_rate"]:g}',
        f'dropout {row["model.dropout_rate"]:g}',
        f'decay {row["optimizer.weight_decay"]:g}',
        f'{row["train.steps"]:,} steps',
      )
    )
    scores = (f'{row[name]:.3f}' for name in ('accuracy', 'loss'))
    rows.append((setting, row['begins with'], *scores))
  return markdown(rows)


def pretraining() -> str:
  """Accuracy without and with pretraining, means over position methods."""
  rows = [('data', 'training', 'methods', 'test', 'to training alone')]
  rows.append(('---',) * len(rows[0]))
  for data, methods in _pretrained().items():
    # Near chance on some data, which no mean should hide.
    methods.pop('sinusoidal', None)
    base = np.array([found['all'] for found in methods.values()])
    for setting, title in _PRETRAINING.items():
      scores = [found.get(setting) for found in methods.values()]
      if None in scores:
        continue
      difference = ''
      if setting != 'all':
        summary = comparison.interval((np.array(scores) - base).tolist())
        difference = _interval(summary, '+.4f')
      row = (title, str(len(scores)), f'{np.mean(scores):.4f}', difference)
      rows.append((data, *row))
  return markdown(rows)


def pretraining_recipes() -> str:
  """Each recipe alone, and with masked tokens first, by seed."""
  rows = [('config', 'alone', 'masked tokens first', 'difference', 'over')]
  rows.append(('---',) * len(rows[0]))
  for file, label in _PRETRAINED_RECIPES.items():
    found = json.loads((RESULTS / f'{file}.json').read_text())
    alone, pretrained = sorted(
      found['table'], key=lambda entry: entry['pretrain.steps']
    )
    rows.append(
      (
        label,
        _spread(alone['test']),
        _spread(pretrained['test']),
        _interval(pretrained['difference'], '+.3f'),
        f'{alone["n"]} seeds',
      )
    )
  return markdown(rows)


def pretraining_methods() -> str:
  """The same by position method, means over seeds or folds."""
  data = _pretrained()
  titles = ((name, 'gain') for name in data)
  rows = [('method', *itertools.chain(*titles))]
  rows.append(('---',) * len(rows[0]))
  for name in POSITIONS:
    row = [f'`{name}`']
    for methods in data.values():
      if name in methods:
        gain = methods[name]['pretrain.steps=700'] - methods[name]['all']
        row += [f'{methods[name]["all"]:.3f}', f'{gain:+.3f}']
      else:
        row += ['', '']
    rows.append(row)
  return markdown(rows)


def pretraining_gains() -> dict[str, dict[str, float]]:
  """By data and method: the gain in test accuracy by masked tokens."""
  return {
    data: {
      name: found['pretrain.steps=700'] - found['all']
      for name, found in methods.items()
    }
    for data, methods in _pretrained().items()
  }


def _pretrained() -> dict[str, dict[str, dict[str, float]]]:
  """Test accuracy by data, method and training."""
  data: dict = {}
  for title, files in _PRETRAINED.items():
    found: dict = {}
    for file in files:
      path = RESULTS / f'{file}.json'
      for entry in json.loads(path.read_text())['table']:
        chosen = [
          setting
          for setting in _PRETRAINING
          if entry.get(setting.partition('=')[0])
        ]
        scores = found.setdefault(entry['model.position.name'], {})
        tests = scores.setdefault(chosen[0] if chosen else 'all', [])
        # The mean over the seeds of all files.
        tests += [entry['test']['mean']] * entry['test']['n']
    data[title] = {
      method: {name: float(np.mean(tests)) for name, tests in scores.items()}
      for method, scores in found.items()
    }
  return data


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
  return markdown(rows)


def training_step() -> str:
  """A training step by library, docs/results/step.json."""
  of_shape: dict[tuple, dict] = {}
  for row in _rows('step'):
    sizes = ('batch', 'length', 'vocab_size', 'width', 'model')
    shape = tuple(row[size] for size in sizes)
    of_shape.setdefault(shape, {})[row['step']] = row
  rows = [('batch, length, vocabulary, width', 'ours', *_STEPS.values())]
  rows.append(('---',) * len(rows[0]))
  for (*sizes, model), found in of_shape.items():
    ratios = [
      f'{found[name]["ratio"]:.2f}' if name in found else '' for name in _STEPS
    ]
    ours = f'{found["ours"]["median_ms"]:.3g} ms'
    title = ', '.join(f'{size:,}' for size in sizes)
    if model != 'tutorial':
      title += f' ({model})'
    rows.append((title, ours, *ratios))
  return markdown(rows)


def operations() -> str:
  """A training step by what operations compute, docs/results/operations.json.

  The last column is a share of the step, too.
  """
  entries = _rows('operations')
  title = 'its matmuls at the peak rate'
  rows = [('operations', 'count', 'share of the step', title), ('---',) * 4]
  for row in entries:
    floor = row['floor_us'] and f'{row["floor_us"] / entries[-1]["us"]:.0%}'
    count = str(row['count'] or '')
    rows.append((row['operations'], count, f'{row["share"]:.0%}', floor))
  return markdown(rows)


def attention_lengths() -> str:
  """Attention by length and backend, docs/results/lengths.json."""
  of_length: dict[int, dict] = {}
  for row in _rows('lengths'):
    of_length.setdefault(row['length'], {})[row['backend']] = row
  rows = [
    (
      'length',
      'temporary memory, chunked and xla',
      'time, chunked',
      'xla',
      'slope of time, chunked and xla',
    ),
    ('---',) * 5,
  ]
  for length, found in of_length.items():
    chunked, xla = found['chunked'], found['xla']
    slopes = [each.get('time_slope', '') for each in (chunked, xla)]
    rows.append(
      (
        f'{length:,}',
        ' and '.join(_short(each['temporary_mib']) for each in (chunked, xla))
        + ' MiB',
        f'{_short(chunked["median_ms"])} ms',
        f'{xla["median_ms"] / chunked["median_ms"]:.2f}'
        if 'median_ms' in xla
        else '',
        ' and '.join(str(slope) for slope in slopes if slope != ''),
      )
    )
  return markdown(rows)


def other_suites() -> str:
  """Ratios of the suites that compare few alternatives."""
  rows = [('suite', 'what', 'ratio'), ('---',) * 3]
  for suite, column, base, names in _SUITES:
    for row in _rows(suite):
      if row[column] in names:
        what = f'{names[row[column]]}, to {base}'
        rows.append((f'`{suite}`', what, f'{row["ratio"]:.2f}'))
  return markdown(rows)


def large_data() -> str:
  """Seconds and peak memory by the size of data, of texts, of sweeps."""
  rows = [('what', 'seconds', 'ratio', 'to', 'peak memory'), ('---',) * 5]
  for suite, (column, base, names) in _LARGE.items():
    for row in _rows(suite):
      if row[column] in names:
        memory = row.get('peak_mib')
        rows.append(
          (
            names[row[column]],
            _short(row['median_ms'] / 1e3),
            f'{row["ratio"]:.3g}',
            base,
            '' if memory is None else f'{memory:.0f} MiB',
          )
        )
  return markdown(rows)


def measured() -> str:
  """What the README says of speed and of sweeps."""
  torch = [r['ratio'] for r in _rows('step') if r['step'] == 'pytorch']
  (sweep,) = (r['ratio'] for r in _rows('sweep') if r['how'] == 'launches')
  tasks = 'a_before_b', 'even_pairs', 'flip_flop'
  lowest = _lowest([f'{task}_randomised' for task in tasks])
  holding = [score for score in lowest.values() if score >= 0.94]
  rows = [
    ('what', 'result', '`bash scripts/run.sh` ...', 'page'),
    ('---',) * 4,
    (
      'speed',
      f'a training step of a small classifier takes {min(torch):.1f} to '
      f'{max(torch):.1f} times as long in PyTorch',
      '`experiments.benchmark --suite=step`',
      '[performance](docs/performance.md)',
    ),
    (
      'resume',
      'after 150 kills and signals at random moments, parameters and metrics '
      'are those of an uninterrupted run, bit for bit',
      '`pytest -m faults`',
      '[resuming](docs/cli.md#resuming)',
    ),
    (
      'sweeps',
      f'32 trials as one sweep are {sweep:.2f} times as fast as 32 commands',
      '`experiments.benchmark --suite=sweep`',
      '[sweeps](docs/sweeps.md)',
    ),
    (
      'longer texts',
      f'with randomised positions, {len(holding)} of {len(lowest)} methods are '
      f'right on {min(holding):.2f} or more of strings up to five times as '
      'long as in training, on each of three tasks (means of three seeds)',
      '`experiments.sweep --config=configs/length_generalization.py '
      '--config.model.position_sampling.name=randomised '
      f'--grid=config.data.algorithmic.task={",".join(tasks)} '
      '--sweep=positions,seeds --workdir=runs/length`',
      '[positions](docs/positions.md#which-method-learns-what)',
    ),
  ]
  return markdown(rows)


def _lowest(names: list[str]) -> dict[str, float]:
  """Of each position method, the lowest test score in these results files."""
  scores = collections.defaultdict(list)
  for name in names:
    for entry in json.loads((RESULTS / f'{name}.json').read_text())['table']:
      if entry['n']:
        scores[entry['model.position.name']].append(entry['test']['mean'])
  return {
    method: min(found)
    for method, found in scores.items()
    if len(found) == len(names)
  }


def _short(value: float) -> str:
  """Three digits, or all of those before the point."""
  return f'{value:.3g}' if value < 1_000 else f'{value:,.0f}'


def _rows(suite: str) -> list[dict]:
  """Rows of the results file of a benchmark."""
  return json.loads((RESULTS / f'{suite}.json').read_text())['rows']


# Columns of the table of training steps, by the name of the row.
_STEPS = {
  'without dropout': 'without dropout',
  'flax layers': 'Flax layers, nn.Dropout',
  'pytorch': 'PyTorch',
  'pytorch compiled': 'PyTorch, compiled',
  'matmuls': 'matmuls',
}
# Of each suite the column of the alternatives, that which the others are
# compared with, and the alternatives that are shown.
_SUITES = (
  (
    'startup',
    'process',
    'imports, and the step traced and read from the cache',
    {'experiments.train': 'command to first step, default config'},
  ),
  (
    'startup',
    'process',
    'imports',
    {
      'experiments.predict': '`experiments.predict` of one text',
      'experiments.evaluate': '`experiments.evaluate`, default config',
    },
  ),
  (
    'epoch',
    'batches',
    '`experiments.train`',
    {
      'prepared': 'steps of SST-2 on prepared batches',
      'padded': 'SST-2 padded to 64',
    },
  ),
  (
    'sweep',
    'how',
    'one sweep of the same 32 trials',
    {'launches': '32 launches of the default config'},
  ),
)
_FIRST, _SECOND = 'first start with {} texts of 22 words', 'the next start'
# The same of suites that measure sizes.
_LARGE = {
  'data': (
    'start',
    'a start with the built-in data',
    {'first start': _FIRST.format('1,000,000'), 'second start': _SECOND},
  ),
  'data_ten_million': (
    'start',
    'a start with the built-in data',
    {'first start': _FIRST.format('10,000,000'), 'second start': _SECOND},
  ),
  'predict': (
    'texts',
    'predict of one text',
    {
      'first answer of a pipe': 'first answer of predict, from a pipe',
      '100000 texts': 'predict of 100,000 texts',
      '1000000 texts': 'predict of 1,000,000 texts',
    },
  ),
  'trials': (
    'sweep',
    'plan of one trial',
    {
      'plan of 1000': 'plan of a sweep of 1,000 trials',
      '1000 that have ended': 'a sweep of 1,000 trials that have ended, again',
    },
  ),
}
_SST2 = 'configs/sst2.py --config.data.dir=PATH --output'
# Of each config its results file, a part of the command of its linear
# baseline, what is reported on, and the data; with the best published from
# scratch, of self-attention and of any model.
_CONFIGS = {
  '`trec.py`': (
    'trec',
    'configs/trec.py',
    'test',
    'TREC, 6 classes',
    '0.896, complex-order (Wang et al. 2020)',
    '0.930, DCNN, perhaps with pretrained vectors (Kalchbrenner et al. 2014, '
    'in Kim 2014); 0.912, CNN-rand (Kim 2014)',
  ),
  '`sst2.py`, single model': (
    'sst2_one',
    _SST2,
    'dev',
    'SST-2 phrases, dev of GLUE',
    '0.8348, MHBA-Mixer, attention-like (README of '
    'Liu-Xiaoyan97/MHBA-Mixer; split not stated)',
    '0.8521, BiLSTM (the Flax example)',
  ),
  '`sst2.py`, ensemble of eight': (
    'sst2_ensemble',
    _SST2,
    'dev',
    'the same',
    'the same',
    'the same',
  ),
  '`sst2.py`, single model, on test': (
    'sst2_one_test',
    'configs/sst2.py --config.data.dir=PATH --config.data.text.test',
    'test',
    'SST-2 phrases, test of 1,821 sentences',
    '0.813, complex-order (Wang et al. 2020; of 2,200 sentences)',
    '0.878, Paragraph Vector (Le and Mikolov 2014); 0.868, DCNN (Kalchbrenner '
    'et al. 2014, in Kim 2014)',
  ),
  '`sst2_cnn.py`, single model': (
    'sst2_cnn_one',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  '`sst2_recurrent.py`': (
    'sst2_recurrent',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  '`sst2_recurrent.py`, ensemble of eight': (
    'sst2_recurrent_ensemble',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  'BiLSTM with attentive pool': (
    'sst2_bilstm',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  'BiLSTM with attentive pool and MLP head': (
    'sst2_bilstm_mlp',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  'BiLSTM with the settings of the Flax example': (
    'sst2_bilstm_flax',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  'the same, words split at white space alone': (
    'sst2_bilstm_flax_words',
    _SST2,
    'dev',
    'SST-2 phrases',
  ),
  '`sst2_sentences.py`': (
    'sst2_sentences',
    'configs/sst2_sentences.py',
    'test',
    'SST-2 sentences',
  ),
  '`mr.py`, ten folds': (
    'mr',
    'configs/mr.py',
    'ten folds',
    'MR',
    '0.746, complex-order (Wang et al. 2020)',
    '0.795, Sent-Parser (Dong et al. 2014, in Kim 2014)',
  ),
  '`imdb.py`': (
    'imdb',
    'configs/imdb.py',
    'test',
    'IMDB',
    '0.879, MHBA-Mixer, attention-like (README of Liu-Xiaoyan97/MHBA-Mixer)',
    '0.957, BiLSTM with a mixed objective (Sachan et al. 2019), and the texts '
    'without labels; 0.923 without them, CNN beside n-grams (Johnson and Zhang '
    '2015)',
  ),
  '`r8.py`': (
    'r8',
    'configs/r8.py',
    'test',
    'R8',
    'none found',
    '0.980, HyperGAT (Ding et al. 2020)',
  ),
  '`r8.py`, ensemble of eight': (
    'r8_ensemble',
    'configs/r8.py',
    'test',
    'the same',
    'the same',
    'the same',
  ),
}
# Files by title of the data, each with seeds or folds of its own.
_PRETRAINED = {
  'TREC': ('trec_pretraining_methods', 'trec_pretraining_methods_more'),
  'SST-2 sentences': ('sst2_sentences_pretraining',),
  'MR': ('mr_pretraining',),
}
_PRETRAINED_RECIPES = {
  'sst2_pretrained': '`sst2.py`, single model',
  'r8_pretrained': '`r8.py`',
}
_PRETRAINING = {
  'all': '700 steps',
  'train.steps=1400': '1,400 steps',
  'pretrain.steps=700': '700 steps of masked tokens, then 700',
}
TEXTS = {
  'trec_positions': 'TREC',
  'sst2_sentences_positions': 'SST-2, sentences',
}
GENERATED = {
  'word_order': 'word_order',
  'a_before_b': 'a_before_b',
  'even_pairs': 'even_pairs',
  'cycle_navigation': 'cycle_navigation',
  'flip_flop': 'flip_flop',
  'associative_recall': 'associative_recall',
  'indirect_indexing': 'indirect_indexing',
}
RANDOMISED = {
  name + end: title + end.replace('_', ', ')
  for name, title in GENERATED.items()
  for end in ('', '_randomised')
  if (RESULTS / f'{name}_randomised.json').exists()
}
