"""Writes one page about a run or a sweep, which opens without a network.

    bash scripts/run.sh experiments.report --workdir=runs/sst2
    bash scripts/run.sh experiments.report --workdir=runs/positions

Of a run: its config, its curves, the confusion matrix of a split, the texts it
gets most wrong, and how it attended to them. Of a sweep: tables and pictures.
The page is WORKDIR/report.html; the last line of standard output is one JSON
object.
"""

from __future__ import annotations

import collections
import json
import os
import statistics

import jax
import numpy as np

from experiments import data, evaluate, heads, launch, pages, remote
from experiments import workdir as workdir_lib
from experiments.choices import UserError
from experiments.metrics import read_rows
from experiments.sweeps import folder, results
from experiments.sweeps import plots as sweep_plots
from selfattn import plots
from selfattn.encoders import AttentionEncoder

# What the weights of all maps on a page may take, in bytes of text.
_MOST_BYTES = 8_000_000


def _define(values) -> None:
  flags = launch.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a run or of a sweep.'),
    ('output', None, 'The page; WORKDIR/report.html.'),
    ('checkpoint', 'best', 'Of a run: best, last, or a step.'),
    ('data_dir', None, 'Where the data is, if not where it was.'),
    ('metric', 'best/test/accuracy', 'Of a sweep: column of results.csv.'),
    ('over', 'seed', 'Of a sweep: key that only repeats a setting.'),
    ('baseline', '', 'Of a sweep: setting that differences are to.'),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_enum(
    'split', 'test', data.datasets.SPLITS, 'Of a run.', flag_values=values
  )
  flags.DEFINE_integer(
    'num_examples', 20, 'Texts that are shown.', 0, flag_values=values
  )


def main(values) -> None:
  """Reads what there is, and writes the page."""
  place = launch.required(values, 'workdir')
  if not values.output and place.startswith(remote.SCHEMES):
    raise UserError(f'--output is missing; --workdir={place} is only read')
  output = os.path.abspath(values.output or f'{place}/report.html')
  with remote.staged(place) as path:
    is_sweep = os.path.exists(os.path.join(path, 'sweep.json'))
    _check(values, path, is_sweep)
    if os.path.isdir(output):
      raise UserError(f'--output={output} is a folder, not a page')
    launch.make_folder(os.path.dirname(output), 'output')
    sections = (_sweep if is_sweep else _run)(values, path)
    pages.write(output, place, sections)
  launch.print_result({'page': output, 'bytes': os.path.getsize(output)})


def _check(values, path: str, is_sweep: bool) -> None:
  """UserError for flags that this kind of workdir has no use for."""
  kind, unused = 'run', ('metric', 'over', 'baseline')
  if is_sweep:
    kind, unused = 'sweep', ('checkpoint', 'data_dir', 'split', 'num_examples')
  for name in unused:
    if not values[name].using_default_value:
      raise UserError(f'--{name} has no meaning for a {kind}, as {path} is')
  if not is_sweep:
    workdir_lib.read_settings(path)


def _run(values, path: str) -> list[str]:
  settings, program, state = evaluate.restore_run(path, values.checkpoint)
  wanted = settings.data
  if values.data_dir is not None:
    wanted = wanted.moved_to(values.data_dir)
  loaded = data.load(wanted, path)
  examples = loaded.splits[values.split]
  losses, logits = evaluate.evaluate(
    program,
    state.params,
    examples,
    settings.train.eval_batch_size,
    loaded.bucket_lengths,
  )
  step = int(state.step)
  return [
    pages.section('Run', _status(path, step)),
    pages.section('Curves', _curves(read_rows(f'{path}/metrics.jsonl'))),
    pages.section(
      f'Results on {values.split}',
      _results(loaded.labels, examples, losses, logits),
    ),
    *_worst(values, path, program, state.params, loaded, losses, logits),
    pages.section('Config', _config(settings.flat())),
  ]


