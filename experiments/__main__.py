"""The commands of experiments as one: selfattn COMMAND [flags].

    selfattn train --workdir=runs/first
    selfattn train --help

It needs the extra `train`: pip install 'selfattn[train]'
"""

from __future__ import annotations

import pathlib
import runpy
import sys
from importlib import import_module, util


def main() -> None:
  """Runs a command in this process, or prints the list of commands."""
  # An installation has `experiments` by this name from here on.
  import_module(str(__package__)).make_importable()
  from experiments.command.errors import nearest

  folder = pathlib.Path(__file__).parent
  commands = sorted(path.stem for path in folder.glob('[a-z]*.py'))
  name, *more = sys.argv[1:] or ['--help']
  if name in ('--help', '-h'):
    print(f'{(__doc__ or "").strip()}\n\ncommands: {", ".join(commands)}')
    return
  wrong = None
  if name not in commands:
    allowed = ', '.join(commands)
    wrong = f'{name} is not one of {allowed}{nearest(name, commands)}'
  elif util.find_spec('ml_collections') is None:
    wrong = "commands need the extra: pip install 'selfattn[train]'"
  if wrong:
    print(f'error: {wrong}', file=sys.stderr)
    sys.exit(2)
  sys.argv[:] = [f'selfattn {name}', *more]
  runpy.run_module(f'experiments.{name}', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
