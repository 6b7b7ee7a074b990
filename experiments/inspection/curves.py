"""The curves of a run: its metrics over steps, on train and validation."""

from __future__ import annotations

from experiments.inspection import pages
from selfattn import plots


def write(rows: list[dict]) -> str:
  """A figure per metric, with a curve for each split that has it; HTML.

  Args:
    rows: of metrics.jsonl.
  """
  from matplotlib.figure import Figure

  drawn = []
  for quantity, splits in points(rows).items():
    figure = Figure(figsize=(4.2, 2.6), layout='constrained')
    axis = figure.add_subplot()
    for index, (split, curve) in enumerate(splits.items()):
      # A point alone is no line.
      marker = 'o' if len(curve) == 1 else None
      steps, values = zip(*curve, strict=True)
      style = plots.style(index)
      axis.plot(steps, values, label=split, marker=marker, **style)
    axis.set(xlabel='steps', ylabel=quantity)
    axis.grid(alpha=0.3)
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
      split, slash, quantity = name.rpartition('/')
      is_mean = split == 'train' and quantity != 'learning_rate'
      if slash and value is not None:
        curve = curves.setdefault(quantity, {}).setdefault(split, [])
        curve.append((middle if is_mean else row['step'], value))
      if is_mean:
        before = row['step']
  return curves
