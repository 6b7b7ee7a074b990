"""The page of a run, and its figures."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from tokenizers import Tokenizer

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding, loading
from experiments.data.batches import Examples
from experiments.inspection import (
  ablation,
  curves,
  figures,
  head_analysis,
  origin,
  pages,
  position_figures,
  results,
)
from experiments.inspection.figures import Figures
from experiments.inspection.head_analysis import AttentionMaps
from experiments.learning.text_tasks import TextTask
from experiments.training import ensembles, evaluation
from experiments.training.prediction import Predictor
from experiments.workdir import buckets
from experiments.workdir.metrics import read_rows
from selfattn.contract import has_heads

# Limit of the size of all attention maps on a page, in bytes of text.
_MOST_BYTES = 8_000_000


@dataclasses.dataclass(frozen=True)
class _Model:
  """A trained model, and what it takes to look into it.

  Attributes:
    run: as it was restored.
    params: on one device: enough, even if the run was sharded.
    tokenizer: of the run.
    names: of its token ids.
  """

  run: evaluation.Evaluated
  params: Mapping
  tokenizer: Tokenizer
  names: list[str]

  @property
  def classifier(self) -> Any:
    return self.run.program.classifier

  @property
  def has_heads(self) -> bool:
    return has_heads(self.classifier.encoder)

  def said(self, texts: Any) -> list[str]:
    """The prediction of each text or pair; '' if the task has none."""
    if not isinstance(self.run.program.task, TextTask):
      return [''] * len(texts)
    batch_size = self.run.settings.train.eval_batch_size
    predict = Predictor([self.run], self.tokenizer, batch_size)
    return [
      f'predicted: {results.said(one.label, one.probabilities)}'
      for one in predict(texts)
    ]

  def attention(self, examples: Examples) -> Iterator[AttentionMaps]:
    """The attention on each of the examples, none of which is empty."""
    return head_analysis.attention_maps(
      self.classifier, self.params, examples, self.names
    )


def write(values, paths: list[str], output: str) -> dict:
  """Writes the page and the figures of a run, or of an ensemble of runs.

  Results and the texts with the greatest loss are of the ensemble, all else is
  of the first run.

  Args:
    values: flags of experiments.inspect.
    paths: folders of the runs, which ensembles.check has passed.
    output: folder for the files.

  Returns:
    the statistics of heads, accuracies as they are ablated, and the files.

  Raises:
    UserError: there is no such checkpoint, no data in --data_dir, or the model
      has no heads that attend to --text.
  """
  path, called = paths[0], origin.names_of(paths)
  runs = ensembles.restored(paths, values.checkpoint, values.calibrated)
  run = next(runs)
  settings = run.settings
  params = jax.device_put(run.params, jax.local_devices()[0])
  tokenizer = encoding.read_tokenizer(path)
  model = _Model(run, params, tokenizer, head_analysis.names(tokenizer))
  drawn = Figures(output)
  attended = _attended(model, values.text)
  for number, (_, _, maps) in enumerate(attended):
    _draw_text(drawn, number, maps, model.classifier.encoder.causal)
  rows = {
    name: read_rows(f'{of_run}/metrics.jsonl')
    for name, of_run in zip(called, paths, strict=True)
  }
  sections = [
    pages.section('Run', origin.of_run(paths, run.step)),
    pages.section('Curves', curves.write(rows)),
  ]
  result = {'step': run.step, 'heads': None, 'ablation': None}
  loaded = _data(values, settings, path)
  if isinstance(loaded, str):
    sections.append(pages.section('Results', pages.paragraph(loaded)))
  else:
    every_run = itertools.chain([run], runs)
    numbers, shown = _of_split(
      values, drawn, model, every_run, called, loaded, attended
    )
    result |= numbers
    sections += shown
  if attended:
    sections.append(pages.section('Attention', pages.attention(attended)))
  sections += _positions(drawn, model, values.length, loaded)
  sections.append(pages.section('Config', pages.config(settings.flat())))
  files = drawn.write()
  title = os.path.basename(os.path.abspath(buckets.origin(path)))
  if others := len(paths) - 1:
    title += f' and {others} more'
  pages.write(os.path.join(output, pages.NAME), title, sections)
  return result | {'files': [*files, pages.NAME]}


def _of_split(
  values,
  drawn: Figures,
  model: _Model,
  runs,
  called: list[str],
  loaded: loading.Data,
  attended,
) -> tuple[dict, list[str]]:
  """(numbers, sections) on --split; draws heads.

  Args:
    runs: all runs of the ensemble, whose names are `called`.
    attended: texts and their attention, to which those with the greatest loss
      are added.
  """
  examples, settings = loaded.splits[values.split], model.run.settings
  batch_size, most = settings.train.eval_batch_size, settings.data.max_length
  lengths = loaded.bucket_lengths
  answers = ensembles.evaluate(runs, examples, batch_size, lengths)
  numbers: dict[str, Any] = dict(ensembles.steps(answers.steps))
  sections, worst = results.sections(
    answers, loaded, values.split, called, most
  )
  attended += _worst_attended(model, examples, worst, attended)
  if model.has_heads:
    some = _some(examples.apart(), values.num_examples)
    numbers |= _heads(model, some, lengths)
    shown = results.heads(numbers['heads'], numbers['ablation'])
    sections.append(pages.section(f'Heads on {values.split}', shown))
  return numbers, sections


def _attended(
  model: _Model, texts: list[str]
) -> list[tuple[str, str, AttentionMaps]]:
  """(text, prediction, attention) of each of --text."""
  if not texts:
    return []
  most = model.run.settings.data.max_length
  reader = model.run.settings.data.further()
  pairs_or_texts = [reader.text_of([text]) for text in texts]
  examples, is_truncated = encoding.encode(
    model.tokenizer, pairs_or_texts, most
  )
  encoding.log_truncated(is_truncated, most, 'texts')
  head_analysis.require_tokens(texts, examples)
  said, maps = model.said(pairs_or_texts), model.attention(examples)
  notes = [
    results.noted(answer, is_cut, most)
    for answer, is_cut in zip(said, is_truncated, strict=True)
  ]
  return [*zip(texts, notes, maps, strict=True)]


def _draw_text(
  drawn: Figures, number: int, maps: AttentionMaps, is_causal: bool
) -> None:
  """Adds the figures of a text of --text."""
  name = f'attention-{number}'
  figures.attention(drawn, name, maps)
  figures.rollout(drawn, f'{name}-rollout', maps)
  for (part, layer), P in maps.terms.items():
    suffix = position_figures.file_suffix(part, layer)
    of_term = f'position-{number}{suffix}'
    figures.term(drawn, of_term, P, maps.tokens, is_causal)
  if maps.pool_weights is not None:
    figures.pooling(drawn, f'pooling-{number}', maps.pool_weights, maps.tokens)


def _data(values, settings, path: str) -> loading.Data | str:
  """The data of the run, or why there is none.

  Raises:
    UserError: there is none in --data_dir.
  """
  try:
    return evaluation.load_data(settings, path, values.data_dir)
  except UserError as error:
    if values.data_dir is not None:
      raise
    log(f'WARNING: nothing on {values.split} is shown: {error}')
    return str(error)


def _worst_attended(
  model: _Model, examples: Examples, worst: list[tuple[int, str, str]], before
) -> Iterator[tuple[str, str, AttentionMaps]]:
  """(text, note, attention) of the worst texts that are not empty.

  Args:
    worst: as of results.sections; the page has room for some of them.
    before: the result for other texts on the page.
  """
  if not model.has_heads:
    return
  size = sum(_size(maps) for *_, maps in before)
  worst = [one for one in worst if examples.lengths[one[0]]]
  chosen = examples.take(np.array([index for index, *_ in worst], int))
  of_texts = model.attention(chosen)
  for (_, text, note), maps in zip(worst, of_texts, strict=True):
    size += _size(maps)
    if size > _MOST_BYTES:
      return
    yield text, note, maps


def _size(maps: AttentionMaps) -> int:
  """Bytes of text: two of a weight, in base64."""
  return maps.weights.size * 8 // 3


def _some(examples: Examples, most: int) -> Examples:
  """At most so many of the examples, the same ones each time."""
  chosen = np.random.default_rng(0).permutation(len(examples))[:most]
  return examples.take(np.sort(chosen))


def _heads(model: _Model, examples: Examples, lengths) -> dict:
  """Statistics and ablation of heads."""
  classifier, params = model.classifier, model.params
  task = model.run.program.task
  rows = head_analysis.statistics_rows(
    head_analysis.statistics(
      classifier, params, examples, lengths, model.names, task
    )
  )
  ablated = None
  reason = ablation.unsupported_reason(classifier, params, task)
  if reason is None:
    of_heads, ablated = ablation.ablate(
      classifier, params, examples, lengths, task
    )
    rows = [row | more for row, more in zip(rows, of_heads, strict=True)]
  else:
    log(f'WARNING: heads are not ablated: {reason}')
  return {'heads': rows, 'ablation': ablated}


def _positions(
  drawn: Figures, model: _Model, length: int, loaded: loading.Data | str
) -> list[str]:
  """The section on the position method, if the encoder has heads and one."""
  if not model.has_heads:
    return []
  settings, before = model.run.settings, set(drawn.pngs)
  length = position_figures.num_positions(length, settings, model.classifier)
  most, trained = settings.data.max_length, None
  if not isinstance(loaded, str):
    longest = int(loaded.splits['train'].lengths.max())
    longest = min(longest, most)
    sampling = settings.model.position_sampling.make()
    trained = sampling.max_length(longest + model.classifier.has_cls)
  position_figures.draw(
    drawn, model.classifier, model.params, length, most, trained
  )
  names = [name for name in drawn.pngs if name not in before]
  if not names:
    return []
  pictures = [pages.picture(drawn.pngs[name], name) for name in names]
  return [pages.section('Positions', pages.figures(pictures, pages.COLUMN))]
