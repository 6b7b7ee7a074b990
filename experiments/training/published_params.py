"""Parameters of a published model, config.model.pretrained, for a new run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from experiments.command.errors import UserError
from experiments.command.log import Reporter
from experiments.data import loading, published
from experiments.settings import open_models
from experiments.settings.settings import Settings
from experiments.training import taken
from experiments.workdir.checkpoints import leaves
from selfattn import pretrained
from selfattn.pretrained import Model
from selfattn.pretrained.tensors import check as check_tensors
from selfattn.pretrained.tensors import (
  check_complete,
  check_constants,
  merged,
  read,
  unexpected,
)
from selfattn.pretrained.tensors import sources as parameter_sources

# Parameters with an output for each label, on the last axis.
_OUTPUTS = {
  f'{head}/{name}'
  for head in ('head', 'token_head_words/dense')
  for name in ('kernel', 'bias')
}


def check(settings: Settings, params) -> None:
  """UserError for parameters that config.model.pretrained does not fit.

  Args:
    params: nested shapes.
  """
  if name := settings.model.pretrained:
    with _of_folder(name):
      _fitting(settings.model, params)


def _fitting(model, params) -> tuple[Model, dict, dict]:
  """(choices, sources, tensors) of a published model that fits parameters.

  ValueError for a tensor of a wrong shape or type, and for one of the layers
  that would not be used.
  """
  folder = published.folder(model.pretrained)
  chosen = pretrained.read_model(folder)
  tensors = merged(chosen, pretrained.read_tensors(folder))
  theirs = {name for of_layer in chosen.position for name in of_layer}
  if theirs != {call.name for of_layer in model.position for call in of_layer}:
    # The parameters of another method may have the same names.
    rows = {p: r for p, r in chosen.rows.items() if '/position' not in p}
    chosen = dataclasses.replace(chosen, rows=rows)
  sources = parameter_sources(chosen, params, tensors)
  for path in _OUTPUTS & sources.keys():
    # An output for each label, of which there may be another number.
    (name,) = sources[path].names
    outputs = tensors[name].shape[:1] if name in tensors else None
    if outputs != leaves(params)[path].shape[-1:]:
      del sources[path]
  changed = open_models.changed(model, chosen)
  try:
    check_tensors(sources, params, tensors)
    check_constants(chosen, tensors)
  except ValueError as error:
    raise ValueError(
      f'{error}; given: {changed}' if changed else error
    ) from None
  usual = pretrained.abstract_params(pretrained.module(chosen, head='none'))
  layers = parameter_sources(chosen, usual, tensors)
  check_complete(layers, tensors)
  left = [
    path
    for path, source in layers.items()
    if path.startswith('encoder/block_')
    and '/position/' not in path
    and path not in sources
    and source.names[0] in tensors
  ]
  if left:
    raise ValueError(
      f'{layers[left[0]].names[0]} and {len(left) - 1} more weights of layers '
      f'would not be used, with {changed}; leave such a key out'
    )
  return chosen, sources, tensors


def of_published(params, model, workdir: str):
  """Parameters, with those of a published model; logs which are loaded."""
  with _of_folder(model.pretrained):
    chosen, sources, tensors = _fitting(model, params)
    theirs = pretrained.read_labels(published.folder(model.pretrained))
  order = _order(loading.read_facts(workdir)['labels'], theirs)
  if order is None:
    for path in _OUTPUTS & sources.keys():
      del sources[path]
  put = taken.placed_as(leaves(params))

  with Reporter(
    'loaded {} parameters', len(sources), has_lines=False
  ) as report:

    def place(path, array):
      report.add(1)
      return put(path, array[..., order] if path in _OUTPUTS else array)

    values = dict(read(sources, params, tensors, place))
  skipped = [
    *(f'{p} (not in that model)' for p in leaves(params) if p not in values),
    *(f'{n} (not in this model)' for n in unexpected(chosen, sources, tensors)),
  ]
  taken.say(model.pretrained, list(values), skipped)
  return taken.replaced(params, values)


def _order(ours: list[str], theirs: list[str]) -> list[int] | None:
  """Indices of our labels among those of a classifier; None: it has others.

  Names that no one has chosen, LABEL_0 and so on, are ours in our order.
  """
  if all(name == f'LABEL_{index}' for index, name in enumerate(theirs)):
    return list(range(len(ours)))
  if sorted(ours) != sorted(theirs):
    return None
  return [theirs.index(name) for name in ours]


@contextlib.contextmanager
def _of_folder(name: str) -> Iterator[None]:
  """Turns what a published model raises into a UserError."""
  try:
    yield
  except ValueError as error:
    raise UserError(f'config.model.pretrained = {name!r}: {error}') from None
