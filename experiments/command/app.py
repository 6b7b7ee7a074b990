"""Shared by all commands: flags, the config, exit codes, standard output.

Standard output ends with one JSON line; everything else goes to standard
error. Wrong input is reported in one line, with exit code 2, before any device
is used.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from experiments.command import distributed, modules
from experiments.command.config_files import (
  DEFAULT_CONFIG,
  find_config,
  load_config,
)
from experiments.command.errors import (
  Diverged,
  Failed,
  Interrupted,
  UserError,
  making,
  nearest,
)
from experiments.command.log import Unbreakable, log
from experiments.command.values import (
  flat_keys,
  kind_of,
  parse_tuple,
  shown,
)

# --FLAG=~/FOLDER, and --grid=config.KEY=~/FOLDER, up to the tilde.
_HOME = re.compile(r'(--?[\w.]+=(?:config\.[\w.]+=)?)(~(?:/.*)?)', re.DOTALL)
DONE, ERROR, WRONG_INPUT, DIVERGED, INTERRUPTED = 0, 1, 2, 3, 75
_HELP = ('--help', '-h', '--helpfull', '--helpshort', '-help')
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
  print_lines([json.dumps(result)])


def print_lines(lines: Iterable[str]) -> None:
  """Prints lines on standard output, at once.

  Raises:
    BrokenPipeError: its reader has closed the pipe.
    OSError: the file it is redirected to is full, among others.
  """
  try:
    print(*lines, sep='\n', flush=True)
  except OSError:
    drop_output()
    raise


def drop_output() -> None:
  """Redirects stdout to /dev/null, so that the flush at exit cannot fail."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(
  main: Callable[[flags.FlagValues], None],
  define: Callable[[flags.FlagValues], None],
  doc: str | None,
  describe: Callable[..., str] | None = None,
) -> None:
  """Parses the command line, calls `main`, and exits with the right code.

  Args:
    main: is called with the flags, including `config` and `config_path` if
      there is `describe`.
    define: adds the flags of this command.
    doc: first paragraphs of --help.
    describe: the text of --help on all keys of a config, '', or on what is
      named, with the values of that config. It adds the flags --config, a file,
      and --config.KEY=VALUE for every key in it. None: the command has no
      config.
  """
  if isinstance(sys.stdout, io.TextIOWrapper):
    # In a locale that is not UTF-8, other characters are printed as \u20ac.
    sys.stdout.reconfigure(errors='backslashreplace')
  with contextlib.redirect_stderr(Unbreakable(sys.stderr)):
    _run(main, define, doc, describe)


def _run(main, define, doc, describe) -> None:
  # Silences library logs: what Orbax logs as an error it raises as well.
  flags.FLAGS.mark_as_parsed()
  absl_logging.set_verbosity(absl_logging.FATAL)
  # Further parts of a failed save, whose first error is raised.
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  # What threads of TensorStore raise after a failed read, which is raised too.
  sys.unraisablehook = lambda _: None
  # Modules, see imports.
  gc.freeze()
  code = DONE
  try:
    main(_parse(sys.argv, define, doc, describe))
  except BrokenPipeError:
    # The reader of the pipe has closed it.
    drop_output()
    code = ERROR
  except tuple(_ENDS) as error:
    word, code = next(
      end for kind, end in _ENDS.items() if isinstance(error, kind)
    )
    print(f'{word}: {" ".join(str(error).split())}', file=sys.stderr)
  except Exception:
    traceback.print_exc()
    code = ERROR
  if code != DONE and distributed.is_one_of_several():
    if code == ERROR:
      log(
        'this may only follow from the failure of another process; '
        'run the same command again for all processes'
      )
    # Not sys.exit, which would wait for processes that do not end: a deadlock.
    distributed.end(code)
  sys.exit(code)


def check_output(path: str) -> None:
  """Creates the folder of the file given by --output.

  Raises:
    UserError: it is a folder or empty, or cannot be written.
  """
  if not path or os.path.isdir(path):
    raise UserError(f'--output={path} is not the name of a file; give one')
  make_folder(os.path.dirname(os.path.abspath(path)), 'output')


def make_folder(path: str, name: str) -> None:
  """Creates the folder given by a flag.

  Raises:
    UserError: it cannot be created, or is not writable.
  """
  with making(f'--{name}'):
    os.makedirs(path, exist_ok=True)
  if not os.access(path, os.W_OK):
    raise UserError(f'--{name}: {path} is not writable')


def has_config(values: flags.FlagValues) -> bool:
  """Whether --config or --config.KEY was given."""
  if values.config_path != DEFAULT_CONFIG:
    return True
  return values.config.to_dict() != load_config(DEFAULT_CONFIG).to_dict()


def required(values: flags.FlagValues, name: str) -> str:
  """Value of a required flag; UserError if it was not given."""
  value = values[name].value
  if value is None:
    text = values[name].help.rstrip('.')
    raise UserError(f'--{name} is required: {text[0].lower()}{text[1:]}')
  return value


