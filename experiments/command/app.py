"""What every command shares: flags, the config, exit codes, where text goes.

Standard output ends with one JSON line; everything else goes to standard
error. A command that is given something wrong says so in one line, and exits
with 2 before it touches a device.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from experiments.command.config_files import DEFAULT_CONFIG, load_config
from experiments.command.errors import (
  FULL,
  Diverged,
  Failed,
  Interrupted,
  UserError,
  nearest,
  unwritten,
)
from experiments.command.log import Unbreakable, log
from experiments.command.values import flat_keys, parse_tuple

DONE, ERROR, WRONG_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 75


def command() -> list[str]:
  """The words of this command as they were typed, `experiments.NAME` first."""
  words = sys.orig_argv
  return words[words.index('-m') + 1 :] if '-m' in words else words


def print_result(result: dict) -> None:
  """The last line of standard output.

  Raises:
    Failed: its file has no more room.
  """
  try:
    print(json.dumps(result), flush=True)
  except BrokenPipeError:
    raise
  except OSError as error:
    _drop_output()
    raise Failed(
      f'standard output could not be written: {error.strerror}'
    ) from error


def _drop_output() -> None:
  """Lets nothing fail again when the interpreter empties its buffer."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(
  main: Callable[[flags.FlagValues], None],
  define: Callable[[flags.FlagValues], None],
  doc: str,
  takes_config: bool = False,
) -> None:
  """Parses the command line, calls `main`, and exits with the right code.

  Args:
    main: gets the flags; `config` and `config_path` among them if
      takes_config.
    define: adds the command's own flags.
    doc: what --help says first.
    takes_config: whether there is --config, a file, and --config.key=value
      for every key in it.
  """
  with contextlib.redirect_stderr(Unbreakable(sys.stderr)):
    _run(main, define, doc, takes_config)


def _run(main, define, doc, takes_config) -> None:
  # Libraries below speak up only when something is wrong; what Orbax logs as
  # an error it raises as well.
  flags.FLAGS.mark_as_parsed()
  absl_logging.set_verbosity(absl_logging.FATAL)
  # So do the parts of a save that fail after the first of them has.
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  code = DONE
  try:
    main(_parse(sys.argv, define, doc, takes_config))
  except UserError as error:
    print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
    code = WRONG_INPUT
  except Diverged as error:
    print(f'diverged: {error}', file=sys.stderr)
    code = DIVERGED
  except Interrupted as error:
    print(f'interrupted: {error}', file=sys.stderr)
    code = INTERRUPTED
  except Failed as error:
    print(f'failed: {error}', file=sys.stderr)
    code = ERROR
  except BrokenPipeError:
    # Whoever read our output has gone.
    _drop_output()
    code = ERROR
  except Exception:
    traceback.print_exc()
    code = ERROR
  if code == ERROR and 'jax' in sys.modules and _is_one_of_several():
    log(
      'if another process ended first, this is why; '
      'run the same command again for all of them'
    )
    # Not sys.exit, which would wait for the others, who wait for this one.
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def _is_one_of_several() -> bool:
  from jax import distributed, process_count

  return distributed.is_initialized() and process_count() > 1


def make_folder(path: str, name: str) -> None:
  """Makes a folder that a flag names.

  Raises:
    UserError: it cannot be made, or not be written to.
    Failed: there is no room for it.
  """
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    if error.errno in FULL:
      raise unwritten(path, error) from error
    raise UserError(f'--{name}: {error.strerror}: {path}') from error
  if not os.access(path, os.W_OK):
    raise UserError(f'--{name}: no right to write into {path}')


def has_config(values: flags.FlagValues) -> bool:
  """Whether --config, or a key of it, was given."""
  given = load_config(values.config_path).to_dict()
  is_default = values.config_path == DEFAULT_CONFIG
  return not is_default or values.config.to_dict() != given


def required(values: flags.FlagValues, name: str) -> str:
  """Value of a flag that must be given."""
  value = values[name].value
  if value is None:
    raise UserError(f'--{name} is missing; {values[name].help}')
  return value


def _parse(argv, define, doc, takes_config) -> flags.FlagValues:
  values = flags.FlagValues()
  define(values)
  path, config = None, None
  try:
    argv = values.read_flags_from_files(argv, force_gnu=False)
    if takes_config:
      path, argv = _take_config(argv)
      config = load_config(path)
      _check_overrides(argv, config)
      # The library looks for overrides here rather than where it is told to.
      sys.argv = argv
      config_flags.DEFINE_config_dict('config', config, flag_values=values)
      for name in values:
        if values[name].parser.flag_type() == 'tuple':
          values[name].parser = _Tuples()
      flags.DEFINE_string('config_path', path, '', flag_values=values)
    if {'--help', '-h', '--helpfull', '--helpshort', '-help'} & set(argv):
      _print_help(values, doc, path, config)
      sys.exit(DONE)
    rest = values(argv)
  except flags.Error as error:
    raise UserError(_flag_error(error, config)) from error
  if len(rest) > 1:
    raise UserError(f'unexpected argument {rest[1]!r}; flags begin with --')
  return values


class _Tuples(flags.ArgumentParser):
  """Reads a,b as a sweep does, where the library asks for ('a', 'b')."""

  def parse(self, argument: str) -> tuple:
    """ValueError as values.parse_tuple."""
    return parse_tuple(argument)


def _flag_error(error: flags.Error, config: ConfigDict | None) -> str:
  text = str(error).replace('flag --', '--', 1)
  given, _, _ = text.partition(': ')
  key = given.removeprefix('--config.').partition('=')[0]
  if config is None or not given.startswith('--config.'):
    return text
  value = flat_keys(config)[key]
  return f'{given} is not of type {type(value).__name__}, as {value!r} is'


def _take_config(argv) -> tuple[str, list[str]]:
  """The last --config, or the default, and the arguments without it."""
  path, rest = DEFAULT_CONFIG, []
  arguments = iter(argv)
  for argument in arguments:
    name, separator, value = argument.partition('=')
    if name not in ('--config', '-config'):
      rest.append(argument)
    elif separator:
      path = value
    else:
      path = next(arguments, '')
  return path, rest


def _check_overrides(argv, config: ConfigDict) -> None:
  """UserError for an override of a key that is not there, or of a section."""
  keys = flat_keys(config)
  for argument in argv[1:]:
    name = argument.lstrip('-').partition('=')[0]
    name = name.removeprefix('no') if name.startswith('noconfig.') else name
    if not name.startswith('config.') or not argument.startswith('-'):
      continue
    key = name.removeprefix('config.')
    if key not in keys:
      raise UserError(f'--{name} is not a key{nearest(key, list(keys))}')
    if isinstance(keys[key], ConfigDict):
      inside = ', '.join(f'--{name}.{entry}' for entry in keys[key])
      raise UserError(f'--{name} is a section; change one of {inside}')


def _print_help(values, doc: str, path: str | None, config) -> None:
  print(f'{doc.strip()}\n\nflags:')
  if config is not None:
    print(f'  --config: Python file with get_config() (default: {path})')
    print('  --config.KEY=VALUE: another value for one of the keys below')
  for name in values:
    flag = values[name]
    if name not in ('config', 'config_path'):
      default = '' if flag.default is None else f' (default: {flag.default})'
      print(f'  --{name}: {flag.help}{default}')
  if config is not None:
    print(f'\nkeys of {path}:')
    for key, value in flat_keys(config).items():
      if not isinstance(value, ConfigDict):
        print(f'  --config.{key}={value}')
