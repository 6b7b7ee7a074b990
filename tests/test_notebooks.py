"""The notebooks run offline, from the first cell to the last, as they stand."""

import importlib.util
import json
import pathlib
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PATHS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))


@pytest.fixture(scope='module')
def executed():
  """The function of scripts/run_notebooks.py."""
  path = ROOT / 'scripts/run_notebooks.py'
  spec = importlib.util.spec_from_file_location('run_notebooks', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.executed


def shown(notebook):
  """Source of each cell of code, what it prints, and its kinds of output."""
  for cell in notebook['cells']:
    if cell['cell_type'] == 'code':
      texts = [
        output.get('text') or output['data']['text/plain']
        for output in cell['outputs']
      ]
      kinds = [sorted(output.get('data', ())) for output in cell['outputs']]
      yield ''.join(cell['source']), texts, kinds


@pytest.mark.slow
@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_cells_print_what_is_stored(executed, path, tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  stored = json.loads(path.read_text())
  message = 'run scripts/run_notebooks.py'
  for found, want in zip(shown(executed(path)), shown(stored), strict=True):
    assert found == want, message
