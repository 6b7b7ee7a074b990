"""Operations of a program, and how many wait for each other, on its jaxpr.

XLA's own count takes the body of a loop once, however often it runs, and
counts what a backend added; this one is of the program as written.
"""

from __future__ import annotations

import math

import jax
from jax.extend import core


def count(function, *args) -> int:
  """Operations of the matrix products and convolutions of function(*args).

  Two a multiply-add; a scan's body counts as often as it runs, and of the
  branches of a condition the costliest.

  Args:
    function: traceable by jax.
    *args: arrays or ShapeDtypeStructs.

  Raises:
    ValueError: a product stands in a while loop or in a kernel, which do not
      say how often it runs.
  """
  return _of_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def depth(function, *args) -> int:
  """Products of function(*args) of which each needs the result of another.

  The longest such chain: what no number of processors can do at once. A scan
  is as deep as its body, as often as it runs.

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
    raise ValueError(f'how often a {name} runs its products is not known')
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
