"""The file of --output: a table, and where its figures come from."""

import json

from conftest import make_small_config

from experiments.command import provenance
from experiments.command.values import flat_keys
from experiments.sweeps import comparison, plan, results


def small_flags():
  changed = flat_keys(make_small_config().to_dict())
  wanted = ('data.source', 'model.num', 'model.embed_dim', 'train.steps')
  return [
    f'--config.{key}={value}'
    for key, value in changed.items()
    if key.startswith(wanted)
  ]


def test_a_table_says_command_commit_machine_and_seeds(tmp_path, call_command):
  sweep, output = tmp_path / 'sweep', tmp_path / 'results' / 'seeds.json'
  flags = [f'--workdir={sweep}', '--engine=serial']
  flags += ['--grid', 'config.seed=3,4']
  flags += [*small_flags(), '--output', output]
  code, _, stderr = call_command('sweep', *flags, cwd=tmp_path)
  assert code == 0, stderr
  found = json.loads(output.read_text())
  (command,) = found['commands']
  assert command.startswith('experiments.sweep --workdir=PATH --engine')
  assert str(tmp_path) not in output.read_text()
  assert '--grid config.seed=3,4' in command
  assert found['commits'] == [provenance.commit()]
  assert found['machines'] == [provenance.machine()]
  assert '--output PATH' in command
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


def test_an_output_that_is_no_file_is_refused_at_once(tmp_path, call_command):
  for output in (tmp_path, ''):
    flags = [f'--workdir={tmp_path / "sweep"}', '--sweep=seeds']
    code, _, stderr = call_command(
      'sweep', *flags, f'--output={output}', cwd=tmp_path
    )
    assert code == 2
    assert 'is not the name of a file' in stderr.splitlines()[-1]
    assert not (tmp_path / 'sweep').exists()


def test_a_list_may_distinguish_repetitions_and_gaps_are_left_out(tmp_path):
  key = 'optimizer.weight_decay_names'
  trials = [{key: ['kernel']}, {key: ['kernel', 'bias']}]
  specs = plan.make(make_small_config().to_dict(), trials, str(tmp_path / 's'))
  row = {'status': 'DONE', 'seconds': None}
  table = comparison.Comparison('accuracy', (key,), (key,), None, [], 1)
  path = tmp_path / 's' / 'trials' / specs[0].name
  path.mkdir(parents=True)
  (path / 'env.json').write_text('[{}]')
  results.publish(str(tmp_path / 'x.json'), [row, row], specs, table)
  found = json.loads((tmp_path / 'x.json').read_text())
  assert found[key] == [['kernel'], ['kernel', 'bias']]
  assert found['commands'] == found['commits'] == found['versions'] == []
