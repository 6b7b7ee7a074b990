"""Parameters here and tensors of a file: one table, two directions."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from selfattn.pretrained.folder import Tensor, check_dtype
from selfattn.pretrained.model import From, Model

# Name, in the file, of a parameter of a module of Flax.
_LEAVES = {
  'kernel': 'weight',
  'scale': 'weight',
  'embedding': 'weight',
  'bias': 'bias',
}
# Leaves whose last axes are input and output; those of experts are stacked.
_MATRICES = ('kernel', 'in', 'gated', 'out')
_BLOCK = re.compile(r'\bblock_(\d+)\b')
_TOKEN_HEAD = re.compile(r'^token_head_vocabulary/')
_WORD_HEAD = re.compile(r'^token_head_words/dense/')

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Source:
  """Where one parameter is.

  Attributes:
    names: of its tensor, or of several that are stacked.
    of: how it stands in them; its name is a pattern.
    before: output channels of the parts before this one.
    total: output channels of all parts.
  """

  names: tuple[str, ...]
  of: From
  before: int = 0
  total: int = 0


def by_path(params: Any) -> dict[str, Any]:
  """Leaves of nested parameters by path, as encoder/block_0/norm_mlp/scale."""
  return traverse_util.flatten_dict(params, sep='/')


def sources(model: Model, params: Any, names: Any = ()) -> dict[str, Source]:
  """Where each parameter is that the model has a row for, by path.

  Args:
    params: nested, arrays or what has their shapes.
    names: of the tensors of a file, from which it is found whether names begin
      with the prefix of the model; empty: they do.
  """
  shapes = {path: leaf.shape for path, leaf in by_path(params).items()}
  prefix, heads = _prefix(model, names), dict(model.heads)
  if model.word_head:
    heads['word_head'] = model.word_head
  found: dict[str, tuple[str, From]] = {}
  for path in shapes:
    generic = _TOKEN_HEAD.sub('vocabulary_head/', _BLOCK.sub('block_*', path))
    generic = _WORD_HEAD.sub('word_head/', generic)
    row, begin = _row(model.rows, generic), prefix
    if row is None:
      row, begin = _row(heads, generic), ''
    if row is not None:
      layer = _BLOCK.search(path)
      name = begin + row.name.replace('*', layer[1] if layer else '*')
      found[path] = name, row
  return {
    path: _source(path, name, row, found, shapes)
    for path, (name, row) in found.items()
  }


def _prefix(model: Model, names: Iterable[str]) -> str:
  """What names begin with; the prefix of the model if there are none."""
  dot, names = f'{model.prefix}.' if model.prefix else '', list(names)
  return dot if not names or any(n.startswith(dot) for n in names) else ''


def merged(model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """The tensors of a file, those with two names by the one of the model.

  A matrix of embeddings that is the output layer, too, may have either name.

  Raises:
    ValueError: the file has both, and they differ.
  """
  tensors, prefix = dict(tensors), _prefix(model, tensors)
  twins, head = dict(model.twins), model.vocabulary_head
  output = _row(model.heads, 'vocabulary_head/kernel')
  table = _row(model.rows, 'embed/embedding')
  if head and head.get('tied', True) and output and table:
    twins[output.name] = table.name
  for other, name in twins.items():
    name = prefix + name
    if other not in tensors:
      continue
    twin = tensors.pop(other)
    known = tensors.setdefault(name, twin)
    if known is twin:
      continue
    if not np.array_equal(known.read(), twin.read()):
      raise ValueError(
        f'{other} and {name} differ, and config.json says that they are the '
        'same: set tie_word_embeddings to false there'
      )
  return tensors


def check_complete(
  sources: Mapping[str, Source], tensors: Mapping[str, Tensor]
) -> None:
  """Raises ValueError for a parameter of the encoder that a file lacks."""
  needed = [
    name
    for path, source in sources.items()
    if path.startswith(('embed/', 'encoder/', 'token_type/'))
    for name in source.names
  ]
  absent = [name for name in needed if name not in tensors]
  if absent:
    some = next(iter(tensors), 'none')
    raise ValueError(
      f'the file lacks {len(absent)} of the {len(needed)} tensors of such a '
      f'model, as {absent[0]}; it has {some}'
    )


def _row(rows: Mapping[str, str | From], path: str) -> From | None:
  """The row of a parameter: its own, or that of its module."""
  module, _, leaf = path.rpartition('/')
  if path in rows:
    row, suffix = rows[path], ''
  elif module in rows and leaf in _LEAVES:
    row, suffix = rows[module], f'.{_LEAVES[leaf]}'
  else:
    return None
  row = From(row) if isinstance(row, str) else row
  transposes = row.transposes and leaf in _MATRICES
  return dataclasses.replace(row, name=row.name + suffix, transposes=transposes)


def _source(path, name, row: From, found, shapes: Shapes) -> Source:
  shape = shapes[path]
  if '+' in row.name:
    names = tuple(name.replace('+', str(n)) for n in range(shape[0]))
    return Source(names, row)
  parts = sorted(
    (other.part, shapes[p][-1])
    for p, (other_name, other) in found.items()
    if other_name == name
  )
  before = sum(size for part, size in parts if part < row.part)
  return Source((name,), row, before, sum(size for _, size in parts))


def missing(sources: Mapping[str, Source], params, tensors) -> list[str]:
  """Paths of the parameters that a file does not have."""
  return [
    path
    for path in by_path(params)
    if path not in sources
    or any(name not in tensors for name in sources[path].names)
  ]


def unexpected(
  model: Model, sources: Mapping[str, Source], tensors
) -> list[str]:
  """Names of the tensors of a file that are no parameter."""
  used = {name for source in sources.values() for name in source.names}
  return [
    name
    for name in tensors
    if name not in used
    and not any(fnmatch.fnmatch(name, known) for known in model.ignored)
    and not any(fnmatch.fnmatch(name, f'*{n}') for n in model.constants)
  ]


def check_constants(model: Model, tensors: Mapping[str, Tensor]) -> None:
  """Raises ValueError for a constant that is another number, but rounded."""
  for pattern, value in model.constants.items():
    for name in fnmatch.filter(tensors, f'*{pattern}'):
      found = float(tensors[name].read())
      if abs(found - value) > 1e-2 * abs(value):
        raise ValueError(f'{name} = {found} must be {value}')


def constants(model: Model) -> dict[str, np.ndarray]:
  """Tensors of a file that hold constants, by name."""
  dot = f'{model.prefix}.' if model.prefix else ''
  return {
    dot + name.replace('*', str(layer)): np.array(value, np.float32)
    for name, value in model.constants.items()
    for layer in range(model.num_layers)
  }


def check(sources, params, tensors: Mapping[str, Tensor]) -> None:
  """Raises ValueError for a tensor of a wrong shape, or that is not read."""
  for path, leaf in by_path(params).items():
    for name in sources[path].names if path in sources else ():
      tensor = tensors.get(name)
      if tensor is None:
        continue
      check_dtype(name, tensor)
      want = _shape(sources[path], leaf.shape)
      if _squeezed(tensor.shape) != _squeezed(want):
        raise ValueError(
          f'{name} of shape {list(tensor.shape)} must be {list(want)}, for the '
          f'parameter {path} of shape {list(leaf.shape)}'
        )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
  return tuple(size for size in shape if size != 1)


def _shape(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape of each tensor of a parameter of this shape."""
  if len(source.names) > 1 or '+' in source.of.name:
    shape = shape[1:]
  else:
    shape = (*shape[:-1], source.total)
  if not source.of.transposes or len(shape) < 2:
    return shape
  *before, rows, columns = shape
  return (*before, columns, rows)


