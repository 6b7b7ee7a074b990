"""What several architectures say in the same fields of a config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
_GATED = {
  'silu': 'swiglu',
  'gelu': 'geglu',
  'gelu_exact': 'geglu_exact',
  'relu': 'reglu',
}


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


def sizes(c: Config, **renamed: str) -> dict[str, Any]:
  """Sizes of a Model, from the names of most config.json files.

  Args:
    renamed: other names of these fields, by their name here.
  """
  names = {
    'vocab_size': 'vocab_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'embed_dim': 'hidden_size',
    'mlp_dim': 'intermediate_size',
  }
  return {ours: c[renamed.get(ours, theirs)] for ours, theirs in names.items()}


def heads(c: Config) -> dict[str, int]:
  """Options of the encoder for KV heads and widths of heads; 0 where usual."""
  H, D = c['num_attention_heads'], c['hidden_size']
  if H < 1:
    raise ValueError(f'config.json: num_attention_heads = {H} is below 1')
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


def layer_types(c: Config, usual: Sequence[str]) -> list[str]:
  """The kind of attention of each layer."""
  return list(c.get('layer_types') or usual)


def windows(types: Sequence[str], size: int | None) -> dict[str, Any]:
  """The option `window` for layers that are of sliding_attention or not.

  Args:
    size: keys that a query sees, itself included; None: all.
  """
  if not size or 'sliding_attention' not in types:
    return {}
  left = {'sliding_attention': (size - 1, 0)}
  pattern = shortest([left.get(kind, (-1, -1)) for kind in types])
  return {'window': pattern[0] if len(pattern) == 1 else tuple(pattern)}


def rope(
  c: Config, kind: str = '', base: float = 10_000.0, fraction: float = 1.0
) -> dict[str, Any]:
  """Options of the position method `rotary`.

  Files of transformers 5 have `rope_parameters`, older ones `rope_theta`,
  `rope_scaling` and `partial_rotary_factor`.

  Args:
    kind: of the layer, for files that have parameters by layer type.
    base, fraction: defaults.

  Raises:
    ValueError: the scaling is not one of this package.
  """
  of_all = mapping(c.get('rope_parameters'))
  given = mapping(of_all.get(kind)) or of_all or mapping(c.get('rope_scaling'))
  given = Config(given)
  scaling = given.get('rope_type') or given.get('type') or 'default'
  if scaling not in _SCALINGS:
    raise ValueError(
      f'config.json: rope_type = {scaling!r} is not supported, only '
      f'{", ".join(_SCALINGS)} are'
    )
  longest = c.get('max_position_embeddings', 1)
  original = int(
    c.get('original_max_position_embeddings')
    or given.get('original_max_position_embeddings')
    or longest
  )
  options = {
    'base': float(given.get('rope_theta') or c.get('rope_theta', base)),
    'fraction': float(
      given.get('partial_rotary_factor')
      or c.get('partial_rotary_factor')
      or fraction
    ),
  }
  if scaling == 'default':
    return options
  factor = float(given.get('factor') or longest / original)
  options |= {'scaling': scaling, 'factor': max(factor, 1.0)}
  # transformers does not look for it in parameters by layer type.
  truncate = bool((of_all or given).get('truncate', True))
  more = _SCALINGS[scaling](given, factor)
  if scaling == 'yarn':
    more['truncate'] = truncate
  if scaling in _WITH_ORIGINAL:
    more['original_length'] = original
  return options | more


def _llama3(given: Mapping[str, Any], factor: float) -> dict[str, Any]:
  del factor
  names = ('low_freq_factor', 'high_freq_factor')
  return {name: float(given[name]) for name in names}


def _yarn(given: Mapping[str, Any], factor: float) -> dict[str, Any]:
  options = {
    'beta_fast': float(given.get('beta_fast') or 32),
    'beta_slow': float(given.get('beta_slow') or 1),
  }
  if given.get('attention_factor') is not None:
    return options | {'amplitude': float(given['attention_factor'])}
  upper, lower = given.get('mscale'), given.get('mscale_all_dim')
  if not upper or not lower:
    return options
  log = 0.1 * math.log(max(factor, 1.0))
  amplitude = (float(upper) * log + 1) / (float(lower) * log + 1)
  return options | {'amplitude': amplitude}


def _longrope(given: Mapping[str, Any], factor: float) -> dict[str, Any]:
  del factor
  options: dict[str, Any] = {
    'pair_factors': tuple(map(float, given['long_factor'])),
    'short_factors': tuple(map(float, given['short_factor'])),
  }
  if given.get('attention_factor') is not None:
    options['amplitude'] = float(given['attention_factor'])
  return options


def _without_options(given: Mapping[str, Any], factor: float) -> dict[str, Any]:
  del given, factor
  return {}


# Further options of each scaling, from its parameters and its factor.
_SCALINGS = {
  'default': _without_options,
  'linear': _without_options,
  'proportional': _without_options,
  'llama3': _llama3,
  'yarn': _yarn,
  'longrope': _longrope,
}
_WITH_ORIGINAL = ('llama3', 'yarn', 'longrope')


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
    'rope_theta': options.get('base', 10_000.0),
  }
  names = {
    'fraction': 'partial_rotary_factor',
    'factor': 'factor',
    'original_length': 'original_max_position_embeddings',
    'low_freq_factor': 'low_freq_factor',
    'high_freq_factor': 'high_freq_factor',
    'beta_fast': 'beta_fast',
    'beta_slow': 'beta_slow',
    'truncate': 'truncate',
    'pair_factors': 'long_factor',
    'short_factors': 'short_factor',
    'amplitude': 'attention_factor',
  }
  needed = {'llama3': ('low_freq_factor', 'high_freq_factor')}
  defaults = {'low_freq_factor': 1.0, 'high_freq_factor': 4.0}
  known = {name: defaults[name] for name in needed.get(scaling, ())}
  for option, value in {**known, **options}.items():
    if option in names:
      given[names[option]] = list(value) if isinstance(value, tuple) else value
  factor, original = options.get('factor', 1.0), options.get('original_length')
  fields: dict[str, Any] = {'rope_parameters': given}
  if scaling in ('yarn', 'longrope') and original and max_length:
    fields['max_position_embeddings'] = max(max_length, int(original * factor))
  return fields
