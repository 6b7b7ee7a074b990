"""How attention and encoders call the hooks of a position method.

A method may be several that are joined: each hook is called on each part, with
the parameters and the state of that part, and what it returns is checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from selfattn.arrays import as_floats
from selfattn.layers import ALONE, narrowed
from selfattn.positions.contract import Position
from selfattn.tokens import Tokens


def parts_with(position: Position, hook: str, params):
  """(name, part, parameters of the part) of each part with a hook.

  A single method is its own part, named ''.
  """
  return [
    (name, part, params.get(name, {}) if name else params)
    for name, part in position.parts
    if hook in part.hooks
  ]


def of_part(name: str, query: Tokens, key: Tokens) -> tuple[Tokens, Tokens]:
  """Both sides with the state of one part alone; one object stays one."""
  query_of_part = query.replace(state=(query.state or {}).get(name))
  if key is query:
    return query_of_part, query_of_part
  return query_of_part, key.replace(state=(key.state or {}).get(name))


def with_state(position: Position, params, x_BLD, tokens: Tokens) -> Tokens:
  """Tokens with the state of each part, by name, from a layer's input."""
  state = {}
  for name, part, part_params in parts_with(position, 'state', params):
    state[name] = narrowed(part.state(part_params, x_BLD, tokens))
    for leaf in jax.tree.leaves(state[name]):
      check_returned(part, 'state', leaf, *x_BLD.shape[:2])
  return tokens.replace(state=state or None)


def with_rows(
  position: Position,
  params,
  to_query: Callable[[jax.Array], jax.Array],
  to_key: Callable[[jax.Array], jax.Array],
):
  """Parameters with the projected `rows` of each part.

  Args:
    to_query, to_key: projections of a layer, from (N, D) to (H, N, K).
  """
  for name, part, part_params in parts_with(position, 'rows', params):
    rows_ND = jnp.asarray(part.rows(part_params))
    check_returned(part, 'rows', rows_ND, len(rows_ND), part.embed_dim)
    part_params = part_params | {
      'query_rows': to_query(rows_ND),
      'key_rows': to_key(rows_ND),
    }
    params = params | {name: part_params} if name else part_params
  return params


def embedded(
  position: Position,
  params,
  x_BLD: jax.Array,
  tokens: Tokens,
  names: Sequence[str],
  P: dict,
) -> jax.Array:
  """Vectors after `embed` of the parts of these names.

  Args:
    P: gets what each of them without an encoding added, by name.
  """
  for name, part, part_params in parts_with(position, 'embed', params):
    if name in names:
      before_BLD = x_BLD = as_floats(x_BLD)
      x_BLD = part.embed(part_params, x_BLD, tokens)
      check_returned(part, 'embed', x_BLD, *before_BLD.shape)
      if not part.has_encoding:
        P[name] = x_BLD - before_BLD
  return x_BLD


def sow_by_part(module: nn.Module, P: dict) -> None:
  """Sows `P`, float32: a dict by part, or the array of a single method."""
  if P:
    P = jax.tree.map(lambda x: x.astype(jnp.float32), P)
    module.sow('intermediates', 'P', P.get('', P))


def merged(of_model, of_layer) -> dict:
  """Parameters of a model and of a layer in one tree.

  Raises:
    ValueError: one is a parameter of both.
  """
  both = [traverse_util.flatten_dict(tree) for tree in (of_model, of_layer)]
  for path in both[0].keys() & both[1].keys():
    raise ValueError(
      f'{".".join(path)!r} is a parameter of both the model and of a layer'
    )
  return traverse_util.unflatten_dict(both[0] | both[1])


def check_returned(part, hook: str, x, *axes) -> None:
  """Raises ValueError unless an array that a hook returned has these axes.

  Args:
    part: the position method, or the normaliser.
    hook: its name.
    x: the array; None is allowed.
    axes: sizes, or tuples of the sizes that an axis may have. An array of
      `state` may have further axes.
  """
  if x is None:
    return
  allowed = [size if isinstance(size, tuple) else (size,) for size in axes]
  shape = jnp.shape(x)
  read = shape[: len(axes)] if hook == 'state' else shape
  if len(read) != len(axes) or any(
    size not in sizes for size, sizes in zip(read, allowed, strict=True)
  ):
    said = [' or '.join(map(str, sorted(set(sizes)))) for sizes in allowed]
    said += ['...'] if hook == 'state' else []
    raise ValueError(
      f'{type(part).__name__}.{hook} returned an array of shape {shape}, which '
      f'must be ({", ".join(said)})'
    )


def check_position(
  position: Position,
  embed_dim: int,
  num_heads: int,
  causal: bool,
  head_dim: int | None = None,
) -> None:
  """Raises ValueError unless a method was made for a layer of these sizes.

  Args:
    head_dim: K; None: embed_dim over num_heads.
  """
  if not isinstance(position, Position):
    raise ValueError(
      f'position = {position!r} must be a Position, such as '
      "selfattn.positions.make({'rotary': {}}, embed_dim, num_heads, causal)"
    )
  if position.period > 1:
    raise ValueError(
      'position is a pattern over layers, and an attention is one of them: '
      'give it position.of_layer(index)'
    )
  layer: dict[str, int] = {'num_heads': num_heads, 'causal': causal}
  for _, part in position.parts:
    kind = type(part).__name__
    width = {'embed_dim': embed_dim}
    if part.head_width:
      width = {'head_dim': head_dim or embed_dim // num_heads}
    for name, size in (width | layer).items():
      if getattr(part, name) != size:
        raise ValueError(
          f'{kind} was made with {name} = {getattr(part, name)}, and its '
          f'attention has {name} = {size}; make them the same'
        )
    if part.causal_only and not causal:
      raise ValueError(
        f'{kind} is defined for keys before their query alone: '
        'causal = False must be True'
      )


def check_tokens(position: Position, *sides: Tokens) -> None:
  """Raises ValueError for real positions that a method does not support.

  Args:
    sides: Tokens, from `with_defaults`.
  """
  are_real = any(
    jnp.issubdtype(tokens.positions.dtype, jnp.floating) for tokens in sides
  )
  if not are_real:
    return
  for _, part in position.parts:
    if part.uses_positions and not part.supports_real_positions:
      raise ValueError(
        f'{type(part).__name__} supports integer positions alone, and these '
        'are real numbers'
      )


def check_params(position: Position, params, has_state: bool = False) -> None:
  """Raises ValueError where parameters of hooks of attention are missing.

  Args:
    has_state: whether states are computed already, so that parameters of
      methods with a state may have done their work.
  """
  for name, part in position.parts:
    is_embedding = not part.per_layer and not part.hooks - {'embed'}
    if is_embedding or (has_state and 'state' in part.hooks):
      continue
    known = params.get(name, {}) if name else params
    missing = sorted(_param_names(part) - known.keys())
    if missing:
      raise ValueError(
        f'position_params of {type(part).__name__} have no '
        f'{", ".join(map(repr, missing))}: give what its init_model returns'
      )


def _param_names(part: Position) -> frozenset[str]:
  """Names of the parameters of the model and of a layer."""
  # The cache must not keep an index that is traced.
  part = part.at(ALONE)
  try:
    return _names_once(part)
  except TypeError:  # Options of a method may be lists, which have no hash.
    return _names_once.__wrapped__(part)


@functools.cache
def _names_once(part: Position) -> frozenset[str]:
  key = jax.random.key(0)
  trees = (
    jax.eval_shape(init, key) for init in (part.init_model, part.init_layer)
  )
  return frozenset().union(*trees)
