"""Executes the notebooks of docs/notebooks and writes their outputs into them.

    bash scripts/run.sh python scripts/run_notebooks.py

Cells are executed in this process rather than by a kernel of Jupyter: that
needs no other package, and outputs have no times, counts or log lines. As in
Jupyter, the output of a cell is what it prints and the value of its last line.
"""

import ast
import base64
import contextlib
import io
import json
import pathlib
import re

from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))
_DPI = 80


def executed(path: pathlib.Path) -> dict:
  """The notebook with the outputs of its cells, executed from the first on."""
  notebook = json.loads(path.read_text(encoding='utf-8'))
  # Without what Jupyter adds when it saves a notebook.
  notebook['metadata']['language_info'] = {'name': 'python'}
  names = {'__name__': path.stem}
  for number, cell in enumerate(notebook['cells']):
    cell['metadata'] = {}
    if cell['cell_type'] == 'code':
      # Magics, such as %matplotlib, are for Jupyter.
      source = re.sub(r'^%.*', '', ''.join(cell['source']), flags=re.MULTILINE)
      name = f'{path.name}, cell {number}'
      cell['execution_count'] = None
      cell['outputs'] = list(_outputs(source, name, names))
  return notebook


def _outputs(source: str, name: str, names: dict):
  tree, value = ast.parse(source), None
  last = tree.body[-1]
  if isinstance(last, ast.Expr):
    tree.body.pop()
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(compile(tree, name, 'exec'), names)
    if isinstance(last, ast.Expr):
      value = eval(compile(ast.Expression(last.value), name, 'eval'), names)
  if text := printed.getvalue():
    lines = text.splitlines(keepends=True)
    yield {'name': 'stdout', 'output_type': 'stream', 'text': lines}
  if value is not None:
    yield {
      'data': _data(value),
      'execution_count': None,
      'metadata': {},
      'output_type': 'execute_result',
    }


def _data(value) -> dict:
  if not isinstance(value, Figure):
    return {'text/plain': [repr(value)]}
  image = io.BytesIO()
  # Without the version of matplotlib.
  value.savefig(image, dpi=_DPI, metadata={'Software': None})
  return {
    'image/png': base64.b64encode(image.getvalue()).decode(),
    'text/plain': [repr(value)],
  }


def main():
  for path in NOTEBOOKS:
    text = json.dumps(executed(path), indent=1, ensure_ascii=False)
    path.write_text(text + '\n', encoding='utf-8')
    print(path, flush=True)


if __name__ == '__main__':
  main()
