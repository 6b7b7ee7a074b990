"""Docstrings of the public surface, compared with the code below them."""

import ast
import re

import pytest
from conftest import ROOT

ERRORS = {'UserError', 'ValueError'}
# Whose subclasses readers write: each hook says what its parameters are.
CONTRACTS = (
  'selfattn/positions/contract.py:Position',
  'selfattn/positions/sampling.py:Consecutive',
  'selfattn/contract.py:Encoder',
  'selfattn/normalisers.py:Softmax',
  'selfattn/pools.py:Pool',
  'experiments/learning/optimizers.py:Optimizer',
  'experiments/learning/tasks.py:Task',
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


MODULES = {
  str(path.relative_to(ROOT)): ast.parse(path.read_text())
  for folder in ('selfattn', 'experiments')
  for path in sorted((ROOT / folder).rglob('*.py'))
}
CLASSES = {
  f'{path}:{node.name}': node
  for path, tree in MODULES.items()
  for node in tree.body
  if isinstance(node, ast.ClassDef)
}
BASES = {
  id(node): [
    # Of its own module, or the one of this name in another.
    CLASSES.get(f'{name.partition(":")[0]}:{base}')
    or next((CLASSES[n] for n in CLASSES if n.endswith(f':{base}')), None)
    for base in (ast.unparse(each).rpartition('.')[2] for each in node.bases)
  ]
  for name, node in CLASSES.items()
}


def lineage(cls):
  """A class and its bases in the project, nearest first."""
  found = [cls]
  for base in filter(None, BASES.get(id(cls), ())):
    found += lineage(base)
  return found


def public(node):
  """(node, class or None) of the functions and classes in a module or class."""
  for child in node.body:
    if isinstance(child, (*FUNCTIONS, ast.ClassDef)) and child.name[0] != '_':
      yield child, node if isinstance(node, ast.ClassDef) else None
      if isinstance(child, ast.ClassDef):
        yield from public(child)


SURFACE = [
  (f'{path}:{node.name}', node, owner)
  for path, tree in MODULES.items()
  for node, owner in public(tree)
]


def docs(node, owner):
  """The docstring, and those of what it overrides."""
  found = [node]
  if isinstance(node, ast.ClassDef):
    found = lineage(node)
  elif owner is not None:
    found += [
      method
      for base in lineage(owner)[1:]
      for method in base.body
      if isinstance(method, FUNCTIONS) and method.name == node.name
    ]
  return '\n'.join(filter(None, map(ast.get_docstring, found)))


def entries(text, heading):
  """Names that a section of a docstring explains."""
  _, _, section = f'\n{text}'.partition(f'\n{heading}:\n')
  section, *_ = re.split(r'\n(?=\S)', section)
  for names in re.findall(r'^  (\*{0,2}\w+(?:, \w+)*):', section, re.MULTILINE):
    yield from names.replace('*', '').split(', ')


def parameters(function):
  every = function.args
  named = [*every.posonlyargs, *every.args, *every.kwonlyargs]
  more = [each for each in (every.vararg, every.kwarg) if each]
  return {each.arg for each in (*named, *more)} - {'self', 'cls'}


def fields(cls):
  """Public fields of a dataclass or module, without those of its bases."""
  for node in cls.body:
    if isinstance(node, ast.AnnAssign) and node.target.id[0] != '_':
      yield node.target.id


def members(cls):
  """Names that are defined in a class: fields, methods, self.NAME."""
  for node in ast.walk(cls):
    if isinstance(node, FUNCTIONS):
      yield node.name
    elif isinstance(getattr(node, 'ctx', None), ast.Store):
      yield getattr(node, 'id', None) or getattr(node, 'attr', None)


def raised(node, caught=frozenset()):
  """Errors that the body of a function itself raises, and does not catch."""
  for child in ast.iter_child_nodes(node):
    if isinstance(child, (*FUNCTIONS, ast.Lambda)):
      continue
    if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
      yield from {ast.unparse(child.exc.func)} - caught
    if isinstance(child, ast.Try):
      names = {
        name.id
        for handler in child.handlers
        for name in ast.walk(handler.type or ast.Tuple([]))
        if isinstance(name, ast.Name)
      }
      body = ast.Module(child.body, [])
      rest = [*child.handlers, *child.orelse, *child.finalbody]
      yield from raised(body, caught | names)
      yield from raised(ast.Module(rest, []), caught)
    else:
      yield from raised(child, caught)


def mentions(text, name):
  return re.search(rf'\b{name}\b', text) is not None


def test_every_public_name_has_a_docstring_or_inherits_one():
  assert [name for name, *of in SURFACE if not docs(*of)] == []


def test_arguments_and_attributes_of_docstrings_exist():
  wrong = []
  for name, node, _ in SURFACE:
    text = ast.get_docstring(node) or ''
    if isinstance(node, ast.ClassDef):
      every = {m for cls in lineage(node) for m in members(cls)}
      init = [m for m in node.body if getattr(m, 'name', '') == '__init__']
      known = {'Attributes': every}
      known['Args'] = parameters(init[0]) if init else every
    else:
      known = {'Args': parameters(node)}
    for heading, names in known.items():
      wrong += [
        f'{name}({entry})'
        for entry in entries(text, heading)
        if entry not in names
      ]
  assert wrong == []


def test_what_a_function_raises_is_in_its_docstring():
  wrong = [
    f'{name} raises {error}'
    for name, node, owner in SURFACE
    # A command ends with exit code 2 and the message, see docs/cli.md.
    if isinstance(node, FUNCTIONS) and node.name != 'main'
    for error in ERRORS & set(raised(node))
    if not mentions(docs(node, owner), error)
  ]
  assert wrong == []


def test_every_public_field_is_explained():
  wrong = []
  for name, node, _ in SURFACE:
    if isinstance(node, ast.ClassDef):
      text = docs(node, None)
      # Every key of the config has its meaning there, see test_reference.py.
      if 'configs/default.py' not in text:
        wrong += [f'{name}.{f}' for f in fields(node) if not mentions(text, f)]
  assert wrong == []


@pytest.mark.parametrize('name', CONTRACTS)
def test_the_hooks_of_a_contract_say_their_parameters(name):
  cls = CLASSES[name]
  wrong = []
  for node in cls.body:
    if isinstance(node, FUNCTIONS) and node.name[0] != '_':
      text = f'{ast.get_docstring(node)}\n{ast.get_docstring(cls)}'
      wrong += [
        f'{node.name}({each})'
        for each in sorted(parameters(node))
        if not mentions(text, each)
      ]
  assert wrong == []
