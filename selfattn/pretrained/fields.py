"""What several architectures say in the same fields of a config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfattn.positions.rotary import Rotary
from selfattn.pretrained.folder import Config, mapping

# Activations, by their names in config.json.
ACTIVATIONS = {
  'gelu': 'gelu_exact',
  'gelu_python': 'gelu_exact',
  'gelu_new': 'gelu',
  'gelu_fast': 'gelu',
  'gelu_pytorch_tanh': 'gelu',
  'gelu_accurate': 'gelu',
  'relu': 'relu',
  'relu2': 'relu2',
  'silu': 'silu',
  'swish': 'silu',
  'tanh': 'tanh',
  'xielu': 'xielu',
}
# Names of a field in config.json, by the one that is read here.
_ALIASES = {
  'hidden_size': ('d_model', 'n_embd', 'n_embed', 'dim'),
  'num_hidden_layers': ('n_layer', 'n_layers', 'num_layers'),
  'num_attention_heads': ('n_head', 'n_heads', 'num_heads'),
  'head_dim': ('d_kv',),
  'intermediate_size': (
    'd_ff', 'ffn_dim', 'ffn_hidden_size', 'hidden_dim', 'n_inner',
  ),
  'max_position_embeddings': ('n_positions',),
  'hidden_act': ('activation', 'activation_function'),
  'hidden_dropout': (
    'dropout', 'dropout_rate', 'hidden_dropout_prob', 'resid_dropout',
    'resid_pdrop', 'residual_dropout',
  ),
  'attention_dropout': ('attention_probs_dropout_prob', 'attn_pdrop'),
  'rope_theta': ('rotary_emb_base',),
  'partial_rotary_factor': ('rotary_pct',),
}  # fmt: skip
_GATED = {
  'silu': 'swiglu',
  'gelu': 'geglu',
  'gelu_exact': 'geglu_exact',
  'relu': 'reglu',
}


# Kinds of layers, by whether they attend to all tokens.
KINDS = ('sliding_attention', 'full_attention')


def usual_names(config: Mapping[str, Any]) -> Config:
  """Fields of config.json, each by the name that most files have for it.

  A file that has a name of its own does not mean the usual one, if it has both.
  """
  c = Config(config)
  for name, others in _ALIASES.items():
    found = [c.pop(other) for other in others if other in c]
    if found:
      c.pop(name, None)
    known = [value for value in found if value is not None]
    if known:
      c[name] = known[0]
  return c


def activation(name: str) -> str:
  """An activation of this package; ValueError for one that it lacks."""
  if name not in ACTIVATIONS:
    raise ValueError(
      f'the activation {name!r} is not one of {", ".join(ACTIVATIONS)}'
    )
  return ACTIVATIONS[name]


def gated(name: str) -> str:
  """The gated feed-forward network with an activation; ValueError likewise."""
  plain = activation(name)
  if plain not in _GATED:
    raise ValueError(f'no gated network has the activation {name!r}')
  return _GATED[plain]


def sizes(c: Config) -> dict[str, Any]:
  """Sizes of a Model."""
  H = c['num_attention_heads']
  if H < 1:
    raise ValueError(f'config.json: num_attention_heads = {H} is below 1')
  return {
    'vocab_size': c['vocab_size'],
    'num_layers': c['num_hidden_layers'],
    'num_heads': H,
    'embed_dim': c['hidden_size'],
    'mlp_dim': c['intermediate_size'],
  }


def dropout_rates(c: Config, default: float = 0.0) -> dict[str, Any]:
  """Dropout rates of a Model.

  Args:
    default: of files that do not say.
  """
  return {
    'dropout_rate': c.get('hidden_dropout', default),
    'attention_dropout_rate': c.get('attention_dropout', default),
  }


def heads(c: Config) -> dict[str, int]:
  """Options of the encoder for KV heads and widths of heads; 0 where usual."""
  H, D = c['num_attention_heads'], c['hidden_size']
  G, K = c.get('num_key_value_heads', H), c.get('head_dim', D // H)
  return {'num_kv_heads': G % H, 'head_dim': 0 if K * H == D else K}


def shortest(entries: Sequence) -> list:
  """The shortest start of a list that, repeated and cut, is the list."""
  size = next(
    size
    for size in range(1, len(entries) + 1)
    if all(entries[n] == entries[n % size] for n in range(len(entries)))
  )
  return list(entries[:size])


def layer_types(c: Config, is_full: Callable[[int], Any]) -> list[str]:
  """The kind of attention of each layer: one of KINDS.

  Args:
    is_full: whether the layer of a number, from 0, attends to all tokens, in
      files without the field `layer_types`.
  """
  count = c['num_hidden_layers']
  usual = [KINDS[bool(is_full(n))] for n in range(count)]
  types = list(c.get('layer_types', usual))
  if len(types) != count or not set(types) <= set(KINDS):
    raise ValueError(
      f'config.json: layer_types = {types} must be {count} of '
      f'{" and ".join(KINDS)}'
    )
  return types


def windows(types: Sequence[str], size: int | None) -> dict[str, Any]:
  """The option `window` of a decoder, for layers of these kinds.

  Args:
    size: keys that a query sees, itself included; None: all.
  """
  if not size or KINDS[0] not in types:
    return {}
  return sided_windows(types, (size - 1, 0))


def sided_windows(
  types: Sequence[str], sides: tuple[int, int]
) -> dict[str, Any]:
  """The option `window`, of so many tokens before and after a token."""
  pattern = shortest([sides if t == KINDS[0] else (-1, -1) for t in types])
  return {'window': pattern[0] if len(pattern) == 1 else tuple(pattern)}


def rotations(
  c: Config,
  types: Sequence[str],
  usual: Mapping[str, Mapping[str, Any]],
  scaled: Sequence[str] = KINDS[1:],
  fraction: float = 0.0,
) -> list[dict]:
  """Positions of layers whose rotation depends on their kind.

  Args:
    usual: what `rope_parameters` of a kind have where the file does not say.
    scaled: the kinds that `rope_scaling`, of older files, is for.
    fraction: see `rope`.
  """
  given, older = (
    mapping(c.get('rope_parameters')),
    mapping(c.get('rope_scaling')),
  )

  def rotation(kind):
    options = {**usual[kind], **mapping(given.get(kind))}
    options |= older if kind in scaled else {}
    # transformers looks for it beside the kinds.
    options.pop('truncate', None)
    of_kind = Config({**c, 'rope_parameters': options, 'rope_scaling': None})
    return {'rotary': rope(of_kind, fraction=fraction)}

  return shortest([rotation(kind) for kind in types])


# Options of `rotary` by their names in config.json, and those of each scaling.
_OPTIONS = {
  'rope_theta': 'base',
  'partial_rotary_factor': 'fraction',
  'factor': 'factor',
  'original_max_position_embeddings': 'original_length',
  'low_freq_factor': 'low_freq_factor',
  'high_freq_factor': 'high_freq_factor',
  'beta_fast': 'beta_fast',
  'beta_slow': 'beta_slow',
  'truncate': 'truncate',
  'long_factor': 'pair_factors',
  'short_factor': 'short_factors',
  'attention_factor': 'amplitude',
}
_NEEDED = {
  'default': (),
  'linear': (),
  'dynamic': (),
  'proportional': (),
  'llama3': ('low_freq_factor', 'high_freq_factor'),
  'yarn': (),
  'longrope': ('long_factor', 'short_factor'),
}
_OPTIONAL = {
  'yarn': ('beta_fast', 'beta_slow', 'attention_factor', 'truncate'),
  'longrope': ('attention_factor',),
}
_WITH_ORIGINAL = ('dynamic', 'llama3', 'yarn', 'longrope')


def rope(
  c: Config, base: float = 10_000.0, fraction: float = 0.0
) -> dict[str, Any]:
  """Options of the position method `rotary`.

  Files of transformers 5 have `rope_parameters`. Older ones have `rope_theta`,
  `rope_scaling` and `partial_rotary_factor`, and someone may have added them to
  a new one: transformers then takes `rope_scaling` alone.

  Args:
    base: default.
    fraction: default; 0: there is no such field.

  Raises:
    ValueError: the scaling is not one of this package.
  """
  given = mapping(c.get('rope_scaling')) or mapping(c.get('rope_parameters'))
  given = Config(given)
  scaling = given.get('rope_type', given.get('type', 'default'))
  if scaling not in _NEEDED:
    raise ValueError(
      f'config.json: rope_type = {scaling!r} is not supported, only '
      f'{", ".join(_NEEDED)} are'
    )
  options: dict[str, Any] = {
    'base': float(given.get('rope_theta', c.get('rope_theta', base)))
  }
  if fraction:
    name = 'partial_rotary_factor'
    options['fraction'] = float(given.get(name, c.get(name, fraction)))
  if scaling == 'default':
    return options
  longest = c.get('max_position_embeddings', 1)
  name = 'original_max_position_embeddings'
  # That of dynamic grows from the longest text that is said.
  original = longest
  if scaling != 'dynamic':
    original = int(c.get(name, given.get(name, longest)))
  factor = max(float(given.get('factor') or longest / original), 1.0)
  options |= {'scaling': scaling, 'factor': factor}
  if scaling in _WITH_ORIGINAL:
    options['original_length'] = original
  needed, optional = _NEEDED[scaling], _OPTIONAL.get(scaling, ())
  found = {name: given[name] for name in needed}
  found |= {n: given[n] for n in optional if given.get(n) is not None}
  options |= {_OPTIONS[name]: _number(found[name]) for name in found}
  upper, lower = given.get('mscale'), given.get('mscale_all_dim')
  if scaling == 'yarn' and 'amplitude' not in options and upper and lower:
    log = 0.1 * math.log(factor)
    options['amplitude'] = (upper * log + 1) / (lower * log + 1)
  return options


def _number(value: Any) -> Any:
  """A number, or several, as an option has it."""
  if isinstance(value, bool):
    return value
  if isinstance(value, list | tuple):
    return tuple(map(float, value))
  return float(value)


def rope_parameters(
  options: Mapping[str, Any], max_length: int | None
) -> dict[str, Any]:
  """Fields of config.json from options of `rotary`, the inverse of `rope`.

  Args:
    options: those that differ from their defaults.
    max_length: the field max_position_embeddings.
  """
  scaling = options.get('scaling', 'none')
  given: dict[str, Any] = {
    'rope_type': 'default' if scaling == 'none' else scaling,
    'rope_theta': 10_000.0,
  }
  if scaling == 'llama3':
    given |= {'low_freq_factor': 1.0, 'high_freq_factor': 4.0}
  for name, option in _OPTIONS.items():
    if option in options:
      value = options[option]
      given[name] = list(value) if isinstance(value, tuple) else value
  factor = options.get('factor', 1.0)
  original = options.get('original_length', Rotary.original_length)
  if scaling in _WITH_ORIGINAL:
    given['original_max_position_embeddings'] = original
  fields: dict[str, Any] = {'rope_parameters': given}
  if scaling == 'dynamic':
    given['factor'] = factor
    fields['max_position_embeddings'] = original
  if scaling in ('yarn', 'longrope') and max_length:
    fields['max_position_embeddings'] = max(max_length, int(original * factor))
  return fields
