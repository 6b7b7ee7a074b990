"""Hyperparameters stand in one list, from which the rest is derived."""

import dataclasses

import numpy as np
import pytest
from conftest import make_small_config

from experiments.learning.hparams import HParams
from experiments.learning.parameter_groups import GROUPS, ParameterGroup
from experiments.settings.settings import from_config
from experiments.training import compiled

FIELDS = {f.name: f.metadata for f in dataclasses.fields(HParams) if f.metadata}


def settings_of(**changes):
  config = make_small_config()
  config.update_from_flattened_dict(changes)
  return from_config(config)


@pytest.mark.parametrize('name', FIELDS)
def test_a_swept_number_changes_no_program_and_a_removed_one_does(name):
  key, before = FIELDS[name]['path'], settings_of()
  other = 5 if name == 'key' else 0.25
  if name == 'warmup_steps':
    other = 7
  after = settings_of(**{key: other})
  same = compiled.key(before) == compiled.key(after)
  had = not FIELDS[name]['removable'] or before.flat()[key] > 0
  assert same == had
  assert getattr(HParams.of(after), name) is not None


def test_scales_of_groups_are_hyperparameters_by_name():
  texts = [
    'embeddings(learning_rate_scale=0.5)+matrices',
    'embeddings+matrices',
  ]
  one, two = (settings_of(**{'optimizer.groups': text}) for text in texts)
  assert compiled.key(one) == compiled.key(two)
  scales = HParams.of(one).learning_rate_scales
  assert scales == {'embeddings': np.float32(0.5), 'matrices': np.float32(1)}
  other = settings_of(**{'optimizer.groups': 'matrices'})
  assert compiled.key(other) != compiled.key(one)


def test_what_else_a_group_has_is_of_the_program(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Ending(ParameterGroup):
    ending: str = 'bias'

    def holds(self, path, shape):
      return path[-1] == self.ending

  monkeypatch.setitem(GROUPS, 'ending', Ending)
  keys = {
    compiled.key(settings_of(**{'optimizer.groups': f'ending(ending={name})'}))
    for name in ('bias', 'kernel')
  }
  assert len(keys) == 2


def test_two_texts_of_one_optimizer_are_one_run():
  texts = ('muon', 'muon()', "'muon( beta = 0.950 )'")
  digests = {
    settings_of(**{'optimizer.groups': f'matrices(optimizer={text})'}).digest()
    for text in texts
  }
  assert len(digests) == 1
