"""Sections of the report of a run."""

from __future__ import annotations

import json

import jax
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding
from experiments.inspection import head_analysis, pages
from experiments.learning.scores import (
  by_length,
  confusion_matrix,
  per_class,
  scores,
)
from experiments.training import evaluation
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.metrics import read_rows
from selfattn import plots
from selfattn.contract import has_heads

# Limit of the size of all attention maps on a page, in bytes of text.
_MOST_BYTES = 8_000_000


def sections(values, path: str) -> list[str]:
  """Curves, results and texts of the run in `path`.

  Args:
    values: flags of experiments.report.

  Raises:
    UserError: no such checkpoint, or no data in --data_dir.
  """
  settings, program, state = evaluation.restore_run(path, values.checkpoint)
  step = int(state.step)
  about = [
    pages.section('Run', _status(values.workdir, path, step)),
    pages.section('Curves', _curves(read_rows(f'{path}/metrics.jsonl'))),
  ]
  config = pages.section('Config', pages.config(settings.flat()))
  try:
    loaded = evaluation.load_data(settings, path, values.data_dir)
  except UserError as error:
    if values.data_dir is not None:
      raise
    log(
      f'WARNING: the report lacks results on {values.split} and texts: {error}'
    )
    missing = f'<p>{pages.escape(error)}</p>'
    return [*about, pages.section('Results', missing), config]
  examples = loaded.splits[values.split]
  answers = evaluation.evaluate(
    program,
    state.eval_params,
    examples,
    settings.train.eval_batch_size,
    loaded.bucket_lengths,
  )
  results = f'Results on {values.split}'
  if not program.task.has_labels:
    found = program.task.scores(answers, examples.labels)
    table = pages.table(list(found), [list(found.values())])
    return [*about, pages.section(results, table), config]
  losses, logits = answers
  params = head_analysis.of_member(settings, values.member, state.eval_params)
  title = 'Attention on these texts'
  if settings.model.num_members > 1:
    title += f', of member {values.member} of {settings.model.num_members}'
  return [
    *about,
    pages.section(results, _results(loaded.labels, examples, losses, logits)),
    *_worst(values, path, program, params, loaded, losses, logits, title),
    config,
  ]


def _status(workdir: str, path: str, step: int) -> str:
  status = workdir_lib.read_status(path)
  shown = {'workdir': workdir, 'checkpoint': step} | status
  return pages.table(
    ['', ''],
    [
      [name, value if isinstance(value, str) else json.dumps(value)]
      for name, value in shown.items()
    ],
  )


def _points(rows: list[dict]) -> dict[str, dict[str, list]]:
  """(step, value) of each point of a curve, by metric and split.

  Metrics of train are means over the steps after the row before, and stand in
  the middle of these; its learning rate is that of the step.
  """
  curves: dict[str, dict[str, list]] = {}
  before = 0
  for row in rows:
    middle = (before + 1 + row['step']) / 2
    for name, value in row.items():
      split, slash, quantity = name.rpartition('/')
      is_mean = split == 'train' and quantity != 'learning_rate'
      if 'phase' in row:
        quantity = f'{quantity} ({row["phase"]})'
      if slash and value is not None:
        curve = curves.setdefault(quantity, {}).setdefault(split, [])
        curve.append((middle if is_mean else row['step'], value))
      if is_mean:
        before = row['step']
  return curves


def _curves(rows: list[dict]) -> str:
  """A figure per metric, with a curve for each split that has it."""
  drawn = []
  for quantity, splits in _points(rows).items():
    figure = plots.plot(
      *zip(*next(iter(splits.values())), strict=True),
      xlabel='steps',
      ylabel=quantity,
      figsize=(4.2, 2.6),
    )
    (axis,) = figure.axes
    axis.lines[0].remove()
    for index, (split, points) in enumerate(splits.items()):
      # A point alone is no line.
      marker = 'o' if len(points) == 1 else None
      style = plots.style(index) | {'marker': marker}
      axis.plot(*zip(*points, strict=True), label=split, **style)
    # Above the curves, not over them.
    axis.legend(
      loc='lower right', bbox_to_anchor=(1, 1), ncols=2, frameon=False
    )
    drawn.append(pages.figure(figure, f'{quantity} over steps'))
  note = (
    '<p>Metrics of train are means over the steps between two rows of the log, '
    'and are drawn in the middle of these.</p>'
  )
  return note + pages.figures(drawn, 20)


def _results(labels, examples, losses, logits) -> str:
  predictions = logits.argmax(axis=-1)
  confusion = confusion_matrix(examples.labels, predictions, len(labels))
  found = scores(losses, confusion) | {'examples': len(examples)}
  of_class = np.stack(per_class(confusion), axis=1).tolist()
  ranges = by_length(examples.lengths, predictions == examples.labels)
  summary = pages.table(list(found), [list(found.values())])
  return summary + pages.beside(
    [
      pages.confusion(labels, confusion),
      pages.table(
        ['class', 'precision', 'recall', 'F1'],
        [[n, *row] for n, row in zip(labels, of_class, strict=True)],
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


def _worst(
  values, path, program, params, loaded, losses, logits, title
) -> list[str]:
  """Sections on the texts with the greatest loss, and the attention on them."""
  examples = loaded.splits[values.split]
  order = np.argsort(-losses, kind='stable')[: values.num_examples]
  chosen = examples.take(order)
  tokenizer = encoding.read_tokenizer(path)
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
      labels[predictions[rank]],
      float(probabilities[rank, truth]),
      texts[rank],
    ]
    for rank, (row, truth) in enumerate(zip(order, chosen.labels, strict=True))
  ]
  is_wrong = np.flatnonzero(predictions != chosen.labels).tolist()
  header = ['loss', 'true', 'predicted', 'probability of true', 'text']
  found = [
    pages.section(
      'Texts with the greatest loss',
      '<p>Misclassified texts are highlighted.</p>'
      + pages.table(header, rows, is_wrong),
    )
  ]
  if has_heads(program.classifier.encoder):
    some = np.flatnonzero(chosen.lengths)
    content = _attention(
      program.classifier,
      params,
      chosen.take(some),
      [texts[rank] for rank in some],
      tokenizer,
    )
    found.append(pages.section(title, content))
  return found


def _attention(classifier, params, examples, texts, tokenizer) -> str:
  shown, size = [], 0
  found = head_analysis.attention_maps(
    classifier, params, examples, head_analysis.names(tokenizer)
  )
  for text, maps in zip(texts, found, strict=True):
    size += maps.weights.size * 8 // 3
    if shown and size > _MOST_BYTES:
      break
    shown.append((text, maps))
  if not shown:
    return '<p>none</p>'
  note = f'<p>The first {len(shown)} of them.</p>'
  return note + pages.attention(shown)
