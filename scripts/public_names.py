"""Public names of selfattn and their docstrings, read without an import."""

from __future__ import annotations

import ast
import functools
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
# Each says in `__all__` what is public.
MODULES = (
  'selfattn',
  'selfattn.positions',
  'selfattn.normalisers',
  'selfattn.chapters',
  'selfattn.pretrained',
)


def docstrings(module: str) -> dict[str, str]:
  """Docstrings of the names of `__all__` by the path of their definition.

  Names of other packages are left out. One without a docstring has ''.
  """
  (names,) = (
    ast.literal_eval(node.value)
    for node in _tree(module).body
    if isinstance(node, ast.Assign) and '__all__' in _assigned(node)
  )
  found = [_defined(module, name) for name in names]
  return dict(one for one in found if one is not None)


def _defined(module: str, name: str) -> tuple[str, str] | None:
  """Path and docstring of a name of a module, followed through imports.

  None for a name of another package.
  """
  nodes = _tree(module).body
  for node, after in zip(nodes, [*nodes[1:], None], strict=True):
    if isinstance(node, ast.ImportFrom):
      known = {alias.asname or alias.name: alias.name for alias in node.names}
      if name in known:
        source = node.module or ''
        is_own = source.partition('.')[0] == 'selfattn'
        return _defined(source, known[name]) if is_own else None
    elif isinstance(node, ast.ClassDef | ast.FunctionDef):
      if node.name == name:
        return f'{module}.{name}', ast.get_docstring(node) or ''
    elif name in _assigned(node):
      return f'{module}.{name}', _string(after)
  raise ValueError(f'{module} does not define {name}')


def _assigned(node: ast.stmt) -> list[str]:
  """Names that a statement assigns to."""
  targets = []
  if isinstance(node, ast.Assign):
    targets = node.targets
  elif isinstance(node, ast.AnnAssign):
    targets = [node.target]
  return [target.id for target in targets if isinstance(target, ast.Name)]


def _string(node: ast.stmt | None) -> str:
  """The docstring of an assignment, which is the next statement."""
  if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
    return str(node.value.value)
  return ''


@functools.cache
def _tree(module: str) -> ast.Module:
  path = ROOT.joinpath(*module.split('.'))
  is_package = path.is_dir()
  path = path / '__init__.py' if is_package else path.with_suffix('.py')
  return ast.parse(path.read_text(encoding='utf-8'))
