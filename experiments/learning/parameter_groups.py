"""Groups of parameters: those that share an optimizer or a learning rate.

A group is a predicate of the path and the shape of a parameter, so it is known
before any parameter is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax

from experiments.command.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class GroupSettings:
  """How a group of parameters is trained.

  Attributes:
    name: optimizer of the group; '': that of config.optimizer.name.
    learning_rate_scale: factor of the learning rate for the group.
  """

  name: str = ''
  learning_rate_scale: float = 1.0


def _is_embedding(path: tuple[str, ...], shape: tuple[int, ...]) -> bool:
  """Embeddings of tokens, [CLS] and [MASK], and tables of positions.

  The rates of `complex_order` are angular frequencies, of another scale than
  embeddings, and are in no group, as slopes of biases.
  """
  del shape
  is_table = path[-1] in ('table', 'keys', 'values')
  return path[0] in ('embed', 'cls', 'mask') or (
    path[-1] == 'embedding' or ('position' in path and is_table)
  )


def _is_matrix(path: tuple[str, ...], shape: tuple[int, ...]) -> bool:
  """Kernels of the encoder; those of single channels are no matrices."""
  is_kernel = path[0] == 'encoder' and path[-1] == 'kernel'
  return is_kernel and len(shape) >= 2 and min(shape[-2:]) > 1


# Whether a parameter is in a group, by its path and shape. One that matches
# several groups is in the first of them.
GROUPS: dict[str, Callable[[tuple[str, ...], tuple[int, ...]], bool]] = {
  'embeddings': _is_embedding,
  'matrices': _is_matrix,
}


def group_of(path: tuple[str, ...], shape: tuple[int, ...]) -> str:
  """Name of the group of a parameter; '' if it is in none."""
  found = (name for name, holds in GROUPS.items() if holds(path, shape))
  return next(found, '')


def by_group(function: Callable, tree):
  """A tree of function(name of the group, leaf)."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: function(
      group_of(tuple(entry.key for entry in path), leaf.shape), leaf
    ),
    tree,
  )


def check_groups(params, groups: Mapping[str, GroupSettings]) -> None:
  """UserError for a group with its own settings that no parameter is in.

  Args:
    params: tree of arrays, or of their shapes.
  """
  found = set(jax.tree.leaves(by_group(lambda group, _: group, params)))
  for group, wanted in groups.items():
    for field in dataclasses.fields(wanted):
      value = getattr(wanted, field.name)
      if group not in found and value != field.default:
        raise UserError(
          f'config.optimizer.groups.{group}.{field.name} = {value!r} has no '
          'effect: no parameter of this model is in that group; set it to '
          f'{field.default!r}'
        )


def check_weight_decay_names(params, endings: tuple[str, ...]) -> None:
  """UserError for one of `endings` that is the name of no parameter.

  Args:
    params: tree of arrays, or of their shapes.
  """
  paths = jax.tree_util.tree_leaves_with_path(params)
  names = {path[-1].key for path, _ in paths}
  for ending in endings:
    if ending not in names:
      raise UserError(
        f'config.optimizer.weight_decay_names has {ending!r}, and the '
        f'parameters are named {", ".join(sorted(names))}'
        f'{nearest(str(ending), names)}'
      )


def weight_decay_mask(params, endings: tuple[str, ...]):
  """True for each parameter whose own name is one of `endings`."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key in endings, params
  )
