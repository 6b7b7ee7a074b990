"""The commands of experiments as one: selfattn COMMAND [flags].

    selfattn train --workdir=runs/first
    selfattn train --help

It needs the extra `train`: pip install 'selfattn[train]'
"""

from __future__ import annotations

import ast
import pathlib
import runpy
import sys
from importlib import util

from experiments.command.errors import nearest


def _commands() -> dict[str, str]:
  """The first line of the docstring of each command, by name."""
  lines = {}
  for path in sorted(pathlib.Path(__file__).parent.glob('[a-z]*.py')):
    text = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
    lines[path.stem] = (text or '').partition('\n')[0]
  return lines


def main() -> None:
  """Runs a command in this process, or prints the list of commands."""
  commands = _commands()
  name, *more = sys.argv[1:] or ['--help']
  if name in ('--help', '-h'):
    print(f'{(__doc__ or "").strip()}\n\ncommands:')
    for command, text in commands.items():
      print(f'  {command}: {text}')
    return
  if name not in commands:
    allowed = ', '.join(commands)
    sys.exit(_wrong(f'{name} is not one of {allowed}{nearest(name, commands)}'))
  if util.find_spec('ml_collections') is None:
    sys.exit(_wrong("commands need the extra: pip install 'selfattn[train]'"))
  sys.argv[:] = [f'selfattn {name}', *more]
  runpy.run_module(f'experiments.{name}', run_name='__main__', alter_sys=True)


def _wrong(text: str) -> int:
  print(f'error: {text}', file=sys.stderr)
  return 2


if __name__ == '__main__':
  main()
