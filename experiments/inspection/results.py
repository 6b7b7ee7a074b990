"""The results of runs on a split, and the texts behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.data import encoding, loading
from experiments.data.rows import Row, parted
from experiments.inspection import charts, pages
from experiments.inspection.charts import Point
from experiments.inspection.pages import Html, Shaded
from experiments.learning import reports
from experiments.learning.reports import Report
from experiments.learning.text_tasks import TextTask, text_of
from experiments.training.ensembles import Answers

# Texts with the greatest loss that are shown.
_WORST = 20
# Texts that are shown of all cells of a matrix, and of one.
_MOST_TEXTS, _MOST_OF_CELL = 2_000, 10
# Characters of a text that are shown.
_LONGEST = 1_000
# Statistics of heads that are from 0 to 1.
_SHARES = ('entropy', 'self', 'previous', 'next', 'first', 'separators')
_OF_HEADS = (
  'entropy: of the weights (1: uniform); distance: from query to key, in '
  'tokens; self, previous, next, first, separators: weight on these tokens; '
  'importance: how steeply the loss changes with the output of the head '
  '(Michel et al. 2019); without: the score if this head is ablated.'
)
# Characters of headings of a matrix, above which they stand on end.
_WIDE = 20


def sections(
  answers: Answers,
  loaded: loading.Data,
  split: str,
  names: Sequence[str],
  max_length: int,
) -> tuple[list[str], list[tuple[int, str, str]]]:
  """(sections on a split, the texts with the greatest loss).

  The latter are (index, text, what is true and predicted). A task that predicts
  tokens has no such texts.

  Args:
    names: of the runs of the answers.
    max_length: to which texts are truncated.
  """
  examples, task = loaded.splits[split], answers.task
  measured = loaded.scores(split, task, answers.outputs)
  notes, is_truncated = task.reasons(measured), loaded.is_truncated.get(split)
  if is_truncated is not None and is_truncated.any():
    notes.append(encoding.truncated(is_truncated, max_length, 'texts'))
  title, note = f'Results on {split}', ''.join(map(pages.paragraph, notes))
  if not isinstance(task, TextTask):
    table = pages.table(list(measured), [reports.shown(measured.values())])
    return [pages.section(title, table + note)], []
  assert is_truncated is not None, 'texts are no stream'
  texts = _Texts(answers, task, loaded, split)
  worst = texts.hardest(np.arange(len(examples)))[:_WORST]
  report = task.report(answers.outputs, answers.raw, examples)
  parts = [
    pages.section(title, _tables(report, texts, note)),
    pages.section('Texts with the greatest loss', texts.table(worst)),
  ]
  if len(names) > 1:
    parts.insert(0, pages.section('Runs compared', _compared(texts, names)))
  of_worst = []
  for index in worst.tolist():
    true, predicted, _ = texts.answer(index)
    answer = f'true: {true}, predicted: {predicted}'
    note = noted(answer, bool(is_truncated[index]), max_length)
    of_worst.append((index, shown(loaded.row(split, index)), note))
  return parts, of_worst


def shown(row: Row) -> str:
  """The text of a row, for people: a pair on two lines, a long one cut."""
  text = '\n'.join(filter(None, parted(str(row.text))))
  return text if len(text) <= _LONGEST else f'{text[:_LONGEST]} ...'


def noted(answer: str, is_truncated: bool, max_length: int) -> str:
  """The answer to a text, or '', and whether only its first tokens are read."""
  cut = f'truncated to {max_length} tokens' if is_truncated else ''
  return '; '.join(filter(None, [answer, cut]))


def said(answer, probabilities: Mapping[str, float] | None) -> str:
  """The answer to a text, with its probability where it is one label."""
  if isinstance(answer, str) and probabilities:
    return f'{answer} ({probabilities[answer]:.3f})'
  return text_of(answer)


@dataclasses.dataclass(frozen=True)
class _Texts:
  """The texts of a split, with their answers."""

  answers: Answers
  task: TextTask
  loaded: loading.Data
  split: str

  @property
  def labels(self) -> np.ndarray:
    return self.loaded.splits[self.split].labels

  def hardest(self, chosen: np.ndarray) -> np.ndarray:
    """Indices in the order of their loss, the greatest first."""
    losses = self.answers.outputs[0]
    return chosen[np.argsort(-losses[chosen], kind='stable')]

  def answer(self, index: int) -> tuple[str, str, bool]:
    """(what is true, what is predicted, whether that is a wrong label)."""
    task, (_, logits, *_) = self.task, self.answers.outputs
    truth = task.truth(self.labels[index])
    predicted, probabilities = task.answer(logits[index])
    is_wrong = task.has_probabilities and predicted != truth
    return text_of(truth), said(predicted, probabilities), is_wrong

  def read(self, index: int) -> str:
    """How many tokens are read, and whether these are not all."""
    count = int(self.loaded.splits[self.split].lengths[index])
    is_truncated = self.loaded.is_truncated[self.split][index]
    return f'{count}, truncated' if is_truncated else str(count)

  def table(self, chosen: np.ndarray) -> str:
    """Texts as they stand in their files; HTML."""
    rows, wrong = [], []
    for number, index in enumerate(chosen.tolist()):
      true, predicted, is_wrong = self.answer(index)
      if is_wrong:
        wrong.append(number)
      source = self.loaded.row(self.split, index)
      origin = f'{source.file}, row {source.number}'
      loss = float(self.answers.outputs[0][index])
      text, read = shown(source), self.read(index)
      rows.append([loss, true, predicted, text, read, origin])
    note = '<p>Misclassified texts are highlighted.</p>' if wrong else ''
    if self.task.has_probabilities:
      note += pages.paragraph('The loss is that before calibration.')
    header = ['loss', 'true', 'predicted', 'text', 'tokens', 'file']
    return note + pages.table(header, rows, wrong)

  def matrix(
    self, name: str, caption: str, names: Sequence[str], true, predicted
  ) -> str:
    """Counts of pairs of indices of names, each with its texts; HTML.

    Args:
      name: of the matrix, in links.
      caption: what rows and columns are.
      true, predicted: of each text.
    """
    count = len(names)
    cells = true * count + predicted
    counts = np.bincount(cells, minlength=count**2).reshape(count, count)
    room = _MOST_TEXTS // max(np.count_nonzero(counts), 1)
    most = max(1, min(_MOST_OF_CELL, room))
    rows, lists = [], []
    for row, column in np.ndindex(count, count):
      if not column:
        rows.append([names[row]])
      number = int(counts[row, column])
      key = f'{name}-{row}-{column}'
      value = Html(f'<a href="#{key}">{number}</a>') if number else 0
      rows[-1].append(Shaded(value, number / max(counts[row].sum(), 1)))
      if number:
        chosen = self.hardest(np.flatnonzero(cells == row * count + column))
        title = (
          f'row {names[row]}, column {names[column]}: {number} texts, the '
          'greatest loss first'
        )
        lists.append(
          f'<div class="texts" id="{key}"><h3>{pages.escape(title)}</h3>'
          f'{self.table(chosen[:most])}</div>'
        )
    kind = 'upright matrix' if len(''.join(names)) > _WIDE else 'matrix'
    said = f'{caption}. A click on a count shows its texts.'
    table = pages.table(['', *names], rows, caption=said, kind=kind)
    return f'<div>{table}{"".join(lists)}</div>'


def _tables(report: Report, texts: _Texts, note: str) -> str:
  """Tables of a report, with a note below the scores; HTML."""
  summary, *others = [pages.table(*table) for table in report.tables]
  if report.confusion is not None:
    names = texts.task.facts.names
    predicted = texts.answers.outputs[1].argmax(axis=-1)
    caption = 'row: true class, column: predicted'
    others.insert(
      0, texts.matrix('classes', caption, names, texts.labels, predicted)
    )
  if report.reliability:
    others.append(_reliability(report.reliability))
  return summary + note + pages.beside(others)


def _reliability(parts: dict[str, list[dict[str, float]]]) -> str:
  """Accuracy against confidence, where honest ones are the diagonal; HTML."""
  curves = {
    name: [
      Point(row['confidence'], row['accuracy'], note=f'({row["count"]} texts)')
      for row in rows
    ]
    for name, rows in parts.items()
  }
  return charts.lines(
    {f'{name} calibration': curve for name, curve in curves.items()},
    'probability',
    'share that is right',
    over=[Point(0, 0), Point(1, 1)],
  )


def _compared(texts: _Texts, names: Sequence[str]) -> str:
  """Metrics of each run and of all; of two, which texts each has right."""
  answers, labels, task = texts.answers, texts.labels, texts.task
  of_all = dict(zip(names, answers.of_runs, strict=True))
  of_all['ensemble'] = answers.outputs
  fitted = [task.fitted([fit]) for fit in answers.fits] + [task]
  scores = {
    name: of_run.scores(outputs, labels)
    for of_run, (name, outputs) in zip(fitted, of_all.items(), strict=True)
  }
  header = list(scores['ensemble'])
  rows = [
    [name, *reports.shown(measured.values())]
    for name, measured in scores.items()
  ]
  table = pages.table(['run', *header], rows)
  if len(names) != 2 or labels.dtype.kind != 'i' or labels.ndim > 1:
    return table
  first, second = (
    (logits.argmax(axis=-1) != labels).astype(int)
    for _, logits, *_ in answers.of_runs
  )
  caption = f'row: {names[0]}, column: {names[1]}'
  return table + texts.matrix(
    'runs', caption, ['right', 'wrong'], first, second
  )


def heads(rows: Sequence[Mapping], ablated: Mapping | None) -> str:
  """Statistics of heads, and a metric as they are ablated; HTML.

  Args:
    rows: of head_analysis.statistics_rows, and of ablation.ablate.
    ablated: returned by the latter; None: heads were not ablated.
  """
  shaded = [
    [Shaded(v, v or 0) if k in _SHARES else v for k, v in row.items()]
    for row in rows
  ]
  shown = [pages.table(list(rows[0]), shaded, caption=_OF_HEADS)]
  if ablated:
    curves = {
      f'{order} important first': [
        Point(*point)
        for point in enumerate(ablated[f'{order}_important_first'])
      ]
      for order in ('least', 'most')
    }
    name, count = ablated['metric'], ablated['examples']
    ylabel = f'{name} on {count} texts'
    with_all = ablated['least_important_first'][0]
    said = f'With all heads, {name} on these {count} texts is {with_all:.4f}.'
    shown.insert(0, pages.paragraph(said))
    shown.append(charts.lines(curves, 'heads ablated', ylabel))
  return pages.beside(shown)
