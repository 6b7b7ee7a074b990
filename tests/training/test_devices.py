"""One batch gives one update, on any number of devices, however it is cut."""

import json

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import re
import sys

import jax
import numpy as np

from experiments.data import loading
from experiments.training import compiled
from experiments.data.batches import TrainBatches
from experiments.workdir.checkpoints import Checkpoints
from experiments.settings.settings import from_config
from tests.conftest import make_small_config

NUM_STEPS = 4
DEVICES = jax.devices()


def make_settings(
  seed=0, fsdp_min_size=0, has_groups=False, shuffle_by_seed=False
):
  config = make_small_config()
  config.model.attention_dropout_rate = 0.1
  config.model.word_dropout_rate = 0.1
  config.model.embed_dim = 16
  config.model.mlp_dim = 24
  config.train.batch_size = 12  # which eight devices do not divide
  config.train.fsdp_min_size = fsdp_min_size
  config.seed = seed
  config.train.shuffle_by_seed = shuffle_by_seed
  if has_groups:
    config.optimizer.groups = (
      'matrices(optimizer=muon)+embeddings(optimizer=adam)'
    )
    config.train.ema_decay = 0.9
  return from_config(config)


LOADED = loading.load(make_settings().data, '')


def run(program, settings, step=None):
  orders = [
    TrainBatches(
      LOADED.splits['train'],
      12,
      0,
      LOADED.bucket_lengths,
      program.share,
      each.seed if each.train.shuffle_by_seed else None,
    )
    for each in settings
  ]

  def batch_of(step):
    return program.put_train([batches(step) for batches in orders])

  batch = batch_of(0)
  hparams = program.hparams(settings)
  state = program.init(hparams)
  step = step or program.train_step.lower(state, batch, hparams).compile()
  losses = []
  for index in range(NUM_STEPS):
    state, metrics = step(state, batch_of(index), hparams)
    losses.append(np.asarray(metrics['loss']).tolist())
  kinds = r' (all-reduce|all-gather|all-to-all|collective-permute)[-a-z]*\\('
  return {
    'losses': losses,
    'sent': sorted(set(re.findall(kinds, step.as_text()))),
    'cut': sum(
      x.addressable_shards[0].data.size < x.size for x in jax.tree.leaves(state)
    ),
    'state': state,
    'step': step,
  }


def make(settings, count, num_trials=None):
  return compiled.make(
    settings, LOADED.vocabulary, LOADED.label_facts, num_trials, DEVICES[:count]
  )


found, made = {}, {}
for name, count, fsdp_min_size in (
  ('whole 1', 1, 0), ('whole 8', 8, 0),
  ('groups 1', 1, 0), ('groups cut 8', 8, 20),
):
  settings = make_settings(0, fsdp_min_size, 'groups' in name)
  made[name] = make(settings, count)
  found[name] = run(made[name], [settings])

of_one, of_eight = (
  jax.device_get(found[name]['state'].average)
  for name in ('groups 1', 'groups cut 8')
)
jax.tree.map(
  # Not the bias of keys: its gradient is rounding, of which Adam makes steps.
  lambda a, b: a.ndim == 1
  or np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
  of_one,
  of_eight,
)
folder = Checkpoints(sys.argv[1], settings.checkpoint, 'run')
folder.save(found['groups cut 8']['state'])
folder.wait()
for count in (1, 2, 4):
  restored = folder.restore(NUM_STEPS, make(settings, count).template)
  jax.tree.map(
    np.testing.assert_array_equal, restored, found['groups cut 8']['state']
  )
  for leaf in jax.tree.leaves(restored):
    assert len(leaf.sharding.device_set) == count
folder.close()

seeds = [make_settings(seed) for seed in range(3)]
for seed in (1, 2):
  found[f'seed {seed}'] = run(
    made['whole 1'], [seeds[seed]], found['whole 1']['step']
  )
group = make(seeds[0], 8, 3)
found['group'] = run(group, seeds)
found['group'] |= {'mesh': dict(group.mesh.shape), 'size': group.size}
ordered = [make_settings(seed, shuffle_by_seed=True) for seed in range(3)]
for seed in range(3):
  found[f'order {seed}'] = run(
    made['whole 1'], [ordered[seed]], found['whole 1']['step']
  )
found['group of orders'] = run(make(ordered[0], 8, 3), ordered)
for each in found.values():
  del each['state'], each['step']
print(json.dumps(found))
"""


@pytest.fixture(scope='module')
def found(eight_devices, tmp_path_factory):
  """Losses of a few updates, and what their programs send, by name."""
  return json.loads(eight_devices(SCRIPT, tmp_path_factory.mktemp('saved')))


def assert_equals_alone(found, group, trial, name):
  assert [losses[trial] for losses in found[group]['losses']] == [
    pytest.approx(loss, rel=1e-5) for loss in found[name]['losses']
  ]


@pytest.mark.parametrize('name', ['whole 8', 'groups cut 8'])
def test_eight_devices_have_the_losses_of_one(found, name):
  of_one = found[f'{name.split()[0]} 1']['losses']
  assert found[name]['losses'] == [
    pytest.approx(loss, rel=1e-5) for loss in of_one
  ]
  assert (found[name]['cut'] > 10) == ('cut' in name)


def test_a_group_fills_what_its_trials_leave(found):
  """Three trials on eight devices: two at a time, each on four."""
  assert found['group']['mesh'] == {'trial': 2, 'data': 4}
  assert found['group']['size'] == 4
  for trial, name in enumerate(('whole 1', 'seed 1', 'seed 2')):
    assert_equals_alone(found, 'group', trial, name)


def test_trials_with_orders_of_their_own_share_the_devices(found):
  for trial in range(3):
    assert_equals_alone(found, 'group of orders', trial, f'order {trial}')
  assert found['group of orders']['sent'] == found['group']['sent']
  assert found['order 1']['losses'] != found['seed 1']['losses']


def test_devices_send_sums_and_what_is_cut_and_nothing_else(found):
  assert found['whole 1']['sent'] == []
  assert found['whole 8']['sent'] == ['all-reduce']
  assert found['groups cut 8']['sent'] == ['all-gather', 'all-reduce']
