"""Removal of duplicate trials, which differ only in settings that are not used.

A sweep over encoders and positions trains an encoder without positions once.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from experiments.settings import registry
from experiments.settings.settings import Settings
from experiments.sweeps.plan import Spec
from experiments.workdir import workdir as workdir_lib
from selfattn.classifier import TextClassifier
from selfattn.contract import has_heads
from selfattn.encoders import ENCODERS
from selfattn.positions import POSITIONS

_PRETRAINING = 'pretrain.steps'


def used(settings: Settings) -> dict[str, Any]:
  """settings.flat() without settings that the model does not use."""
  model = settings.model
  chosen = ENCODERS[model.encoder.name]
  # An encoder uses the settings that are its fields (selfattn.contract); the
  # classifier uses others.
  unread = set().union(*map(registry.fields, ENCODERS.values()))
  unread -= registry.fields(chosen) | registry.fields(TextClassifier)
  if not has_heads(chosen):
    unread.add('attention_dropout_rate')
  ids_are_used = any(
    POSITIONS[name].uses_positions for name in model.position.blocks
  )
  if 'position' in unread or not ids_are_used:
    unread.add('position_sampling')
  flat = settings.flat()
  if not settings.pretrain.steps:
    unused = {k for k in flat if k.startswith('pretrain.')}
    flat = {k: v for k, v in flat.items() if k not in unused - {_PRETRAINING}}
  return {
    key: value
    for key, value in flat.items()
    if not (key.startswith('model.') and key.split('.')[1] in unread)
  }


def overrides(spec: Spec) -> dict[str, Any]:
  """Overrides of a trial, without settings that are not used."""
  keys = used(spec.settings)
  return {k: v for k, v in spec.overrides.items() if k in keys}


def distinct(specs: list[Spec]) -> list[Spec]:
  """One spec of each group of duplicates, with the others in `repeats`.

  The one that is done, or else one that has started, or else the first.
  """
  same: dict[str, list[Spec]] = {}
  for spec in specs:
    text = json.dumps(used(spec.settings), sort_keys=True)
    same.setdefault(text, []).append(spec)
  found = []
  for alike in same.values():
    kept = max(alike, key=_progress)
    repeats = tuple(spec.index for spec in alike if spec is not kept)
    found.append(dataclasses.replace(kept, repeats=repeats))
  return sorted(found, key=lambda spec: spec.index)


def _progress(spec: Spec) -> tuple[bool, bool]:
  status = workdir_lib.read_status(spec.path).get('status')
  return status == 'DONE', status is not None


def warning(specs: list[Spec]) -> str | None:
  """A message that lists the duplicate trials, or None."""
  repeated = [spec for spec in specs if spec.repeats]
  if not repeated:
    return None
  unread = {
    f'config.{key}': None
    for spec in repeated
    for key in spec.overrides.keys() - overrides(spec).keys()
  }
  count = sum(len(spec.repeats) for spec in repeated)
  listed = [
    f'{", ".join(map(str, spec.repeats))} of {spec.index}' for spec in repeated
  ]
  return (
    f'WARNING: {count} of {count + len(specs)} trials are duplicates'
    + (f', since {", ".join(unread)} is not used by them' if unread else '')
    + f'; each is trained and listed once: {"; ".join(listed)}'
  )
