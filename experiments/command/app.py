"""Shared by all commands: exit codes, standard output, checks of flags.

Standard output ends with one JSON line; everything else goes to standard
error. Wrong input is reported in one line, with exit code 2, before any device
is used.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import importlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable

from absl import flags
from absl import logging as absl_logging

from experiments.command import command_line, distributed, provenance
from experiments.command.errors import (
  Diverged,
  Failed,
  Interrupted,
  UserError,
  making,
  one_line,
)
from experiments.command.log import Unbreakable, hide_bars, log

DONE, ERROR, WRONG_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 75
# The word before the message of an exception, and the exit code.
_ENDS = {
  UserError: ('error', WRONG_INPUT),
  Diverged: ('diverged', DIVERGED),
  Interrupted: ('interrupted', INTERRUPTED),
  Failed: ('failed', ERROR),
  OSError: ('failed', ERROR),
}


def print_result(result: dict) -> None:
  """Prints a result as the last line of standard output."""
  print_lines([json.dumps(result, ensure_ascii=False)])


def print_lines(lines: Iterable[str]) -> None:
  """Prints lines on standard output, at once; OSError if that cannot be."""
  if sys.stdout is not None and sys.stdout.isatty():
    hide_bars()
  try:
    print(*lines, sep='\n', flush=True)
  except OSError:
    drop_output()
    raise


def drop_output() -> None:
  """Redirects stdout to /dev/null, so that the flush at exit cannot fail."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _escaped(error: UnicodeError) -> tuple[str, int]:
  """Characters that the locale lacks, as JSON writes them: \\u20ac."""
  assert isinstance(error, UnicodeEncodeError)
  lacking = error.object[error.start : error.end]
  return json.dumps(lacking)[1:-1], error.end


def run(
  main: Callable[[flags.FlagValues], None],
  define: Callable[[flags.FlagValues], None],
  doc: str | None,
  describe: Callable[..., str] | None = None,
) -> None:
  """Parses the command line, calls `main` with the flags, and exits.

  `define` adds the flags of this command, and `doc` begins --help. With
  `describe`, the text of --help on all keys of a config, '', or on what is
  named, there are also --config, a file, and --config.KEY=VALUE for every key
  in it; `main` then gets `config` and `config_path`.
  """
  _open_streams()
  if isinstance(sys.stdout, io.TextIOWrapper):
    codecs.register_error('json', _escaped)
    sys.stdout.reconfigure(errors='json')
  with contextlib.redirect_stderr(Unbreakable(sys.stderr)):
    _run(main, define, doc, describe)


def _open_streams() -> None:
  """Opens standard streams that are closed, so that no file takes their place.

  What a library, or a process that is started, writes there would be in it.
  """
  # The lowest number that is free is that of the next file.
  while (number := os.open(os.devnull, os.O_RDWR)) < 3:
    os.set_inheritable(number, True)
  os.close(number)


def _run(main, define, doc, describe) -> None:
  # Silences library logs: what Orbax logs as an error it raises as well.
  flags.FLAGS.mark_as_parsed()
  absl_logging.set_verbosity(absl_logging.FATAL)
  # Further parts of a failed save, whose first error is raised.
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  # What threads of TensorStore raise after a failed read, which is raised too.
  sys.unraisablehook = lambda _: None
  gc.freeze()  # Modules, as in import_frozen.
  code = DONE
  try:
    main(command_line.parse(sys.argv, define, doc, describe))
  except BrokenPipeError:
    # The reader of the pipe has closed it.
    drop_output()
    code = ERROR
  except tuple(_ENDS) as error:
    word, code = next(
      end for kind, end in _ENDS.items() if isinstance(error, kind)
    )
    said = provenance.typed_here(' '.join(str(error).split()))
    print(f'{word}: {said}', file=sys.stderr)
  except Exception as error:
    code = ERROR
    if _is_of_platform(error):
      code, name = WRONG_INPUT, os.environ.get('JAX_PLATFORMS', '')
      print(
        f'error: JAX_PLATFORMS={name} cannot be started here '
        f'({one_line(error)}); name another, such as cpu, or unset it',
        file=sys.stderr,
      )
    else:
      traceback.print_exc()
  if code != DONE and distributed.is_one_of_several():
    if code == ERROR:
      log(
        'this may only follow from the failure of another process; '
        'run the same command again for all processes'
      )
    # Not sys.exit, which would wait for processes that do not end: a deadlock.
    distributed.end(code)
  sys.exit(code)


def _is_of_platform(error: Exception) -> bool:
  """Whether jax lacks the platform that the environment names."""
  last = traceback.extract_tb(error.__traceback__)[-1]
  is_of_jax = last.filename.endswith('xla_bridge.py')
  return is_of_jax and bool(os.environ.get('JAX_PLATFORMS'))


def import_frozen(module: str) -> None:
  """Imports a module without garbage collection, and then freezes.

  Objects of modules are many, and stay: to search them again and again, during
  the imports and while a model is traced, takes a good part of a short command.
  What exists then is never collected, even if it becomes garbage.
  """
  gc.disable()
  try:
    importlib.import_module(module)
    gc.freeze()
  finally:
    gc.enable()


def check_output(path: str) -> None:
  """Creates the folder of the file given by --output, or a UserError."""
  if not path or os.path.isdir(path):
    raise UserError(f'--output={path} is not the name of a file; give one')
  make_folder(os.path.dirname(os.path.abspath(path)))


def make_folder(path: str) -> None:
  """Creates a folder of --output; UserError if nobody can write there."""
  with making('--output'):
    os.makedirs(path, exist_ok=True)
  if not os.access(path, os.W_OK):
    raise UserError(f'--output: {path} is not writable')


def has_config(values: flags.FlagValues) -> bool:
  """Whether --config or --config.KEY was given."""
  names = [name for name in values if f'{name}.'.startswith('config.')]
  return any(values[name].present for name in names)


def required(values: flags.FlagValues, name: str) -> str:
  """Value of a required flag; UserError if it was not given."""
  value = values[name].value
  if not value:
    text = values[name].help.rstrip('.')
    raise UserError(f'--{name} is required: {text}')
  return value
