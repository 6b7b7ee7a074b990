"""Floating-point and sequential operations of a program, from its jaxpr.

The cost analysis of XLA counts the body of a loop once, and operations that the
compiler adds; here a body counts as often as it runs, and only what is written.
"""

from __future__ import annotations

import math

import jax
from jax.extend import core


def count(function, *args) -> int:
  """Floating-point operations of the matmuls and convolutions of a function.

  A multiply-add counts as two. The body of a scan counts as often as it runs;
  of the branches of a condition, the one with the most operations counts.

  Args:
    function: traceable by jax.
    *args: arrays or ShapeDtypeStructs.

  Raises:
    ValueError: a matmul is in a while loop or a kernel, where the number of its
      repetitions is unknown.
  """
  return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def depth(function, *args) -> int:
  """Number of matmuls and convolutions that have to run one after the other.

  That is the longest chain in which each needs the result of the one before. A
  scan has the depth of its body, times its length.

  Args:
    function, *args: as of `count`.
  """
  return _depth(jax.make_jaxpr(function)(*args).jaxpr)


def _depth(jaxpr) -> int:
  depths: dict = {}
  for equation in jaxpr.eqns:
    before = [
      depths.get(v, 0) for v in equation.invars if isinstance(v, core.Var)
    ]
    inner = [_depth(jaxpr) for jaxpr in _inner(equation.params)]
    own = max(inner, default=0) * equation.params.get('length', 1)
    own += equation.primitive.name in ('dot_general', 'conv_general_dilated')
    total = max(before, default=0) + own
    depths |= {v: total for v in equation.outvars}
  return max(depths.values(), default=0)


def _of_jaxpr(jaxpr) -> int:
  return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation) -> int:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    (contracted, _), _ = params['dimension_numbers']
    left = equation.invars[0].aval
    terms = math.prod(left.shape[axis] for axis in contracted)
    return 2 * terms * math.prod(equation.outvars[0].aval.shape)
  if name == 'conv_general_dilated':
    kernel = equation.invars[1].aval
    out_channels = kernel.shape[params['dimension_numbers'].rhs_spec[0]]
    terms = math.prod(kernel.shape) // out_channels
    return 2 * terms * math.prod(equation.outvars[0].aval.shape)
  inner = [_of_jaxpr(jaxpr) for jaxpr in _inner(params)]
  if name in ('while', 'pallas_call') and any(inner):
    raise ValueError(f'how often a {name} runs its matmuls is unknown')
  if name == 'cond':
    return max(inner)
  return params.get('length', 1) * sum(inner) if name == 'scan' else sum(inner)


def _inner(params):
  for value in params.values():
    for entry in value if isinstance(value, tuple | list) else (value,):
      if isinstance(entry, core.ClosedJaxpr):
        yield entry.jaxpr
      elif isinstance(entry, core.Jaxpr):
        yield entry
