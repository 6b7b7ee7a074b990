"""The notebooks run offline, from the first cell to the last, as they stand."""

import json
import pathlib
import re
import tempfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PATHS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))


@pytest.mark.slow
@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_cells_print_what_is_stored(path, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  names = {'__name__': path.stem}
  for cell in json.loads(path.read_text())['cells']:
    if cell['cell_type'] != 'code':
      continue
    # Without what is for Jupyter, such as %matplotlib.
    source = re.sub(r'^%.*', '', ''.join(cell['source']), flags=re.MULTILINE)
    exec(source, names)
    stored = [''.join(output.get('text', '')) for output in cell['outputs']]
    assert capsys.readouterr().out == ''.join(stored), source
