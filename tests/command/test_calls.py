"""Choices that are written as calls."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Literal

import pytest

from experiments.command import calls, fields, modules
from experiments.command.calls import Table
from experiments.command.errors import UserError


@dataclasses.dataclass(frozen=True)
class Wide:
  """An entry whose first field is a size."""

  width: int
  base: float = 10.0
  shape: str = 'round'
  sides: tuple = ()
  is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Plain:
  """An entry without options."""


TABLE = Table({'wide': Wide, 'plain': Plain}, object, aliases={'broad': 'wide'})
JOINED = dataclasses.replace(TABLE, joins=True, optional=True)


@pytest.mark.parametrize(
  ('text', 'canonical'),
  [
    ('wide', 'wide'),
    ('wide()', 'wide'),
    ('broad', 'wide'),
    (' wide ( base = 3 ) ', 'wide(base=3)'),
    ('wide(base=10)', 'wide'),
    ('wide(is_open=True, base=-2.5)', 'wide(base=-2.5, is_open=True)'),
    ('wide(sides=(1, -1))', 'wide(sides=(1, -1))'),
    ('wide(sides=["a", "b"])', "wide(sides=('a', 'b'))"),
    ('wide(shape=square)', 'wide(shape=square)'),
    ("wide(shape='square')", 'wide(shape=square)'),
    ('wide(shape=\'a = b, "c" [d]\')', 'wide(shape=\'a = b, "c" [d]\')'),
    ('wide(shape="None")', "wide(shape='None')"),
    ('wide(shape=wide(base=3))', "wide(shape='wide(base=3)')"),
    ('wide(shape=a.b:C(x=(1, 2)),)', "wide(shape='a.b:C(x=(1, 2))')"),
    ("wide(shape='\\'\"a')", "wide(shape='\\'\"a')"),
  ],
)
def test_the_canonical_text_leaves_defaults_out_and_is_read_as_itself(
  text, canonical
):
  call = calls.parse(text, TABLE, 'model.part')
  assert str(call) == canonical
  assert calls.parse(canonical, TABLE, 'model.part') == call


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('wid', "config.part = 'wid' is not one of plain, wide.*did you mean wide"),
    (
      'wide(bas=3)',
      'wide has no option .bas.; it has base,.*did you mean base',
    ),
    ('plain(base=3)', 'plain has no option .base.; it has none'),
    (f'wide(base=1{400 * "0"})', 'base'),
    ('wide(width=3)', 'wide has no option .width.'),
    ('wide(base=x)', "base = 'x' must be a number"),
    ('wide(is_open=1)', 'is_open = 1 must be True or False'),
    ('wide(3)', 'each option has a name'),
    ('wide(base=3', r"'wide\(base=3' is not a name, or a call"),
    ('wide(base=3)(base=1)', 'is not a call'),
    ('wide(,)', 'each option has a name'),
    ('wide(base=1+x)', "'1\\+x' is no value; put quotes around it"),
    ('wide(base=3, base=4)', 'is not a call: an option is repeated'),
    ('wide plain', 'is not a name, or a call'),
    ('', 'is not a name, or a call'),
    (3, 'config.part = 3 must be text'),
  ],
)
def test_what_is_no_call_is_one_line_with_the_key(text, message):
  with pytest.raises(UserError, match=message) as error:
    calls.parse(text, TABLE, 'part')
  assert str(error.value).startswith('config.part = ')
  assert '\n' not in str(error.value)


def test_calls_are_joined_by_plus_outside_of_brackets_and_quotes():
  text = "wide(shape='a+b', base=2)+plain"
  joined = calls.parse_joined(text, JOINED, 'part')
  assert [call.name for call in joined] == ['wide', 'plain']
  assert joined[0].options == {'base': 2.0, 'shape': 'a+b'}
  assert calls.text(joined) == "wide(base=2, shape='a+b')+plain"
  assert calls.parse_joined('', JOINED, 'part') == ()


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('wide+plan', "'plan' is not one of .* did you mean plain"),
    ('wide+broad(base=3)', 'joins wide with itself'),
    ('wide+', r"'wide\+' must have a name on either side of each '\+'"),
    ('+wide', 'must have a name on either side'),
    ('wide(base=3+plain', 'brackets that do not match'),
  ],
)
def test_a_wrong_part_of_joined_calls_is_one_line(text, message):
  with pytest.raises(UserError, match=message):
    calls.parse_joined(text, JOINED, 'part')


@dataclasses.dataclass(frozen=True)
class Annotated:
  """An entry whose options are typed by their annotations."""

  limit: float | None = None
  share: float = 0
  name: int | str = 'all'
  side: Literal['left', 'right', 2] = 'left'
  pair: tuple[int, float] = (1, 2.0)
  names: tuple[str, ...] = ()
  loose: int = None  # pyright: ignore
  function: Callable = abs
  unknown: 'Nowhere' = 3  # noqa: F821  # pyright: ignore
  vocab_size: int | None = None


ANNOTATED = Table({'annotated': Annotated}, object)


@pytest.mark.parametrize(
  ('option', 'value'),
  [
    ('limit=2', 2.0),
    ('limit=None', None),
    ('share=0.5', 0.5),
    ('name=3', 3),
    ('name=first', 'first'),
    ('side=right', 'right'),
    ('side=2', 2),
    ('pair=(3, 4)', (3, 4.0)),
    ("names=('a', 'b', 'c')", ('a', 'b', 'c')),
    ('loose=3', 3),
  ],
)
def test_an_option_is_of_the_type_that_is_annotated(option, value):
  call = calls.parse(f'annotated({option})', ANNOTATED, 'part')
  name = option.partition('=')[0]
  made = getattr(call.make(), name)
  assert made == value
  assert type(made) is type(value)
  assert calls.parse(str(call), ANNOTATED, 'part') == call


@pytest.mark.parametrize(
  ('option', 'allowed'),
  [
    ('limit=big', 'must be a number or None'),
    ('name=True', 'must be an integer or text'),
    ('side=middle', "must be 'left' or 'right' or 2"),
    ('pair=(1,)', 'must be a list of 2: an integer, a number'),
    ('names=(1,)', 'must be a list, each element text'),
    ('share=None', 'must be a number'),
    ('share=1e999', 'must be finite'),
    ('pair=(1, -1e999)', 'must be finite'),
    ('function=abs', "has no option 'function'"),
    ('unknown=3', "has no option 'unknown'"),
    ('vocab_size=3', "has no option 'vocab_size'"),
  ],
)
def test_what_an_annotation_does_not_hold_is_one_line(option, allowed):
  with pytest.raises(UserError, match=allowed) as error:
    calls.parse(f'annotated({option})', ANNOTATED, 'part')
  assert option.partition('=')[0] in str(error.value)


def test_a_default_that_is_not_of_its_annotation_is_named():
  @dataclasses.dataclass(frozen=True)
  class Wrong:
    sides: int = 0.5  # pyright: ignore

  with pytest.raises(UserError, match=r'Wrong\.sides = 0\.5 must be an int'):
    fields.options(Wrong)


def test_a_class_that_forgets_the_decorator_is_named():
  class Wider(Wide):
    height: int = 3

  with pytest.raises(
    UserError, match=r'Wider\.height is no field: .*dataclass'
  ):
    fields.options(Wider)


@pytest.fixture
def own_file(tmp_path, monkeypatch):
  """Writes a module of one's own."""
  monkeypatch.setattr(modules, '_folders', [str(tmp_path)])
  monkeypatch.setattr(sys, 'path', list(sys.path))

  def write(name, text):
    (tmp_path / f'{name}.py').write_text(text)

  return write