def _status(path: str, step: int) -> str:
  status = workdir_lib.read_status(path)
  shown = {'checkpoint': step} | status
  return pages.table(
    ['', ''],
    [
      [name, value if isinstance(value, str) else json.dumps(value)]
      for name, value in shown.items()
    ],
  )


def _curves(rows: list[dict]) -> str:
  """A picture for each quantity, with a curve for each split that has it."""
  curves: dict[str, dict[str, list]] = {}
  for row in rows:
    for name, value in row.items():
      split, slash, quantity = name.rpartition('/')
      if slash and value is not None:
        curve = curves.setdefault(quantity, {}).setdefault(split, [])
        curve.append((row['step'], value))
  drawn = []
  for quantity, splits in curves.items():
    figure = plots.plot(
      *zip(*next(iter(splits.values())), strict=True),
      xlabel='updates',
      ylabel=quantity,
      figsize=(5.6, 2.4),
    )
    (axis,) = figure.axes
    axis.lines[0].remove()
    for index, (split, points) in enumerate(splits.items()):
      axis.plot(*zip(*points, strict=True), label=split, **plots.style(index))
    axis.legend(loc='upper left', bbox_to_anchor=(1, 1))
    drawn.append(pages.picture(figure, f'{quantity} over updates'))
  return '\n'.join(drawn)


def _results(labels, examples, losses, logits) -> str:
  predictions = logits.argmax(axis=-1)
  confusion = evaluate.confusion_matrix(
    examples.labels, predictions, len(labels)
  )
  scores = evaluate.scores(losses, confusion) | {'examples': len(examples)}
  per_class = np.stack(evaluate.per_class(confusion), axis=1).tolist()
  ranges = evaluate.by_length(examples.lengths, predictions == examples.labels)
  return '\n'.join(
    [
      pages.table(list(scores), [list(scores.values())]),
      pages.confusion(labels, confusion),
      pages.table(
        ['class', 'precision', 'recall', 'F1'],
        [[n, *row] for n, row in zip(labels, per_class, strict=True)],
      ),
      pages.table(
        ['tokens', 'examples', 'accuracy'],
        [
          [f'{r["shortest"]} to {r["longest"]}', r['count'], r['accuracy']]
          for r in ranges
        ],
      ),
    ]
  )


def _worst(values, path, program, params, loaded, losses, logits) -> list[str]:
  """The texts with the greatest loss, and the attention on them."""
  examples = loaded.splits[values.split]
  order = np.argsort(-losses, kind='stable')[: values.num_examples]
  chosen = examples.take(order)
  tokenizer = data.read_tokenizer(path)
  texts = [
    tokenizer.decode(
      chosen.tokens[start : start + length].tolist(), skip_special_tokens=False
    )
    for start, length in zip(chosen.starts, chosen.lengths, strict=True)
  ]
  probabilities = np.asarray(jax.nn.softmax(logits[order], axis=-1))
  predictions = probabilities.argmax(axis=-1)
  labels = loaded.labels
  rows = [
    [
      float(losses[row]),
      labels[truth],
      labels[predictions[place]],
      float(probabilities[place, truth]),
      texts[place],
    ]
    for place, (row, truth) in enumerate(zip(order, chosen.labels, strict=True))
  ]
  is_wrong = np.flatnonzero(predictions != chosen.labels).tolist()
  header = ['loss', 'true', 'predicted', 'probability of true', 'text']
  found = [
    pages.section(
      'Texts with the greatest loss',
      '<p>Those that are marked are classified wrong.</p>'
      + pages.table(header, rows, is_wrong),
    )
  ]
  if isinstance(program.classifier.encoder, AttentionEncoder):
    some = np.flatnonzero(chosen.lengths)
    content = _attention(
      program.classifier,
      params,
      chosen.take(some),
      [texts[place] for place in some],
      tokenizer,
    )
    found.append(pages.section('Attention on them', content))
  return found


