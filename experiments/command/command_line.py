"""The command line: flags, the config, overrides of its keys, --help."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.command import modules, provenance
from experiments.command.config_files import (
  DEFAULT_CONFIG,
  find_config,
  load_config,
)
from experiments.command.errors import UserError, nearest
from experiments.command.values import (
  flat_keys,
  kind_of,
  parse_tuple,
  shown,
)

# --FLAG=~/FOLDER, and --grid=config.KEY=~/FOLDER, up to the tilde.
_HOME = re.compile(r'(--?[\w.]+=(?:config\.[\w.]+=)?)(~(?:/.*)?)', re.DOTALL)
_HELP = ('--help', '-h', '--helpfull', '--helpshort', '-help')
_DEFINE: dict[type, Callable] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  list: flags.DEFINE_list,
  tuple: flags.DEFINE_multi_string,
  str: flags.DEFINE_string,
  type(None): flags.DEFINE_string,
}


def define(values: flags.FlagValues, *described: tuple) -> None:
  """Adds flags: (name, default, help), and limits of its values, if any.

  The default gives the type: () is of a flag that may be repeated, and [] is of
  a list. Limits are the least number and the greatest, or a tuple of texts.
  """
  for name, default, text, *limits in described:
    if limits and isinstance(limits[0], tuple):
      flags.DEFINE_enum(name, default, limits[0], text, flag_values=values)
    else:
      kind = type(limits[0] if limits else default)
      _DEFINE[kind](name, default, text, *limits, flag_values=values)


def refuse(values: flags.FlagValues, names: Iterable[str], reason: str) -> None:
  """UserError, with the reason, for the first of these flags that is given."""
  for name in names:
    if values[name].present:
      raise UserError(f'--{name} {reason}')


def numbers(values: flags.FlagValues, name: str) -> list[int]:
  """The numbers that a flag lists; UserError for one below 1."""
  texts: Any = values[name].value
  for text in texts:
    if not text.strip().isdecimal() or int(text) < 1:
      raise UserError(f'--{name}={text} must be a number of at least 1')
  return list(map(int, texts))


def parse(
  argv: list[str],
  add_flags: Callable[[flags.FlagValues], None],
  doc: str | None,
  describe: Callable[..., str] | None,
) -> flags.FlagValues:
  """The flags of a command; prints --help and exits if that is asked for.

  What follows `argv` is as in app.run. A UserError says which flag or key is
  unknown, repeated, or has a wrong value.
  """
  values = flags.FlagValues()
  add_flags(values)
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
      sys.exit(0)
    _, *more = values(rest)
    if rest is not argv:
      # The library has not seen --config.
      values['config'].present += len(rest) < len(argv)
  except flags.Error as error:
    raise UserError(_flag_error(error, values, config)) from error
  if more:
    raise UserError(
      f'unexpected argument {more[0]!r}; flags begin with --, and a pattern '
      'needs quotes, or the shell replaces it'
    )
  _check_values(values)
  return values


def _check_values(values: flags.FlagValues) -> None:
  """UserError for a list without elements, or a bucket to write to."""
  for name in values:
    if values[name].default and values[name].value == []:
      raise UserError(f'--{name}= is an empty list; give at least one value')
  output = values['output'].value if 'output' in values else ''
  if re.match(r'\w+://', output or ''):
    raise UserError(f'--output={output} must be on this machine, no address')


class _Tuples(flags.ArgumentParser):
  """Reads a,b as --grid does, where ml_collections requires ('a', 'b')."""

  def parse(self, argument: str) -> tuple:
    """ValueError as values.parse_tuple."""
    return parse_tuple(argument)


def _flag_error(
  error: flags.Error, values: flags.FlagValues, config: ConfigDict | None
) -> str:
  if isinstance(error, flags.UnrecognizedFlagError):
    name, keys = error.flagname, flat_keys({'config': config or {}})
    return f'--{name} is not a flag{nearest(name, [*values, *keys])}'
  text = str(error).replace('flag --', '--', 1)
  word, _, _ = text.partition(': ')
  key = word.removeprefix('--config.').partition('=')[0]
  if config is None or not word.startswith('--config.'):
    return text
  return f'{word} is not {kind_of(flat_keys(config)[key])}'


def _take_config(argv) -> tuple[str, list[str]]:
  """The path of the config, and the arguments without --config."""
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
  print(f'{provenance.typed_here(doc or "").strip()}\n\nflags:')
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
