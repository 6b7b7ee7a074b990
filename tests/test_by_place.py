"""scripts/by_place.py, as a command."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parent.parent
SMALL = (
  '--config.model.num_layers=1',
  '--config.model.embed_dim=8',
  '--config.model.num_heads=2',
  '--config.model.mlp_dim=8',
  '--config.train.steps=0',
  '--config.train.batch_size=2',
  '--grid=config.seed=0,1',
  '--engine=serial',
)


def python(*arguments):
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  command = [sys.executable, *arguments]
  return subprocess.run(command, env=environment, capture_output=True)


def sweep(workdir, config, *flags):
  path = f'--config={ROOT / "configs" / config}.py'
  flags = path, f'--workdir={workdir}', *SMALL, *flags
  done = python('-m', 'experiments.sweep', *flags)
  assert done.returncode == 0, done.stderr.decode()


def by_place(workdir, output):
  script = ROOT / 'scripts/by_place.py'
  return python(script, f'--workdir={workdir}', f'--output={output}')


def rows(workdir, output):
  done = by_place(workdir, output)
  assert done.returncode == 0, done.stderr.decode()
  return json.loads(output.read_text())['rows']


def test_each_length_and_depth_has_the_accuracy_of_all_seeds(tmp_path):
  source = (
    'passkey(vocab_size=8, depths=2, length=8, test_lengths=(8, 16), train=9, '
    'validation=4, test=4)'
  )
  sweep(tmp_path / 'sweep', 'passkey', f'--config.data.source={source}')
  # The folder of the file does not exist yet.
  of_places = rows(tmp_path / 'sweep', tmp_path / 'new/rows.json')
  places = [(row['length'], row['depth']) for row in of_places]
  assert places == [(8, 0), (8, 1), (16, 0), (16, 1)]
  for row in of_places:
    assert row['accuracy']['n'] == 2
    assert row['accuracy']['mean'] in (0, 0.25, 0.5, 0.75, 1)


def test_questions_of_mqar_have_the_tenth_of_their_text(tmp_path):
  source = (
    'mqar(vocab_size=6, num_pairs=1, length=4, test_lengths=(4, 20), train=99, '
    'validation=4, test=90, power=1)'
  )
  sweep(tmp_path / 'sweep', 'mqar', f'--config.data.source={source}')
  of_places = rows(tmp_path / 'sweep', tmp_path / 'rows.json')
  places = {(row['length'], row['depth']) for row in of_places}
  # A question is two, four, ... tokens after the start of its pair.
  assert places == {(4, 5), *((20, tenth) for tenth in range(1, 10))}


def test_ranges_of_positions_have_the_loss_of_a_window(tmp_path):
  folder = tmp_path / 'sweep'
  sweep(
    folder,
    'language_model',
    '--config.train.eval_lengths=(2048,)',
    '--config.model.position=rotary',
    # A token is more than a byte.
    '--config.data.vocabulary=word',
  )
  of_places = rows(folder, tmp_path / 'rows.json')
  assert [row['last'] for row in of_places][-1] <= 2048
  (setting,) = json.loads((folder / 'results.json').read_text())['table']
  whole = setting['by_length']['2048']['mean']
  losses = [row['bits_per_byte']['mean'] for row in of_places]
  assert min(losses) <= whole <= max(losses)


def test_what_cannot_be_measured_is_one_line_before_any_work(tmp_path):
  folder, output = tmp_path / 'sweep', tmp_path / 'rows.json'
  source = 'word_order(train_pairs=9, validation_pairs=4, test_pairs=4)'
  sweep(folder, 'default', f'--config.data.source={source}')
  for path, message in {
    folder: 'must be a sweep of config.data.source = passkey',
    tmp_path / 'none': 'is --workdir the folder of a sweep?',
  }.items():
    done = by_place(path, output)
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert message in line
  status = next(folder.glob('trials/*/status.json'))
  status.unlink()
  done = by_place(folder, output)
  (line,) = done.stderr.decode().splitlines()
  assert done.returncode == 2
  assert 'is PENDING; run the sweep first' in line
  assert not output.exists()
