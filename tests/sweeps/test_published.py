"""The file of --output: a table, and where its figures come from."""

import json

from conftest import make_small_config

from experiments.sweeps import comparison, plan, results


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
