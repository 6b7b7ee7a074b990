"""The parts of a classifier, made from settings without touching a device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from experiments.command.errors import UserError
from experiments.settings import registry
from selfattn import positions
from selfattn.contract import Encoder, check_heads
from selfattn.encoders import ENCODERS
from selfattn.heads import HEADS, Head
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS, Pool
from selfattn.positions.sampling import SAMPLINGS, Consecutive


def encoder(
  model, vocab_size: int | None = None, platform: str | None = None
) -> Encoder:
  """The encoder with the sizes that it declares; see selfattn.contract.

  Args:
    model: a ModelSettings.
    vocab_size: V; None: unknown, for checks without parameters.
    platform: that it is compiled for; None: unknown, likewise.

  Raises:
    UserError: an option is out of range.
  """
  cls = ENCODERS[model.encoder.name]
  wanted = sizes(cls)
  with _keyed(model):
    if 'num_heads' in wanted:
      check_heads(model.embed_dim, model.num_heads)
  known: dict[str, Any] = {
    'vocab_size': vocab_size,
    'platform': platform,
    'dtype': jnp.dtype(model.dtype),
    'position': None,
    'normaliser': None,
  }
  if 'normaliser' in wanted:
    name, options = model.normaliser.name, model.normaliser.options
    head_dim = model.embed_dim // model.num_heads
    with prefixed(f'model.normaliser.{name}'):
      known['normaliser'] = NORMALISERS[name](
        model.num_heads, head_dim=head_dim, **options
      )
  given = {
    name: known[name] if name in known else getattr(model, name)
    for name in wanted
  }
  made = cls(**given, **model.encoder.options)
  if 'position' not in wanted:
    return made
  with prefixed('model.position'):
    method = positions.make(
      model.position.blocks,
      model.embed_dim,
      model.num_heads,
      made.causal,
      vocab_size,
    )
  return made.clone(position=method)


def check_encoder(model, made: Encoder, platform: str | None) -> None:
  """Checks that an encoder supports the settings.

  Args:
    platform: of the devices that it will run on; None: not checked.

  Raises:
    UserError: it does not support them.
  """
  drops = model.attention_dropout_rate > 0
  with _keyed(model):
    made.check(model.embed_dim, drops_weights=drops, platform=platform)


def unsupported_cls(model, made: Encoder, num_tokens: int) -> str | None:
  """Encoder.unsupported_cls, with config keys in place of fields."""
  reason = made.unsupported_cls(num_tokens)
  return reason and _with_keys(reason, model)


def pool(model) -> Pool:
  """The pool.

  Raises:
    UserError: an option is out of range.
  """
  made = POOLS[model.pool.name](**model.pool.options)
  with prefixed(f'model.pool_options.{model.pool.name}'):
    made.check()
  return made


def head(model) -> Head:
  """The head of a text; raises as `pool`."""
  made = HEADS[model.head.name](**model.head.options)
  with prefixed(f'model.head.{model.head.name}'):
    made.check()
  return made


def sampling(model) -> Consecutive:
  """The sampling of position ids."""
  chosen = model.position_sampling
  return SAMPLINGS[chosen.name](**chosen.options)


def sizes(cls: type) -> set[str]:
  """Fields of an encoder without a default: the sizes that it declares."""
  return registry.fields(cls) - registry.options(cls).keys()


@contextlib.contextmanager
def prefixed(key: str):
  """Turns a ValueError `OPTION = ...` into a UserError `config.KEY.OPTION`."""
  try:
    yield
  except ValueError as error:
    raise UserError(f'config.{key}.{error}') from None


@contextlib.contextmanager
def _keyed(model):
  """Turns what an encoder raises into a UserError."""
  try:
    yield
  except ValueError as error:
    raise UserError(_with_keys(str(error), model)) from None


def _with_keys(text: str, model) -> str:
  """`NAME = ` of a field of the encoder as the key of the config."""
  keys: Mapping[str, str] = {
    name: f'config.model.encoder.{model.encoder.name}.{name}'
    for name in model.encoder.options
  }
  return re.sub(
    r'\b(\w+)(?= = )',
    lambda found: keys.get(found[1], f'config.model.{found[1]}'),
    text,
  )
