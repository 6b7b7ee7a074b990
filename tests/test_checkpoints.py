"""Which checkpoints stay, which is the best, and which are refused."""

import dataclasses

import jax.numpy as jnp
import pytest

from experiments import checkpoints
from experiments.choices import UserError
from experiments.settings import CheckpointSettings
from experiments.steps import State

SETTINGS = CheckpointSettings(every_steps=1, keep=2, best_metric='accuracy')


def state(step):
  params = {'layer': {'kernel': jnp.full((2, 3), step, jnp.float32)}}
  return State(
    step=jnp.asarray(step, jnp.int32), params=params, optimizer=(params, ())
  )


def save_all(path, settings, scores):
  """Saves steps 1, 2, ... with these scores; returns the open manager."""
  manager = checkpoints.open_manager(path, settings)
  for step, score in enumerate(scores, 1):
    metrics = None if score is None else {settings.best_metric: score}
    checkpoints.save(manager, state(step), metrics)
  manager.wait_until_finished()
  return manager


@pytest.mark.parametrize(
  ('metric', 'scores', 'best', 'kept'),
  [
    ('accuracy', [0.1, 0.9, None, 0.3, None], 2, [2, 4, 5]),
    ('loss', [0.1, 0.9, None, 0.3, None], 1, [1, 4, 5]),
    ('accuracy', [0.5, 0.9, 0.9, 0.1, 0.2], 3, [3, 4, 5]),
    ('loss', [0.5, 0.2, 0.2, 0.4, 0.3], 3, [3, 4, 5]),
    ('macro_f1', [None, None, None], None, [2, 3]),
  ],
)
def test_the_newest_and_the_best_stay(tmp_path, metric, scores, best, kept):
  settings = dataclasses.replace(SETTINGS, best_metric=metric)
  manager = save_all(tmp_path, settings, scores)
  assert sorted(manager.all_steps()) == kept
  assert checkpoints.best_step(manager, settings) == best
  manager.close()
  manager = checkpoints.open_manager(tmp_path, settings)
  assert sorted(manager.all_steps()) == kept
  assert checkpoints.best_step(manager, settings) == best
  manager.close()


def test_a_saved_state_is_a_copy(tmp_path):
  """The next update may overwrite the buffers while the save goes on."""
  manager = checkpoints.open_manager(tmp_path, SETTINGS)
  one = state(1)
  checkpoints.save(manager, one)
  one.params['layer']['kernel'].delete()
  manager.wait_until_finished()
  found = checkpoints.restore(manager, 1, state(0))
  assert (found.params['layer']['kernel'] == 1).all()
  manager.close()


def test_missing_extra_and_reshaped_leaves_are_named(tmp_path):
  manager = save_all(tmp_path, SETTINGS, [None])
  other = state(0)
  params = {'layer': {'kernel': jnp.zeros((3, 2)), 'bias': jnp.zeros(3)}}
  with pytest.raises(UserError) as error:
    checkpoints.restore(manager, 1, other.replace(params=params, optimizer=()))
  for part in (
    'params/layer/bias is missing',
    'optimizer/0/layer/kernel is extra',
    'params/layer/kernel is float32[2, 3], not float32[3, 2]',
    'in 3 places',
  ):
    assert part in str(error.value)
  manager.close()
