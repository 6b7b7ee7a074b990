"""The files of a published model: config.json and safetensors."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

# Types that are read; all become float32, or what is asked for.
_DTYPES = {
  'F64': np.float64,
  'F32': np.float32,
  'F16': np.float16,
  'BF16': jnp.bfloat16,
}
_INDEX = 'model.safetensors.index.json'


class Tensor(NamedTuple):
  """A tensor of a file, which is not read before `read`.

  Attributes:
    path: of the file.
    dtype: as the file names it.
    shape: of the tensor.
    begin: of its bytes in the file.
  """

  path: str
  dtype: str
  shape: tuple[int, ...]
  begin: int

  def read(self) -> np.ndarray:
    """The elements, mapped from the file; nothing is copied."""
    return np.memmap(
      self.path,
      np.dtype(_DTYPES[self.dtype]),
      mode='r',
      offset=self.begin,
      shape=self.shape or (1,),
    ).reshape(self.shape)


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


def read_config(folder: str) -> dict[str, Any]:
  """The fields of config.json.

  Raises:
    ValueError: there is none, or the weights are quantised.
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
  """
  index = read_json(folder, _INDEX).get('weight_map')
  names = sorted(set(index.values())) if index else ['model.safetensors']
  tensors: dict[str, Tensor] = {}
  for name in names:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
      others = [n for n in os.listdir(folder) if n.endswith(('.bin', '.pth'))]
      hint = f'; {others[0]} is not read: save it again' if others else ''
      raise ValueError(f'{folder} has no {name}{hint}')
    tensors |= _header(path)
  return tensors


def _header(path: str) -> dict[str, Tensor]:
  """The tensors of one file."""
  size = os.path.getsize(path)
  try:
    with open(path, 'rb') as file:
      (length,) = struct.unpack('<Q', file.read(8))
      if length > size - 8:
        raise ValueError('it ends within its header')
      entries = json.loads(file.read(length))
    entries.pop('__metadata__', None)
    tensors = {}
    for name, entry in entries.items():
      begin, end = (8 + length + n for n in entry['data_offsets'])
      shape = tuple(entry['shape'])
      tensors[name] = Tensor(path, entry['dtype'], shape, begin)
      if end > size:
        raise ValueError(f'it ends within {name}')
      known = _DTYPES.get(entry['dtype'])
      if known and end - begin != math.prod(shape) * np.dtype(known).itemsize:
        raise ValueError(f'{name} has another size than its shape')
  except (ValueError, KeyError, TypeError, struct.error) as error:
    raise ValueError(f'{path} is no whole safetensors file: {error}') from error
  return tensors


def check_dtype(name: str, tensor: Tensor) -> None:
  """Raises ValueError for elements that are not read."""
  if tensor.dtype not in _DTYPES:
    raise ValueError(
      f'{name} in {tensor.path} has elements of type {tensor.dtype}, and only '
      f'{", ".join(_DTYPES)} are read'
    )


class Config(dict):
  """Fields of a config.json; some are null, which means their default."""

  def __missing__(self, name: str):
    raise ValueError(f'config.json has no field {name!r}')

  def get(self, name: str, default: Any = None) -> Any:
    """A field; the default where it is missing or null."""
    value = super().get(name)
    return default if value is None else value

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
