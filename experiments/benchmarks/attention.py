"""Memory and time of the gradient of one attention call, by length.

One row for each position method with softmax, and for each normaliser without
positions, by backend and length; those that are defined for earlier keys alone
are causal. `embed` hooks are called on the queries. Ratios are to attention
without positions and with softmax, of the same length, backend and causality,
timed alternately. Memory is that of the temporary buffers of the compiled
program; rows that need more than --memory_gib, or whose base does, are not
run.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp

from experiments.benchmarks import alternate, summary, temporary_bytes
from experiments.command.errors import UserError
from experiments.command.log import log
from selfattn.backends import attend
from selfattn.kernels import unsupported_reason
from selfattn.masks import Tokens
from selfattn.normalisers import NORMALISERS, Softmax
from selfattn.positions import POSITIONS, Position
from selfattn.positions.calls import parts_with, with_state
from selfattn.positions.contract import NoPosition


@dataclasses.dataclass(frozen=True)
class Call:
  """An attention call of one length.

  Attributes:
    position: a method, with the same `causal`.
    normaliser: one of NORMALISERS, made.
    backend: one of selfattn.BACKENDS.
    shape: of queries, keys and values, (B, L, H, K).
  """

  position: Position
  normaliser: Softmax
  backend: str
  shape: tuple[int, int, int, int]

  def base(self) -> Call:
    """Without positions, and with softmax."""
    of = self.position
    none = NoPosition(of.embed_dim, of.num_heads, of.causal, vocab_size=1)
    softmax = Softmax(of.num_heads, head_dim=of.head_dim)
    return dataclasses.replace(self, position=none, normaliser=softmax)

  def reason(self) -> str | None:
    """Why the backend does not support the call, or None."""
    return unsupported_reason(
      self.backend,
      platform=jax.default_backend(),
      dtype=jnp.float32,
      head_dim=self.shape[-1],
      has_dropout=False,
      has_softcap=False,
      hooks=self.position.hooks,
      rotated_dim=self.position.rotated_dim,
      normaliser=self.normaliser,
    )


def measure(values) -> list[dict]:
  """One row per length, case and backend.

  Raises:
    UserError: a backend does not support a method or a normaliser.
  """
  cases = [(name, 'softmax') for name in names(values.positions, POSITIONS)]
  cases += [
    ('none', name)
    for name in names(values.normalisers, NORMALISERS)
    if name != 'softmax'
  ]
  lengths = sorted(map(int, values.lengths))
  for case, backend in itertools.product(cases, values.backends):
    reason = _call(*case, backend, lengths[0], values).reason()
    if reason:
      name = case[0] if case[1] == 'softmax' else case[1]
      raise UserError(f'--backends={backend} does not support {name}: {reason}')
  rows = []
  for length in lengths:
    programs = {}
    for case, backend in itertools.product(cases, values.backends):
      row = _row(*case, _call(*case, backend, length, values), programs, values)
      rows.append(row)
      log(' '.join(f'{name}={value}' for name, value in row.items()))
  return rows


def names(listed: list[str], table) -> list[str]:
  """The names that a flag lists; `all` means all names of the table."""
  return list(table) if listed == ['all'] else listed


def _call(position, normaliser, backend, length, values) -> Call:
  """The call of one row, with a method that supports the length."""
  H, K = values.heads, values.head_dim
  classes = POSITIONS[position], NORMALISERS[normaliser]
  causal = any(cls.causal_only for cls in classes)
  make = functools.partial(POSITIONS[position], H * K, H, causal, vocab_size=1)
  method = make()
  if method.length_option and method.max_length() < length:
    method = make(**{method.length_option: length})
  shape = (values.batch, length, H, K)
  return Call(method, classes[1](H, head_dim=K), backend, shape)


def _row(position, normaliser, call: Call, programs: dict, values) -> dict:
  """Memory, times and ratio.

  Args:
    programs: compiled calls of this length and what they need in MiB, by Call;
      this one and its base are added.
  """
  keys = jax.random.split(jax.random.key(0), 3)
  arrays = [jax.random.normal(key, call.shape) for key in keys]
  for one in (call, call.base()):
    if one not in programs:
      program = jax.jit(gradient(one)).lower(*arrays, _params(one)).compile()
      programs[one] = program, temporary_bytes(program) / 2**20
  row = {
    'position': position,
    'normaliser': normaliser,
    'causal': call.position.causal,
    'length': call.shape[1],
    'backend': call.backend,
    'temporary_mib': round(programs[call][1], 3),
  }
  both = call, call.base()
  if max(programs[one][1] for one in both) <= 1024 * values.memory_gib:
    functions = {
      one: functools.partial(programs[one][0], *arrays, _params(one))
      for one in both
    }
    seconds = alternate(functions, values.repetitions)
    row |= summary(seconds[call], seconds[call.base()])
  return row


def _params(call: Call) -> tuple[dict, dict]:
  """Parameters of the method (of model and layer) and of the normaliser."""
  key, method = jax.random.key(1), call.position
  of_method = method.init_model(key) | method.init_layer(key)
  return of_method, call.normaliser.init(key)


def gradient(call: Call):
  """The gradient with respect to queries, keys, values and parameters."""
  method = call.position

  def total(q, k, v, params):
    of_method, of_normaliser = params
    # The input of a layer is as wide as its queries.
    rows, length = q.shape[:2]
    x = q.reshape(rows, length, -1)
    ids = jnp.zeros((rows, length), jnp.int32)
    tokens = Tokens(ids=ids).with_defaults(length)
    for _, part, part_params in parts_with(method, 'embed', of_method):
      x = part.embed(part_params, x, tokens)
    output, _ = attend(
      x.reshape(q.shape),
      k,
      v,
      query_tokens=with_state(method, of_method, x, tokens),
      causal=method.causal,
      position=method,
      position_params=of_method,
      normaliser=call.normaliser,
      normaliser_params=of_normaliser,
      backend=call.backend,
    )
    return (output**2).sum()

  return jax.grad(total, argnums=(0, 1, 2, 3))
