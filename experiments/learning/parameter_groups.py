"""Groups of parameters: those that share an optimizer or a learning rate.

A group is a predicate of the path and the shape of a parameter, so it is known
before any parameter is. A parameter that several groups hold is in the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax

from experiments.command.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
  """The contract of an entry of GROUPS.

  Attributes:
    optimizer: optimizer of the group, such as muon(beta=0.9); empty: that of
      config.optimizer.method.
    learning_rate_scale: factor of the learning rate for the group.
  """

  optimizer: str = ''
  learning_rate_scale: float = 1.0

  def holds(self, path: tuple[str, ...], shape: tuple[int, ...]) -> bool:
    """Whether a parameter is in the group.

    Args:
      path: its names in the tree of parameters, such as ('embed', 'embedding').
      shape: its shape.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Embeddings(ParameterGroup):
  """Embeddings of tokens, [CLS] and [MASK], and tables of positions.

  The rates of `complex_order` are angular frequencies, of another scale than
  embeddings, and are not in it, as slopes of biases.
  """

  def holds(self, path, shape):
    del shape
    is_table = path[-1] in ('table', 'keys', 'values')
    return path[0] in ('embed', 'cls', 'mask') or (
      path[-1] == 'embedding' or ('position' in path and is_table)
    )


@dataclasses.dataclass(frozen=True)
class Matrices(ParameterGroup):
  """Kernels of the encoder; those of single channels are no matrices."""

  def holds(self, path, shape):
    is_kernel = path[0] == 'encoder' and path[-1] == 'kernel'
    return is_kernel and len(shape) >= 2 and min(shape[-2:]) > 1


GROUPS: dict[str, type[ParameterGroup]] = {
  'embeddings': Embeddings,
  'matrices': Matrices,
}


def by_group(function: Callable, tree, groups: Mapping[str, ParameterGroup]):
  """A tree of function(name of the group, leaf); '' is the name of no group."""

  def apply(path, leaf):
    names = tuple(entry.key for entry in path)
    holding = (n for n, g in groups.items() if g.holds(names, leaf.shape))
    return function(next(holding, ''), leaf)

  return jax.tree_util.tree_map_with_path(apply, tree)


def check(
  params, groups: Mapping[str, ParameterGroup], endings: tuple[str, ...]
) -> None:
  """UserError for a group without parameters, or an ending that none has.

  Args:
    params: tree of arrays, or of their shapes.
    endings: last names of the parameters that have weight decay.
  """
  held = by_group(lambda name, _: name, params, groups)
  for name in groups.keys() - set(jax.tree.leaves(held)):
    raise UserError(
      f'config.optimizer.groups has {name}, and no parameter of this model is '
      'in that group; leave it out'
    )
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
