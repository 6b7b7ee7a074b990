"""The file of --output: a table, and where its figures come from."""


def test_an_output_that_is_no_file_is_refused_at_once(tmp_path, call_command):
  for output in (tmp_path, ''):
    flags = [f'--workdir={tmp_path / "sweep"}', '--sweep=seeds']
    code, _, stderr = call_command(
      'sweep', *flags, f'--output={output}', cwd=tmp_path
    )
    assert code == 2
    assert 'is not the name of a file' in stderr.splitlines()[-1]
    assert not (tmp_path / 'sweep').exists()