def _attention(classifier, params, examples, texts, tokenizer) -> str:
  shown, size = [], 0
  opened = heads.opened(classifier, params, examples, heads.names(tokenizer))
  for text, one in zip(texts, opened, strict=True):
    size += one.weights.size * 8 // 3
    if shown and size > _MOST_BYTES:
      break
    shown.append((text, one))
  if not shown:
    return '<p>none</p>'
  note = f'<p>The first {len(shown)} of them.</p>'
  return note + pages.attention(shown)


def _config(flat: dict) -> str:
  """Every key, those with another value than in configs/default.py marked."""
  usual = launch.flat_keys(launch.load_config(launch.DEFAULT_CONFIG))
  rows, changed = [], []
  for key, value in sorted(flat.items()):
    before = usual.get(key)
    before = list(before) if isinstance(before, tuple) else before
    value = list(value) if isinstance(value, tuple) else value
    if value != before:
      changed.append(len(rows))
    rows.append([f'config.{key}', json.dumps(value), json.dumps(before)])
  note = '<p>Keys that are marked differ from configs/default.py.</p>'
  return note + pages.table(['key', 'value', 'default'], rows, changed)


def _sweep(values, path: str) -> list[str]:
  specs = folder.read(path)
  rows = results.collect(specs)
  metrics = [name for name in rows[0] if name.count('/') == 2]
  if values.metric not in metrics:
    raise UserError(
      f'--metric={values.metric} is not one of {", ".join(metrics)}'
    )
  table = results.grouped(
    rows, specs, values.metric, values.over, values.baseline
  )
  keys = list(dict.fromkeys(key for spec in specs for key in spec.overrides))
  keys = [key for key in keys if key != values.over]
  drawn = []
  if any(entry.get('mean') is not None for entry in table):
    figure = sweep_plots.settings(table, values.metric)
    drawn.append(pages.picture(figure, f'{values.metric} of each setting'))
  for key in sweep_plots.swept_numbers(table, keys):
    figure = sweep_plots.figure(table, key, values.metric, keys)
    drawn.append(pages.picture(figure, f'{values.metric} against {key}'))
  name = values.metric.rpartition('/')[2]
  figure = sweep_plots.curves(
    _mean_curves(specs, values.over, name), f'{name} on validation'
  )
  drawn.append(pages.picture(figure, f'{name} over updates'))
  header, body = results.cells(table)
  columns = ['trial', 'name', *keys, values.over, 'status', values.metric]
  columns += ['parameters', 'seconds', 'reason']
  columns = [c for c in columns if any(row.get(c) is not None for row in rows)]
  trials = [[row.get(column) for column in columns] for row in rows]
  ended = [n for n, row in enumerate(rows) if row['status'] != 'DONE']
  return [
    pages.section(f'Settings, by {values.metric}', pages.table(header, body)),
    pages.section('Pictures', '\n'.join(drawn)),
    pages.section('Trials', pages.table(columns, trials, ended)),
    pages.section('Config', _config(_shared(specs))),
  ]


def _shared(specs) -> dict:
  """Settings of a sweep, without what its trials change."""
  flat = specs[0].settings.flat()
  changed = {key for spec in specs for key in spec.overrides}
  return {key: flat[key] for key in flat if key not in changed}


def _mean_curves(specs, over: str, name: str) -> dict[str, dict[int, float]]:
  """Means over repetitions of a metric on validation, by setting and step."""
  found: dict[str, dict[int, list]] = {}
  for spec in specs:
    setting, _ = results.setting_of(spec, over)
    points = found.setdefault(setting, collections.defaultdict(list))
    for row in read_rows(os.path.join(spec.path, 'metrics.jsonl')):
      value = row.get(f'validation/{name}')
      if value is not None:
        points[row['step']].append(value)
  return {
    setting: {step: statistics.fmean(points[step]) for step in sorted(points)}
    for setting, points in found.items()
  }


if __name__ == '__main__':
  launch.run(main, _define, __doc__)