def read(
  sources: Mapping[str, Source],
  params: Any,
  tensors: Mapping[str, Tensor],
  place: Callable[[str, np.ndarray], Any],
) -> Iterator[tuple[str, Any]]:
  """Yields (path, array) of each parameter that the file has, one by one.

  Args:
    params: nested, of which the shapes are read.
    place: from the path and a float32 array of NumPy to what is kept of it.
  """
  for path, leaf in by_path(params).items():
    source = sources.get(path)
    if source is None or any(name not in tensors for name in source.names):
      continue
    arrays = [
      _part(tensors[name].read(), source, leaf.shape) for name in source.names
    ]
    array = np.stack(arrays) if '+' in source.of.name else arrays[0]
    array = np.asarray(array, np.float32, order='C').reshape(leaf.shape)
    yield path, place(path, array)


def _part(array: np.ndarray, source: Source, shape) -> np.ndarray:
  """The part of a tensor that is a parameter of this shape, or one of a stack.

  A view, where nothing has to be copied.
  """
  if source.of.transposes and array.ndim > 1:
    array = array.swapaxes(-1, -2)
  if '+' in source.of.name or source.total == shape[-1]:
    return array
  groups = source.of.groups
  begin, size = source.before // groups, shape[-1] // groups
  grouped = array.reshape(*array.shape[:-1], groups, source.total // groups)
  part = grouped[..., begin : begin + size]
  return part.reshape(*array.shape[:-1], shape[-1])


def write(model: Model, params: Any) -> dict[str, np.ndarray]:
  """Tensors by name, as a file of the model has them.

  Raises:
    ValueError: a parameter has no place in such a file.
  """
  leaves = by_path(params)
  placed = sources(model, params)
  without = [path for path in leaves if path not in placed]
  if without:
    raise ValueError(
      f'{", ".join(without)} have no place in the files of such a model'
    )
  joined: dict[str, list[tuple[int, np.ndarray, From]]] = {}
  for path, source in placed.items():
    array = np.asarray(jax.device_get(leaves[path]))
    stacked = '+' in source.of.name
    arrays = list(array) if stacked else [array]
    for name, one in zip(source.names, arrays, strict=True):
      joined.setdefault(name, []).append((source.of.part, one, source.of))
  return {name: _joined(parts) for name, parts in joined.items()}


def _joined(parts: list[tuple[int, np.ndarray, From]]) -> np.ndarray:
  """The tensor of several parameters, of which each is a part."""
  arrays = [array for _, array, _ in sorted(parts, key=lambda part: part[0])]
  of, array = parts[0][2], arrays[0]
  if len(arrays) > 1:
    lead, groups = array.shape[:-1], of.groups
    grouped = [a.reshape(*lead, groups, a.shape[-1] // groups) for a in arrays]
    array = np.concatenate(grouped, axis=-1)
    array = array.reshape(*lead, sum(a.shape[-1] for a in arrays))
  if of.transposes and array.ndim > 1:
    array = array.swapaxes(-1, -2)
  return np.ascontiguousarray(array)
