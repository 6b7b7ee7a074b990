"""Optimizers: from gradients to updates, before the learning rate.

The weight decay may be traced: runs that differ in it share one program.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import optax
from optax import contrib

from experiments.command import calls, schema
from experiments.command.calls import Call, Table
from experiments.learning import parameter_groups
from experiments.learning.parameter_groups import GROUPS, ParameterGroup
from experiments.learning.schedules import SCHEDULES, Schedule
from selfattn.positions.contract import require


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """The contract of an entry of OPTIMIZERS.

  Attributes:
    only: groups of parameters that it can be the optimizer of; (): any.
    Further fields are its options, each with a default.
  """

  only: ClassVar[tuple[str, ...]] = ()

  def check(self) -> None:
    """ValueError `OPTION = VALUE must be ...` for one that is out of range."""

  def chain(self, decay: optax.GradientTransformation) -> list:
    """The optax transformations before the learning rate.

    Args:
      decay: adds the weight decay to the updates of the parameters that decay.
    """
    raise NotImplementedError


def _check_decay(**options: float) -> None:
  """Decay rates of averages over steps."""
  for name, value in options.items():
    require(0 <= value < 1, name, value, 'at least 0 and less than 1')


def _check_positive(**options: float) -> None:
  for name, value in options.items():
    require(0 < value < math.inf, name, value, 'greater than 0 and finite')


@dataclasses.dataclass(frozen=True)
class Sgd(Optimizer):
  """Stochastic gradient descent; weight decay is added to the gradient.

  Attributes:
    momentum: decay rate of the sum of gradients; 0: no momentum.
    nesterov: whether to look one step ahead (Sutskever et al. 2013).
  """

  momentum: float = 0.9
  nesterov: bool = False

  def check(self):
    _check_decay(momentum=self.momentum)

  def chain(self, decay):
    return [decay, optax.trace(self.momentum, self.nesterov)]


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
  """Adam (Kingma and Ba 2015); weight decay is added to the gradient.

  Attributes:
    b1: decay rate of the mean of gradients.
    b2: decay rate of the mean of their squares.
    eps: added to the root, against a division by zero.
  """

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8

  def check(self):
    _check_decay(b1=self.b1, b2=self.b2)
    _check_positive(eps=self.eps)

  def chain(self, decay):
    return [decay, optax.scale_by_adam(self.b1, self.b2, self.eps)]


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
  """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

  def chain(self, decay):
    return super().chain(decay)[::-1]


@dataclasses.dataclass(frozen=True)
class Lion(Optimizer):
  """Lion: signs of a momentum (Chen et al. 2023), decoupled weight decay.

  Attributes:
    b1: weight of the momentum in the update; the gradient has 1 - b1.
    b2: decay rate of the momentum.
  """

  b1: float = 0.9
  b2: float = 0.99

  def check(self):
    _check_decay(b1=self.b1, b2=self.b2)

  def chain(self, decay):
    return [optax.scale_by_lion(self.b1, self.b2), decay]


@dataclasses.dataclass(frozen=True)
class Muon(Optimizer):
  """Muon: a momentum made orthogonal (Jordan et al. 2024), decoupled decay.

  A matrix is the last two axes of an array, (in, out); axes before them, as of
  a scanned encoder, hold one matrix each. Updates are scaled by
  sqrt(max(1, out / in)).

  Attributes:
    beta: decay rate of the momentum, which is Nesterov's.
    ns_steps: number of Newton-Schulz iterations.
    eps: added to the norm, against a division by zero.
  """

  only: ClassVar[tuple[str, ...]] = ('matrices',)

  beta: float = 0.95
  ns_steps: int = 5
  eps: float = 1e-8

  def check(self):
    _check_decay(beta=self.beta)
    require(self.ns_steps >= 1, 'ns_steps', self.ns_steps, 'at least 1')
    _check_positive(eps=self.eps)

  def chain(self, decay):
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
  'adam': Adam,
  'adamw': AdamW,
  'lion': Lion,
  'muon': Muon,
}
METHODS = Table(OPTIMIZERS, Optimizer)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
  """From gradients to updates.

  Attributes:
    method: the optimizer.
    groups: groups of parameters with an optimizer or a learning rate of their
      own, joined by +, such as matrices(optimizer=muon); empty: none.
    learning_rate: its peak, after warm-up.
    schedule: the learning rate after warm-up: 'cosine' and 'linear' fall to 0
      at train.steps, so a shorter run has a shorter schedule.
    warmup_steps: steps that the learning rate rises over; below 1: a share of
      train.steps.
    weight_decay: rate of weight decay, before learning_rate.
    weight_decay_names: last names of the parameters that have weight decay.
    clip_norm: bound of the norm of the gradient; 0: none.
    label_smoothing: share of a label's probability that all labels get, in
      training.
  """

  method: Call = schema.choice('adamw', METHODS)
  groups: tuple[Call, ...] = schema.choice(
    '', Table(GROUPS, ParameterGroup, joins=True, optional=True)
  )
  learning_rate: float = schema.field(1e-3, schema.ABOVE_0)
  schedule: Call = schema.choice('cosine', Table(SCHEDULES, Schedule))
  warmup_steps: float = schema.field(0.05, schema.at_least(0))
  weight_decay: float = schema.field(0.01, schema.at_least(0))
  weight_decay_names: tuple = ('kernel',)
  clip_norm: float = schema.field(1.0, schema.at_least(0))
  label_smoothing: float = schema.field(0.0, schema.SHARE)

  def __post_init__(self):
    # Two texts of the same optimizer are the same run.
    groups = tuple(map(_canonical, self.groups))
    object.__setattr__(self, 'groups', groups)

  def groups_by_name(self) -> dict[str, ParameterGroup]:
    """The groups, in their order."""
    return {call.label: call.make() for call in self.groups}

  def methods_by_group(self) -> dict[str, Call]:
    """The optimizer of each group; '' stands for all other parameters."""
    methods = {'': self.method}
    for name, group in self.groups_by_name().items():
      methods[name] = self.method
      if group.optimizer:
        methods[name] = _method_of(name, group.optimizer)
    return methods

  def check_parameters(self, params) -> None:
    """UserError for a name or a group that matches none of these parameters."""
    groups = self.groups_by_name()
    parameter_groups.check(params, groups, self.weight_decay_names)


def _method_of(group: str, text: str) -> Call:
  """The optimizer of a group."""
  return calls.parse(text, METHODS, f'optimizer.groups: {group}.optimizer')


def _canonical(group: Call) -> Call:
  """A group with the canonical text of its optimizer."""
  if not group.options.get('optimizer'):
    return group
  text = str(_method_of(group.label, group.options['optimizer']))
  options = {**group.options, 'optimizer': text}
  return dataclasses.replace(group, options=options)