def _parse(argv, define, doc, describe) -> flags.FlagValues:
  values = flags.FlagValues()
  define(values)
  path, config = None, None
  try:
    argv = values.read_flags_from_files(argv, force_gnu=False)
    # A shell expands ~ at the beginning of a word only.
    argv = [
      matched[1] + os.path.expanduser(matched[2])
      if (matched := _HOME.fullmatch(word))
      else word
      for word in argv
    ]
    rest = argv
    if describe is not None:
      path, rest = _take_config(argv)
      config = load_config(path)
      modules.search(os.path.dirname(path))
      _check_overrides(rest, config)
      # ml_collections reads overrides from sys.argv, not from its argument.
      sys.argv = rest
      config_flags.DEFINE_config_dict('config', config, flag_values=values)
      for name in values:
        if values[name].parser.flag_type() == 'tuple':
          values[name].parser = _Tuples()
      flags.DEFINE_string('config_path', path, '', flag_values=values)
    _check_repeated(argv, values)
    helps = [word for word in argv if word.partition('=')[0] in _HELP]
    if helps:
      _print_help(values, doc, path, config, describe, helps[0])
      sys.exit(DONE)
    _, *more = values(rest)
  except flags.Error as error:
    raise UserError(_flag_error(error, config)) from error
  if more:
    raise UserError(
      f'unexpected argument {more[0]!r}; flags begin with --, and a pattern '
      'needs quotes, or the shell replaces it'
    )
  return values


class _Tuples(flags.ArgumentParser):
  """Reads a,b as --grid does, where ml_collections requires ('a', 'b')."""

  def parse(self, argument: str) -> tuple:
    """ValueError as values.parse_tuple."""
    return parse_tuple(argument)


def _flag_error(error: flags.Error, config: ConfigDict | None) -> str:
  text = str(error).replace('flag --', '--', 1)
  word, _, _ = text.partition(': ')
  key = word.removeprefix('--config.').partition('=')[0]
  if config is None or not word.startswith('--config.'):
    return text
  return f'{word} is not {kind_of(flat_keys(config)[key])}'


def _take_config(argv) -> tuple[str, list[str]]:
  """That of --config, or the default, and the arguments without it."""
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
  return find_config(path), rest


def _names(argv) -> list[str]:
  """The flags of a command line, without dashes and values."""
  words = [word for word in argv[1:] if word.startswith('-')]
  return [word.lstrip('-').partition('=')[0] for word in words]


def _check_repeated(argv, values: flags.FlagValues) -> None:
  """UserError for a flag given twice, of which one value would be lost."""
  switches = {f'no{name}': name for name in values if values[name].boolean}
  names = [switches.get(name, name) for name in _names(argv)]
  for name in values:
    # Those of tuples of a config are a subclass, and no exception.
    may_repeat = type(values[name]) is flags.MultiFlag
    if names.count(name) > 1 and not may_repeat:
      raise UserError(
        f'--{name} is given {names.count(name)} times; give it once, and '
        'several values of a list with commas between them'
      )


def _check_overrides(argv, config: ConfigDict) -> None:
  """UserError for an override of an unknown key or of a section."""
  keys = flat_keys(config)
  for name in _names(argv):
    name = name.removeprefix('no') if name.startswith('noconfig.') else name
    if not name.startswith('config.'):
      continue
    key = name.removeprefix('config.')
    if key not in keys:
      raise UserError(f'--{name} is not a key{nearest(key, list(keys))}')
    section = keys[key]
    if isinstance(section, ConfigDict):
      inside = ', '.join(f'--{name}.{entry}' for entry in section)
      raise UserError(f'--{name} is a section; change one of {inside}')


def _print_help(values, doc, path, config, describe, word: str) -> None:
  """The page of --help; of --help=NAME, what may be chosen."""
  _, _, name = word.partition('=')
  if name and describe is not None:
    print(describe(name, config))
    return
  # PYTHONOPTIMIZE=2 leaves out docstrings.
  print(f'{(doc or "").strip()}\n\nflags:')
  if describe is not None:
    print(f'  --config: Python file with get_config() (default: {path})')
    print('  --config.KEY=VALUE: override a key; all keys are listed below')
    print('  --help=NAME: a key, a choice or module:Class, as --help=position')
  for name, (meaning, default) in described_flags(values).items():
    default = f' (default: {default})' if default else ''
    print(f'  --{name}: {meaning}{default}')
  if describe is not None:
    print(f'\nkeys of {path}:')
    print(describe('', config))


def described_flags(values: flags.FlagValues) -> dict[str, tuple[str, str]]:
  """(help, default as it is typed) of each flag but those of the config."""
  described = {}
  for name in values:
    if name not in ('config', 'config_path'):
      # absl adds a line to the help of a flag that may be repeated.
      meaning = values[name].help.partition(';\n')[0]
      described[name] = meaning, shown(values[name].default)
  return described
