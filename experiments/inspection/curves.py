"""The curves of runs: their metrics over steps, on train and validation."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.inspection import charts, pages
from experiments.inspection.charts import Point

# Colours of the splits, the same in every chart; see plots.style.
_SPLITS = {'validation': 0, 'train': 1, 'test': 2}
# From a curve to the one of the same colour that is dashed.
_DASHED = 6


def write(runs: Mapping[str, list[dict]]) -> str:
  """A chart per metric, with a curve for each split that has it; HTML.

  Args:
    runs: rows of metrics.jsonl, by the name of the run.
  """
  by_metric: dict[str, dict[str, list[Point]]] = {}
  styles = dict(_SPLITS)
  for number, (name, rows) in enumerate(runs.items()):
    for metric, splits in points(rows).items():
      for split, curve in splits.items():
        label = f'{name}, {split}' if len(runs) > 1 else split
        if len(runs) > 1:
          styles[label] = number % _DASHED + _DASHED * (split == 'train')
        drawn = [Point(step, value) for step, value in curve]
        by_metric.setdefault(metric, {})[label] = drawn
  note = pages.paragraph(
    'train: the mean over the steps since the row before, as they were trained '
    '(with dropout and smoothed labels), in the middle of these steps. '
    'validation: the whole split, without dropout, after the step.'
  )
  shown = [
    charts.lines(curves, 'steps', metric, styles=styles)
    for metric, curves in by_metric.items()
  ]
  return note + pages.figures(shown, 20)


def points(rows: list[dict]) -> dict[str, dict[str, list]]:
  """(step, value) of each point of a curve, by metric and split.

  Metrics of train are means over the steps after the row before, and stand in
  the middle of these; its learning rate is that of the step.
  """
  curves: dict[str, dict[str, list]] = {}
  before = 0
  for row in rows:
    middle = (before + 1 + row['step']) / 2
    for name, value in row.items():
      split, slash, quantity = name.partition('/')
      is_mean = split == 'train' and quantity != 'learning_rate'
      if slash and value is not None:
        curve = curves.setdefault(quantity, {}).setdefault(split, [])
        curve.append((middle if is_mean else row['step'], value))
      if is_mean:
        before = row['step']
  return curves
