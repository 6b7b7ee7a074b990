"""Optimizers and schedules whose numbers may be traced.

A learning rate, a weight decay or a warm-up that is a traced value does not
change the program: runs that differ only in these share one compilation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from experiments.command.errors import UserError, nearest
from experiments.command.values import Choice


@dataclasses.dataclass(frozen=True)
class GroupSettings:
  """What a group of parameters has of its own.

  Attributes:
    name: of its optimizer; '': that of all others.
    learning_rate_scale: factor of the learning rate; may be traced.
  """

  name: str = ''
  learning_rate_scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """How gradients become updates."""

  method: Choice
  groups: Mapping[str, GroupSettings]
  learning_rate: float
  schedule: str
  warmup_steps: float
  weight_decay: float
  weight_decay_names: tuple
  clip_norm: float
  label_smoothing: float

  def optimizer_of(self, group: str) -> str:
    """Name of the optimizer of a group; of '', the rest."""
    own = self.groups[group].name if group else ''
    return own or self.method.name


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """The contract of an entry of OPTIMIZERS.

  Attributes:
    only: groups of parameters that it is for; (): any.
    Further fields are its options; each needs a default, and becomes a key of
    the config.
  """

  only: ClassVar[tuple[str, ...]] = ()

  def chain(self, decay: optax.GradientTransformation) -> list:
    """The optax transformations before the learning rate.

    Args:
      decay: adds the decayed weights of those parameters that decay.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Sgd(Optimizer):
  """Stochastic gradient descent; weight decay is added to the gradient.

  Attributes:
    momentum: 0 is none.
    nesterov: look one step ahead (Sutskever et al. 2013).
  """

  momentum: float = 0.9
  nesterov: bool = False

  def chain(self, decay):
    """As of Optimizer."""
    return [decay, optax.trace(self.momentum, self.nesterov)]


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
  """Adagrad (Duchi et al. 2011); weight decay is added to the gradient."""

  initial_accumulator: float = 0.1
  eps: float = 1e-7

  def chain(self, decay):
    """As of Optimizer."""
    return [decay, optax.scale_by_rss(self.initial_accumulator, self.eps)]


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
  """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8

  def chain(self, decay):
    """As of Optimizer."""
    return [decay, optax.scale_by_adam(self.b1, self.b2, self.eps)]


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
  """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

  def chain(self, decay):
    """As of Optimizer."""
    return super().chain(decay)[::-1]


@dataclasses.dataclass(frozen=True)
class Lamb(AdamW):
  """LAMB: AdamW, each array as far as it is large (You et al. 2020).

  Layers of a scanned encoder are one array.
  """

  eps: float = 1e-6

  def chain(self, decay):
    """As of Optimizer."""
    return [*super().chain(decay), optax.scale_by_trust_ratio()]


@dataclasses.dataclass(frozen=True)
class Lion(Optimizer):
  """Lion: signs of a momentum (Chen et al. 2023), decoupled weight decay."""

  b1: float = 0.9
  b2: float = 0.99

  def chain(self, decay):
    """As of Optimizer."""
    return [optax.scale_by_lion(self.b1, self.b2), decay]


@dataclasses.dataclass(frozen=True)
class Muon(Optimizer):
  """Muon: a momentum made orthogonal (Jordan et al. 2024), decoupled decay.

  A matrix is the last two axes of an array, (in, out); axes before them, as of
  a scanned encoder, hold one matrix each. Updates are scaled by
  sqrt(max(1, out / in)).

  Attributes:
    beta: of the momentum, which is Nesterov's.
    ns_steps: Newton-Schulz iterations.
  """

  only: ClassVar[tuple[str, ...]] = ('matrices',)

  beta: float = 0.95
  ns_steps: int = 5
  eps: float = 1e-8

  def chain(self, decay):
    """As of Optimizer."""
    last_two = contrib.MuonDimensionNumbers(-2, -1)
    orthogonal = contrib.scale_by_muon(
      ns_steps=self.ns_steps,
      beta=self.beta,
      eps=self.eps,
      weight_dimension_numbers=lambda tree: jax.tree.map(
        lambda _: last_two, tree
      ),
    )
    scale = optax.stateless(lambda tree, _: jax.tree.map(_by_shape, tree))
    return [orthogonal, scale, decay]


