"""The parts of a classifier, made from settings without touching a device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from experiments.command import calls, fields
from experiments.command.errors import UserError
from selfattn import positions
from selfattn.contract import Encoder, check_heads
from selfattn.normalisers import Softmax
from selfattn.positions import Position


def encoder(
  model, vocab_size: int | None = None, platform: str | None = None
) -> Encoder:
  """The encoder of ModelSettings with the sizes that it declares.

  V and platform are None for checks without parameters. A UserError says which
  option is out of range.
  """
  names = fields.sizes(model.encoder.entry)
  with _keyed(model):
    has_width = model.encoder.options.get('head_dim')
    if 'num_heads' in names and not has_width:
      check_heads(model.embed_dim, model.num_heads)
  known: dict[str, Any] = {
    'num_layers': model.num_layers,
    'num_heads': model.num_heads,
    'embed_dim': model.embed_dim,
    'mlp_dim': model.mlp_dim,
    'vocab_size': vocab_size,
    'platform': platform,
    'dtype': jnp.dtype(model.dtype),
    'position': None,
    'normaliser': None,
    'experts': None,
  }
  if model.experts and 'experts' in names:
    (experts,) = model.experts
    known['experts'] = experts.make()
    with experts.checked():
      known['experts'].check()
  if 'normaliser' in names:
    known['normaliser'] = _normalisers(model)
  if 'block' in names:
    known['block'] = model.block.make()
    with model.block.checked():
      known['block'].check()
  made = model.encoder.make(**{n: known[n] for n in names if n in known})
  if 'position' not in names:
    return made
  return made.clone(position=_position(model, made.causal, vocab_size))


def _normalisers(model) -> Softmax | tuple[Softmax, ...]:
  """The normaliser, or those of a pattern over layers."""
  made = []
  for (call,) in model.normaliser:
    head_dim = _head_dim(model)
    made.append(call.make(model.num_heads, head_dim=head_dim))
  return made[0] if len(made) == 1 else tuple(made)


def _head_dim(model) -> int:
  """K."""
  usual = model.embed_dim // model.num_heads
  return model.encoder.options.get('head_dim') or usual


def _position(model, causal: bool, vocab_size: int | None) -> Position:
  """The position method, or several joined, or a pattern over layers."""
  options = model.encoder.options
  width = options.get('token_dim') or model.embed_dim
  sizes = width, model.num_heads, causal
  known = {'vocab_size': vocab_size}
  if options.get('head_dim') or options.get('token_dim'):
    known['head_width'] = _head_dim(model)
  pattern = []
  for calls_of_layer in model.position:
    pattern.append({})
    for call in calls_of_layer:
      if call.entry.causal_only and not causal:
        raise UserError(
          f'config.model.position = {call} is defined for keys before their '
          'query alone; it needs a causal encoder, such as '
          "config.model.encoder = 'attention(causal=True)'"
        )
      made = call.make(*sizes, **known)
      pattern[-1][call.label] = made
  text = calls.text(model.position)
  try:
    return positions.layered(pattern)
  except ValueError as error:
    raise UserError(f'config.model.position = {text}: {error}') from None


def unsupported_length(model, made: nn.Module, length: int) -> str | None:
  """Why a model cannot evaluate texts of a length; None if it can."""
  sampling = model.position_sampling
  try:
    sampling.make().max_length(length)
  except ValueError as error:
    return f'config.model.position_sampling = {sampling}: {error}'
  position = getattr(made, 'position', None)
  most = None if position is None else position.max_length()
  if most is None or length <= most:
    return None
  return f'its positions end at {most}'


def check_encoder(model, made: Encoder, platform: str | None) -> None:
  """UserError if an encoder does not support the settings, or the platform."""
  drops = model.attention_dropout_rate > 0
  with _keyed(model):
    made.check(model.embed_dim, drops_weights=drops, platform=platform)


def unsupported_cls(model, made: Encoder, num_tokens: int) -> str | None:
  """Encoder.unsupported_cls, with config keys in place of fields."""
  reason = made.unsupported_cls(num_tokens)
  return reason and _with_keys(reason, model)


@contextlib.contextmanager
def _keyed(model) -> Iterator[None]:
  """Turns what an encoder raises into a UserError."""
  with model.encoder.checked():
    try:
      yield
    except ValueError as error:
      raise UserError(_with_keys(str(error), model)) from None


def _with_keys(text: str, model) -> str:
  """`NAME = ` of a field of the encoder as the key of the config."""
  options = fields.options(model.encoder.entry)
  return re.sub(
    r'\b(\w+)(?= = )',
    lambda name: (
      f'config.model.encoder = {model.encoder}: {name[1]}'
      if name[1] in options
      else f'config.model.{name[1]}'
    ),
    text,
  )
