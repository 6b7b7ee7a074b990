"""Checkpoints: which are kept, the best one, corrupt and refused ones."""

import dataclasses
import json
import os
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.command import processes
from experiments.command.errors import Failed, UserError
from experiments.learning.steps import State
from experiments.workdir import checkpoints, recovery
from experiments.workdir.checkpoints import Checkpoints, Corrupt
from experiments.workdir.workdir import CheckpointSettings

SETTINGS = CheckpointSettings(
  every_steps=1, max_to_keep=2, best_metric='accuracy'
)
RUN = 'the run'


def state(step, width=3):
  params = {'layer': {'kernel': jnp.full((2, width), step, jnp.float32)}}
  return State(
    step=jnp.asarray(step, jnp.int32),
    params=params,
    optimizer=(params, ()),
    sums=jnp.full(5, step + 0.5),
  )


def chooser(settings):
  return min if settings.best_metric == 'loss' else max


def save_all(path, settings, scores):
  """Saves steps 1, 2, ... with these scores; returns the open folder."""
  folder = Checkpoints(str(path), settings, RUN, chooser(settings))
  for step, score in enumerate(scores, 1):
    if score is not None:
      folder.scores[step] = score
    folder.save(state(step))
  folder.wait()
  return folder


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
def test_the_newest_and_the_best_are_kept(tmp_path, metric, scores, best, kept):
  settings = dataclasses.replace(SETTINGS, best_metric=metric)
  folder = save_all(tmp_path, settings, scores)
  assert folder.steps() == kept
  assert folder.best() == best
  folder.close()
  lines = [
    {'step': step} | ({} if score is None else {f'validation/{metric}': score})
    for step, score in enumerate(scores, 1)
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (tmp_path / 'metrics.jsonl').write_text(text)
  with checkpoints.reading(
    str(tmp_path), settings, chooser(settings)
  ) as folder:
    assert folder.steps() == kept
    assert folder.best() == best


@pytest.mark.parametrize(
  ('scores', 'best'),
  [
    ({1: 0.2, 2: None, 3: None}, 1),
    ({1: None, 2: 0.2, 3: 0.1}, 2),
    ({1: None, 2: None}, 2),
    ({1: None, 2: -3.0}, 2),
  ],
)
def test_an_undefined_score_is_worse_than_any_other(tmp_path, scores, best):
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  folder.scores |= scores
  assert folder.best([1, 2, 3]) == best
  folder.close()


def test_a_saved_state_is_a_copy(tmp_path):
  """The next step may overwrite the buffers while the save continues."""
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  one = state(1)
  folder.save(one)
  one.params['layer']['kernel'].delete()
  folder.wait()
  restored = folder.restore(1, state(0))
  assert (restored.params['layer']['kernel'] == 1).all()
  folder.close()


def test_missing_extra_and_reshaped_leaves_are_named(tmp_path):
  folder = save_all(tmp_path, SETTINGS, [None])
  other = state(0)
  params = {'layer': {'kernel': jnp.zeros((3, 2)), 'bias': jnp.zeros(3)}}
  with pytest.raises(UserError) as error:
    folder.restore(1, other.replace(params=params, optimizer=()))
  for part in (
    'params/layer/bias is missing',
    'optimizer/0/layer/kernel is extra',
    'params/layer/kernel is float32[2, 3], not float32[3, 2]',
    'in 3 arrays',
  ):
    assert part in str(error.value)
  with pytest.raises(UserError, match=r'kernel is float32\[2, 3\], not .*2, 4'):
    folder.restore_params(1, state(0, width=4).params)
  folder.close()


def test_parameters_are_restored_without_the_rest(tmp_path, monkeypatch):
  read, seen = Checkpoints._read, []

  def spy(self, step, arrays):
    seen.extend(arrays)
    return read(self, step, arrays)

  monkeypatch.setattr(Checkpoints, '_read', spy)
  folder = save_all(tmp_path, SETTINGS, [None, None])
  for template in (None, state(0).params):
    ((name, kernel),) = folder.restore_params(2, template).items()
    assert name == 'layer/kernel'
    assert kernel.tolist() == [[2, 2, 2], [2, 2, 2]]
  assert seen == ['params/layer/kernel'] * 2
  folder.close()


def truncate(folder):
  for file in (folder / 'state').rglob('d/*'):
    os.truncate(file, file.stat().st_size // 2)


def empty(folder):
  shutil.rmtree(folder)
  folder.mkdir()


def flip(folder):
  """Changes one byte of every file of arrays."""
  for file in (folder / 'state').rglob('d/*'):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


TEARS = {
  'truncated array files': truncate,
  'changed array files': flip,
  'no array files': lambda folder: [
    file.unlink() for file in (folder / 'state').rglob('d/*')
  ],
  'no manifest': lambda f: (f / 'state/manifest.ocdbt').unlink(),
  'no list of arrays': lambda f: (f / 'state/_METADATA').unlink(),
  'half a list of arrays': lambda f: os.truncate(f / 'state/_METADATA', 40),
  'no metadata': lambda f: (f / '_CHECKPOINT_METADATA').write_text(''),
  'no state': lambda folder: shutil.rmtree(folder / 'state'),
  'an empty folder': empty,
  'another step': lambda f: (
    shutil.rmtree(f),
    shutil.copytree(f.parent / '2', f),
  ),
}


@pytest.mark.parametrize('tear', TEARS)
def test_a_corrupt_checkpoint_is_set_aside_for_the_previous_one(
  tmp_path, tear, capfd
):
  save_all(tmp_path, SETTINGS, [0.9, None, None]).close()
  before = tree(tmp_path / 'checkpoints' / '2')
  TEARS[tear](tmp_path / 'checkpoints' / '3')
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  step, (restored,) = recovery.newest([folder], state(0))
  assert step == 2
  assert (restored.params['layer']['kernel'] == 2).all()
  assert folder.steps() == [1, 2]
  (line,) = capfd.readouterr().err.splitlines()
  assert line.startswith(f'WARNING: checkpoint {tmp_path}/checkpoints/3 is ')
  assert os.listdir(tmp_path / 'corrupt') == ['3']
  assert tree(tmp_path / 'checkpoints' / '2') == before
  folder.save(state(3))
  folder.wait()
  assert recovery.newest([folder], state(0))[0] == 3
  folder.close()


@pytest.mark.slow
def test_a_flipped_bit_never_changes_what_is_read(tmp_path):
  """The storage format has no checksums of the values of arrays."""
  rng = np.random.default_rng(0)
  saved = dataclasses.replace(
    state(1),
    params={
      name: jnp.asarray(rng.standard_normal((40, 50)), kind)
      for name, kind in (('kernel', jnp.float32), ('half', jnp.bfloat16))
    },
  )
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  folder.save(saved)
  folder.wait()
  files = (tmp_path / 'checkpoints' / '1').rglob('d/*')
  detected = 0
  for file in files:
    whole = file.read_bytes()
    for bit in rng.integers(8 * len(whole), size=40):
      damaged = bytearray(whole)
      damaged[bit // 8] ^= 1 << bit % 8
      file.write_bytes(damaged)
      try:
        restored = folder.restore(1, saved)
      except Corrupt as error:
        assert 'checkpoints/1 is corrupt' in str(error)  # noqa: PT017
        detected += 1
      else:
        jax.tree.map(np.testing.assert_array_equal, restored, saved)
    file.write_bytes(whole)
  assert detected > 20
  folder.close()


def test_a_checkpoint_without_checksums_is_read(tmp_path):
  """Earlier versions wrote none."""
  save_all(tmp_path, SETTINGS, [None]).close()
  file = tmp_path / 'checkpoints' / '1' / '_CHECKPOINT_METADATA'
  content = json.loads(file.read_text())
  del content['custom_metadata']['checksums']
  file.write_text(json.dumps(content))
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  assert int(folder.restore(1, state(0)).step) == 1
  folder.close()


def test_a_checkpoint_corrupt_on_another_process_is_skipped_by_all(
  tmp_path, monkeypatch
):
  folder = save_all(tmp_path, SETTINGS, [None, None])
  reasons = iter(['that of another', ''])

  def gathered(value):
    return [value, next(reasons) if isinstance(value, str) else value]

  monkeypatch.setattr(processes, 'gather', gathered)
  step, _ = recovery.newest([folder], state(0))
  assert (step, os.listdir(tmp_path / 'corrupt')) == (1, ['2'])
  folder.close()


def test_a_corrupt_best_checkpoint_is_set_aside_for_the_next_best(
  tmp_path, capfd
):
  settings = dataclasses.replace(SETTINGS, max_to_keep=3)
  folder = save_all(tmp_path, settings, [0.9, 0.3, 0.5, 0.4])
  truncate(tmp_path / 'checkpoints' / '1')
  with pytest.raises(Failed, match='checkpoints/1 is corrupt'):
    folder.restore_params(1)
  step, restored = recovery.best(folder, state(0).params)
  assert step == 3
  assert (restored['layer/kernel'] == 3).all()
  assert 'checkpoints/1 is corrupt' in capfd.readouterr().err
  assert os.listdir(tmp_path / 'corrupt') == ['1']
  folder.close()


def tree(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_nothing_is_changed_when_all_checkpoints_are_corrupt(tmp_path):
  save_all(tmp_path, SETTINGS, [None, None]).close()
  for step in '12':
    truncate(tmp_path / 'checkpoints' / step)
  before = tree(tmp_path)
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  with pytest.raises(Failed, match=r'checkpoints/2 is corrupt'):
    recovery.newest([folder], state(0))
  folder.close()
  assert tree(tmp_path) == before


def test_nothing_is_changed_when_no_best_checkpoint_can_be_read(
  tmp_path, monkeypatch
):
  folder = save_all(tmp_path, SETTINGS, [0.9, 0.3])
  before = tree(tmp_path)

  def too_many(*_):
    raise OSError(24, 'Too many open files')

  monkeypatch.setattr(folder, '_read', too_many)
  with pytest.raises(Failed, match='Too many open files'):
    recovery.best(folder, state(0).params)
  folder.close()
  assert tree(tmp_path) == before


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
  save_all(tmp_path, SETTINGS, [None]).close()
  before = tree(tmp_path)
  folder = Checkpoints(str(tmp_path), SETTINGS, 'another')
  with pytest.raises(UserError, match='is of another run'):
    recovery.newest([folder], state(0))
  with pytest.raises(UserError, match=r'kernel is float32\[2, 3\]'):
    recovery.newest([folder], state(0, width=4))
  folder.close()
  assert tree(tmp_path) == before


def test_orbax_alone_reads_a_checkpoint(tmp_path):
  save_all(tmp_path, SETTINGS, [None]).close()
  with ocp.CheckpointManager(tmp_path / 'checkpoints') as manager:
    read = manager.restore(1)
  assert list(read['state']['params']['layer']) == ['kernel']


def test_interrupted_saves_are_removed_and_never_read(tmp_path):
  save_all(tmp_path, SETTINGS, [None]).close()
  cut = tmp_path / 'checkpoints' / '2.orbax-checkpoint-tmp-7'
  shutil.copytree(tmp_path / 'checkpoints' / '1', cut)
  with checkpoints.reading(str(tmp_path), SETTINGS, max) as folder:
    assert folder.steps() == [1]
  assert cut.exists()
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  assert folder.steps() == [1]
  folder.save(state(2))
  folder.close()
  assert not cut.exists()


def test_a_full_disk_is_one_line_and_keeps_earlier_checkpoints(tmp_path):
  """Simulated by a limit on the size of files."""
  folder = save_all(tmp_path, SETTINGS, [None, None])
  before = tree(tmp_path / 'checkpoints')
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
  try:
    folder.save(state(3))
    with pytest.raises(Failed, match='could not be written') as error:
      folder.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert '\n' not in str(error.value)
  after = tree(tmp_path / 'checkpoints')
  assert {path: after[path] for path in before} == before
  folder = Checkpoints(str(tmp_path), SETTINGS, RUN, max)
  assert recovery.newest([folder], state(0))[0] == 2
  folder.close()