def _by_shape(update):
  return update * max(1, update.shape[-1] / update.shape[-2]) ** 0.5


OPTIMIZERS: dict[str, type[Optimizer]] = {
  'sgd': Sgd,
  'adagrad': Adagrad,
  'adam': Adam,
  'adamw': AdamW,
  'lamb': Lamb,
  'lion': Lion,
  'muon': Muon,
}


def _is_embedding(path: tuple[str, ...], shape: tuple[int, ...]) -> bool:
  """Token embeddings, those of [CLS] and [MASK], and tables of positions.

  The rates of `complex_order` are angular frequencies, of another scale than
  embeddings, and belong to the rest, as slopes of biases do.
  """
  del shape
  is_table = path[-1] in ('table', 'keys', 'values')
  return path[0] in ('embed', 'cls', 'mask') or (
    'position' in path and is_table
  )


def _is_matrix(path: tuple[str, ...], shape: tuple[int, ...]) -> bool:
  """Kernels of the encoder."""
  return path[0] == 'encoder' and path[-1] == 'kernel' and len(shape) >= 2


# Which parameters a group has, by their path and shape. One that several would
# have is of the first.
GROUPS: dict[str, Callable[[tuple[str, ...], tuple[int, ...]], bool]] = {
  'embeddings': _is_embedding,
  'matrices': _is_matrix,
}


def group_of(path: tuple[str, ...], shape: tuple[int, ...]) -> str:
  """Name of the group of a parameter; '': the rest."""
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


def _constant(progress, step, warmup):
  del step, warmup
  return jnp.ones_like(progress)


def _linear(progress, step, warmup):
  del step, warmup
  return 1 - progress


def _cosine(progress, step, warmup):
  del step, warmup
  return (1 + jnp.cos(jnp.pi * progress)) / 2


def _inverse_sqrt(progress, step, warmup):
  del progress
  warmup = jnp.maximum(warmup, 1)
  return jnp.sqrt(warmup / jnp.maximum(step, warmup))


SCHEDULES = {
  'constant': _constant,
  'linear': _linear,
  'cosine': _cosine,
  'inverse_sqrt': _inverse_sqrt,
}


def schedule(name: str, step, warmup_steps, steps: int) -> jax.Array:
  """Factor of the learning rate for one update, float32.

  A line from 0 to 1 over `warmup_steps`, then the named shape: 'constant' 1,
  'linear' and 'cosine' down to 0 at `steps`, 'inverse_sqrt' as
  sqrt(warmup / step) (Vaswani et al. 2017, equation 3, scaled to peak at 1).

  Args:
    step: updates applied before this one; may be traced.
    warmup_steps: may be traced.
    steps: updates of the whole run.
  """
  step = jnp.asarray(step, jnp.float32)
  warmup = jnp.asarray(warmup_steps, jnp.float32)
  rise = jnp.minimum(1.0, step / jnp.maximum(warmup, 1))
  rise = jnp.where(warmup > 0, rise, 1.0)
  progress = (step - warmup) / jnp.maximum(steps - warmup, 1)
  return rise * SCHEDULES[name](jnp.clip(progress, 0, 1), step, warmup)


def warmup_updates(warmup: float, steps: int) -> float:
  """Updates that the learning rate rises over: an int, if it can be.

  Args:
    warmup: itself, or below 1 a share of the run (as `warmup_steps` of
      Hugging Face transformers 5).
    steps: updates of the whole run.
  """
  if 0 < warmup < 1:
    return round(warmup * steps)
  return int(warmup) if float(warmup).is_integer() else warmup


def check_weight_decay_names(params, endings: tuple[str, ...]) -> None:
  """UserError for one of `endings` that no parameter has for a name.

  Args:
    params: tree of arrays, or of their shapes alone.
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
