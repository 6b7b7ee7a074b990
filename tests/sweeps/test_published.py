"""The file of --output: a table, and where its figures come from."""

import json

from conftest import make_small_config

from experiments.command import provenance
from experiments.command.values import flat_keys


def small_flags():
  changed = flat_keys(make_small_config().to_dict())
  wanted = ('data.word_order.', 'model.num', 'model.embed_dim', 'train.steps')
  return [
    f'--config.{key}={value}'
    for key, value in changed.items()
    if key.startswith(wanted)
  ]


def test_a_table_says_command_commit_machine_and_seeds(tmp_path, call_command):
  sweep, output = tmp_path / 'sweep', tmp_path / 'results' / 'seeds.json'
  flags = [f'--workdir={sweep}', '--engine=serial', '--grid', 'config.seed=3,4']
  flags += [*small_flags(), f'--output={output}']
  code, _, stderr = call_command('sweep', *flags, cwd=tmp_path)
  assert code == 0, stderr
  found = json.loads(output.read_text())
  (command,) = found['commands']
  assert command.startswith('experiments.sweep --workdir=PATH --engine')
  assert str(tmp_path) not in output.read_text()
  assert '--grid config.seed=3,4' in command
  assert found['commits'] == [provenance.commit()]
  assert found['machines'] == [provenance.machine()]
  assert found['seed'] == [3, 4]
  assert found['trials'] == {'DONE': 2}
  table = json.loads((sweep / 'results.json').read_text())['table']
  assert found['table'] == table
  trial = next((sweep / 'trials').glob('*/env.json'))
  trial.write_text('[')
  flags = [f'--workdir={sweep}', '--report', f'--output={output}']
  code, _, stderr = call_command('sweep', *flags, cwd=tmp_path)
  assert code == 2
  assert 'env.json is not JSON' in stderr.splitlines()[-1]
  assert json.loads(output.read_text()) == found
