"""How a command was typed, and where its config is found."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types

import pytest
from conftest import ROOT

import experiments
import selfattn
from experiments import __main__
from experiments.command import app, command_line, config_files, provenance
from experiments.command.errors import UserError


@pytest.mark.parametrize(
  'typed',
  [
    'python -m experiments.train',
    'python -m experiments train',
    'python -u -m experiments train',
    'python -m selfattn_commands.experiments train',
    '/usr/bin/python3 /usr/bin/selfattn train',
  ],
)
def test_a_command_has_one_name_however_it_is_started(typed, monkeypatch):
  monkeypatch.setattr(sys, 'orig_argv', [*typed.split(), '--workdir=x', '-m'])
  assert provenance.command() == ['experiments.train', '--workdir=x', '-m']


def test_a_line_for_a_shell_starts_what_is_there(tmp_path, monkeypatch):
  words = ['experiments.sweep', '--grid', 'a b']
  line = provenance.shell_line(words)
  assert line == "bash scripts/run.sh experiments.sweep --grid 'a b'"
  monkeypatch.chdir(tmp_path)
  line = provenance.shell_line(words)
  assert line == f"bash {ROOT}/scripts/run.sh experiments.sweep --grid 'a b'"
  monkeypatch.setattr(provenance, 'ROOT', str(tmp_path))
  assert provenance.shell_line(words) == "selfattn sweep --grid 'a b'"
  # Of the repository around an installed package.
  assert provenance.commit() is None


@pytest.mark.parametrize(
  ('is_checkout', 'begin', 'install'),
  [
    (True, 'bash scripts/run.sh experiments.a', 'bash scripts/run.sh pip'),
    (False, 'selfattn a', 'pip'),
  ],
)
def test_texts_name_commands_that_are_there(
  is_checkout, begin, install, tmp_path, monkeypatch, capfd
):
  doc = 'Does.\n\n    bash scripts/run.sh experiments.a'
  if not is_checkout:
    monkeypatch.setattr(provenance, 'ROOT', str(tmp_path))

  def main(values):
    raise UserError('no Ray: bash scripts/run.sh pip install ray')

  for words in (['a'], ['a', '--help']):
    monkeypatch.setattr(sys, 'argv', words)
    with pytest.raises(SystemExit):
      app.run(main, lambda values: None, doc)
  shown, said = capfd.readouterr()
  assert shown.startswith(f'Does.\n\n    {begin}\n')
  assert said == f'error: no Ray: {install} install ray\n'


def test_packages_of_a_user_that_are_imported_are_not_replaced(monkeypatch):
  monkeypatch.setattr(sys, 'path', ['folder'])
  for _ in range(2):
    experiments.make_importable()
    assert sys.path == [str(ROOT), 'folder']
  theirs = types.ModuleType('configs')
  theirs.__file__ = '/theirs/configs/__init__.py'
  monkeypatch.setitem(sys.modules, 'configs', theirs)
  said = r'configs is /theirs/configs/__init__\.py here, which was imported'
  with pytest.raises(ImportError, match=said):
    experiments.make_importable()


def test_a_published_command_has_no_folders():
  words = [
    'experiments.sweep', '--workdir', '/a/b', '--config=/a/b/c.py',
    "--grid=config.train.init_from='/a/b/c'", '--config.data.dir=../texts',
    '--config.model.embeddings=file(path=/a/b/c.txt)', '--x=1/2', '--y=/',
    '--config.model.position=t5+/a/b.py:C', '--z=[/a/b,/c/d]', '--u=gs://b/c/',
  ]  # fmt: skip
  assert shlex.split(provenance.without_paths(words)) == [
    'experiments.sweep', '--workdir', 'PATH', '--config=PATH/c.py',
    "--grid=config.train.init_from='PATH/c'", '--config.data.dir=PATH',
    '--config.model.embeddings=file(path=PATH/c.txt)', '--x=1/2', '--y=/',
    '--config.model.position=t5+PATH/b.py:C', '--z=[PATH/b,PATH/d]',
    '--u=gs://b/c/',
  ]  # fmt: skip


def test_a_config_of_this_code_is_found_from_anywhere(tmp_path, monkeypatch):
  ours = str(ROOT / 'configs/trec.py')
  monkeypatch.chdir(tmp_path)
  assert config_files.find_config('configs/trec.py') == ours
  for path in ('configs/mine.py', 'trec.py', 'other/trec.py'):
    assert config_files.find_config(path) == path
  os.mkdir('configs')
  (tmp_path / 'configs/trec.py').touch()
  assert config_files.find_config('configs/trec.py') == 'configs/trec.py'


def test_a_config_may_define_a_dataclass(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'import dataclasses\nfrom configs import default\n'
    '@dataclasses.dataclass\nclass Sizes:\n  width: int = 24\n'
    'def get_config():\n  config = default.get_config()\n'
    '  config.model.embed_dim = Sizes().width\n  return config\n'
  )
  _, config = config_files.load_module(str(path))
  assert config.model.embed_dim == 24


def test_one_command_lists_and_runs_all_of_them(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'argv', ['selfattn'])
  __main__.main()
  _, _, listed = capsys.readouterr().out.strip().rpartition('commands: ')
  names = {path.stem for path in (ROOT / 'experiments').glob('[a-z]*.py')}
  assert set(listed.split(', ')) == names
  # Another test may have imported it, of which runpy warns.
  monkeypatch.delitem(sys.modules, 'experiments.evaluate', raising=False)
  monkeypatch.setattr(sys, 'argv', ['selfattn', 'evaluate', '--workdir=none'])
  with pytest.raises(SystemExit) as end:
    __main__.main()
  assert end.value.code == 2
  assert 'none/config.json does not exist' in capsys.readouterr().err


def test_the_script_of_an_installation_finds_this_code_first(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
  monkeypatch.setattr(sys, 'argv', ['selfattn', '--help'])
  __main__.main()
  assert 'commands: ' in capsys.readouterr().out
  assert sys.path[:2] == [str(ROOT), str(tmp_path)]


def test_an_installation_is_a_module_too(tmp_path):
  installed = tmp_path / 'selfattn_commands'
  installed.mkdir()
  (installed / 'experiments').symlink_to(ROOT / 'experiments')
  done = subprocess.run(
    [sys.executable, '-m', 'selfattn_commands.experiments'],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert 'commands: ' in done.stdout, done.stderr


def test_every_package_is_in_an_installation():
  """The packages of pyproject.toml are those with an __init__.py."""
  with open(ROOT / 'pyproject.toml', 'rb') as file:
    stated = tomllib.load(file)['tool']['setuptools']
  folders = {'selfattn': 'selfattn', **stated['package-dir']}
  found = []
  for name, folder in folders.items():
    for path in (ROOT / folder).rglob('__init__.py'):
      inner = path.parent.relative_to(ROOT / folder).parts
      found.append('.'.join([name, *inner]))
  assert stated['packages'] == sorted(found)


@pytest.mark.parametrize(
  ('name', 'hidden', 'said'),
  [
    ('tran', (), 'did you mean train?'),
    ('train', ('ml_collections',), "pip install 'selfattn[train]'"),
  ],
)
def test_what_is_no_command_here_is_one_line(
  name, hidden, said, monkeypatch, capsys
):
  find = __main__.util.find_spec
  monkeypatch.setattr(
    __main__.util, 'find_spec', lambda n: None if n in hidden else find(n)
  )
  monkeypatch.setattr(sys, 'argv', ['selfattn', name])
  with pytest.raises(SystemExit) as end:
    __main__.main()
  assert end.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ')
  assert said in line


def test_the_version_is_the_same_everywhere():
  for name, pattern in (
    ('CITATION.cff', r'^version: (.*)$'),
    ('CHANGELOG.md', r'^## (\S+)$'),
  ):
    stated = re.search(pattern, (ROOT / name).read_text(), re.M)
    assert stated[1] == selfattn.__version__, name


@pytest.mark.parametrize(
  ('command', 'flag', 'message'),
  [
    ('benchmark', '--lengths=', '--lengths= is an empty list'),
    ('benchmark', '--positions=', '--positions= is an empty list'),
    ('export', '--output=gs://b/c', 'no address'),
    ('inspect', '--output=gs://b/c', 'no address'),
  ],
)
def test_values_that_no_command_can_use_are_refused(command, flag, message):
  module = importlib.import_module(f'experiments.{command}')
  with pytest.raises(UserError, match=message):
    command_line.parse(['x', flag], module._define, '', None)


def test_numbers_of_numpy_in_a_config_are_plain(tmp_path):
  (tmp_path / 'numbers_of_tests.py').write_text("""
import numpy as np
from configs import default

def get_config():
  config = default.get_config()
  config.train.eval_lengths = tuple(np.array([4, 8]))
  with config.ignore_type():
    config.seed = np.int32(3)
  return config
""")
  path = str(tmp_path / 'numbers_of_tests.py')
  config = config_files.load_config(path).to_dict()
  assert json.loads(json.dumps(config))['seed'] == 3
  assert type(config['train']['eval_lengths'][0]) is int


def test_a_stream_that_is_closed_is_no_file_of_a_command(tmp_path):
  """The first file that is opened would be standard error otherwise."""
  script = (
    'import os; from experiments.command import app; app._open_streams(); '
    f'file = open({str(tmp_path / "file")!r}, "w"); '
    'os.write(2, b"lost"); print(file.fileno() > 2)'
  )
  done = subprocess.run(
    [
      'bash',
      '-c',
      f'{shlex.quote(sys.executable)} -c {shlex.quote(script)} 2>&-',
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=True,
  )
  assert done.stdout.strip() == 'True'
  assert (tmp_path / 'file').read_text() == ''
