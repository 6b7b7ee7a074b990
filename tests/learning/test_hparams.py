"""Hyperparameters stand in one list, from which the rest is derived."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from conftest import make_small_config

from experiments.learning.hparams import HParams, from_key
from experiments.settings.settings import from_config
from experiments.training import build, compiled

FIELDS = {field.name: field.metadata for field in dataclasses.fields(HParams)}


def _one_key(name):
  """Of a field, or one of those that its key stands for."""
  return FIELDS[name]['key'].replace('*', 'embeddings')


def settings_of(**changes):
  config = make_small_config()
  config.update_from_flattened_dict(changes)
  return from_config(config)


@pytest.mark.parametrize('name', FIELDS)
def test_every_hyperparameter_has_a_key_of_the_config(name):
  assert _one_key(name) in settings_of().flat()


@pytest.mark.parametrize('name', FIELDS)
def test_a_swept_number_changes_no_program_and_a_removed_one_does(name):
  key, before = _one_key(name), settings_of()
  other = 5 if name == 'key' else 0.25
  if name == 'warmup_steps':
    other = 7
  after = settings_of(**{key: other})
  same = compiled.key(before) == compiled.key(after)
  had = not FIELDS[name].get('removable') or before.flat()[key] > 0
  assert same == had
  assert getattr(build.hparams(after), name) is not None


def test_a_field_is_added_in_one_place():
  @chex.dataclass(frozen=True, mappable_dataclass=False)
  class More(HParams):
    clip_norm: chex.Numeric = from_key('optimizer.clip_norm')

  found = More.of(settings_of(**{'optimizer.clip_norm': 0.75}).flat())
  assert found.clip_norm == np.float32(0.75)
  assert len(jax.tree.leaves(found)) == 1 + len(
    jax.tree.leaves(HParams.of(settings_of().flat()))
  )
  programs = [
    More.program(settings_of(**{'optimizer.clip_norm': norm}).flat())
    for norm in (0.5, 0.75)
  ]
  assert programs[0] == programs[1]
