"""The files of a published model: config.json and safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Types that are read; all become float32. NumPy knows bfloat16 by ml_dtypes,
# which jax imports.
_DTYPES = ('F64', 'F32', 'F16', 'BF16')
_INDEX = 'model.safetensors.index.json'


class Tensor(NamedTuple):
  """A tensor of a file, which is not read before `read`.

  Attributes:
    path: of the file.
    name: of the tensor.
    dtype: as the file names it.
    shape: of the tensor.
  """

  path: str
  name: str
  dtype: str
  shape: tuple[int, ...]

  def read(self) -> np.ndarray:
    """The elements, of which the caller has the only copy."""
    from safetensors import safe_open

    # Opened for each: what is mapped would count as memory until it is closed.
    with safe_open(self.path, 'numpy') as file:
      return file.get_tensor(self.name)


def read_json(folder: str, name: str) -> dict[str, Any]:
  """The object of a file; {} without that file.

  Raises:
    ValueError: it is no JSON object.
  """
  path = os.path.join(folder, name)
  try:
    with open(path, encoding='utf-8') as file:
      values = json.load(file)
  except FileNotFoundError:
    return {}
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f'{path} is no JSON: {error}') from error
  if not isinstance(values, dict):
    raise ValueError(f'{path} must hold a JSON object')
  return values


def read_modules(folder: str) -> list[str]:
  """Kinds of the modules of a folder of sentence-transformers; [] of others.

  Raises:
    ValueError: modules.json is no list of modules.
  """
  path = os.path.join(folder, 'modules.json')
  if not os.path.isfile(path):
    return []
  try:
    with open(path, encoding='utf-8') as file:
      return [one['type'].rpartition('.')[2] for one in json.load(file)]
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(f'{path} is no list of modules: {error}') from error


def read_config(folder: str) -> dict[str, Any]:
  """The fields of config.json.

  Raises:
    ValueError: there is none, or the weights are quantised.

  Examples:
    >>> pretrained.read_config(folder)['model_type']
    'llama'
  """
  if not os.path.isfile(os.path.join(folder, 'config.json')):
    raise ValueError(
      f'{folder} has no config.json; give the folder of a published model'
    )
  config = read_json(folder, 'config.json')
  if method := config.get('quantization_config'):
    kind = method.get('quant_method') if isinstance(method, dict) else method
    raise ValueError(
      f'{folder}: its weights are quantised ({kind}), and only float64, '
      'float32, float16 and bfloat16 are read'
    )
  return config


def read_tensors(folder: str) -> dict[str, Tensor]:
  """The tensors of a folder by name, of one file or of all shards.

  Raises:
    ValueError: there is no file, one is damaged, or has a type of elements that
      is not read.

  Examples:
    >>> tensors = pretrained.read_tensors(folder)
    >>> tensors['model.embed_tokens.weight'].shape
    (50, 12)
  """
  whole = 'model.safetensors'
  index = read_json(folder, _INDEX).get('weight_map')
  # As transformers: an index beside a whole file is of an older save.
  if index and not os.path.isfile(os.path.join(folder, whole)):
    names = sorted(set(index.values()))
  else:
    names = [whole]
  tensors: dict[str, Tensor] = {}
  for name in names:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
      raise ValueError(
        f'{folder} has no {name}; if it has other files of weights, load them '
        'by from_pretrained of transformers, and save_pretrained writes it'
      )
    tensors |= _header(path)
  return tensors


def _header(path: str) -> dict[str, Tensor]:
  """The tensors of one file."""
  from safetensors import SafetensorError, safe_open

  try:
    with safe_open(path, 'numpy') as file:
      slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
      return {
        current_name(name): Tensor(
          path, name, part.get_dtype(), tuple(part.get_shape())
        )
        for name, part in slices.items()
      }
  except SafetensorError as error:
    raise ValueError(f'{path} is no whole safetensors file: {error}') from error


def current_name(name: str) -> str:
  """The name of a tensor that may have one of TensorFlow's, as in BERT."""
  for old, new in (('gamma', 'weight'), ('beta', 'bias')):
    name = name.replace(f'LayerNorm.{old}', f'LayerNorm.{new}')
  return name


def check_dtype(name: str, tensor: Tensor) -> None:
  """Raises ValueError for elements that are not read."""
  if tensor.dtype not in _DTYPES:
    raise ValueError(
      f'{name} in {tensor.path} has elements of type {tensor.dtype}, and only '
      f'{", ".join(_DTYPES)} are read'
    )


class Config(dict):
  """Fields of a config.json; some are null, which means their default.

  Examples:
    >>> config = pretrained.Config({'hidden_size': 12, 'head_dim': None})
    >>> config.get('head_dim', 4)
    4
  """

  def __missing__(self, name: str):
    raise ValueError(f'config.json has no field {name!r}')

  def get(self, name: str, default: Any = None) -> Any:
    """A field; the default where it is missing or null."""
    value = super().get(name)
    return default if value is None else value

  def with_defaults(self, **values: Any) -> Config:
    """The fields, with these values of those that are missing."""
    return Config({**values, **self})

  def refuse(self, **allowed: Any) -> None:
    """Raises ValueError for a field that is there with another value.

    Args:
      allowed: the one value of each field that is supported.
    """
    for name, value in allowed.items():
      if self.get(name, value) != value:
        raise ValueError(
          f'config.json: {name} = {self[name]!r} is not supported, only '
          f'{value!r} is'
        )


def mapping(value: Any) -> Mapping[str, Any]:
  """A value that should be an object; {} for anything else."""
  return value if isinstance(value, Mapping) else {}