@pytest.mark.parametrize(
  ('error', 'message'),
  [
    ('ValueError("size = 3 must be 4")', 'Failing(size=3): size = 3 must be 4'),
    ('TypeError("no")', 'failing.py line 7: TypeError: no'),
    ('AssertionError', 'failing.py line 7: AssertionError'),
    ('KeyError("size")', "failing.py line 7: KeyError: 'size'"),
  ],
)
def test_what_a_class_of_ones_own_raises_is_one_line(own_file, error, message):
  own_file(
    'failing',
    f"""import dataclasses

@dataclasses.dataclass(frozen=True)
class Failing:
  size: int = 0
  def __post_init__(self):
    raise {error}
""",
  )
  call = calls.parse('failing:Failing(size=3)', TABLE, 'part')
  with pytest.raises(UserError) as raised:
    call.make()
  assert str(raised.value).startswith('config.part = failing:Failing(size=3): ')
  assert message in str(raised.value)


def test_annotations_of_a_class_beside_ones_own_are_evaluated(own_file):
  own_file(
    'base_of_tests',
    """from __future__ import annotations
import dataclasses
from typing import Literal

@dataclasses.dataclass(frozen=True)
class Base:
  side: Literal['left', 'right'] = 'left'
""",
  )
  own_file(
    'derived',
    """import dataclasses
from base_of_tests import Base

@dataclasses.dataclass(frozen=True)
class Derived(Base):
  width: int = 3
""",
  )
  with pytest.raises(UserError, match="side = 'up' must be 'left' or 'right'"):
    calls.parse('derived:Derived(side=up)', TABLE, 'part')
