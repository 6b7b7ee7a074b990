"""Published models of Hugging Face: a folder in, a Flax module out, and back.

    module, variables, tokenizer = pretrained.load('FOLDER')[:3]
    logits_BLV = module.apply(variables, tokens_BL, padding_mask_BL)

A folder has config.json, model.safetensors (or shards of it with their index)
and, often, tokenizer.json. Each entry of ARCHITECTURES is a function from the
fields of config.json to a Model: choices of this package, and a table of where
the parameters are in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from selfattn.pretrained import folder as folder_lib
from selfattn.pretrained import tensors as tensors_lib
from selfattn.pretrained.architectures import ARCHITECTURES
from selfattn.pretrained.folder import Config, read_config, read_tensors
from selfattn.pretrained.model import Choice, From, Model, module

Architecture = Callable[[Config], Model]


class Loaded(NamedTuple):
  """A published model.

  Attributes:
    module: a TextClassifier.
    variables: {'params': ...}, float32.
    tokenizer: a tokenizers.Tokenizer, or None where the folder has none. It
      neither pads nor truncates.
    model: the choices that the module is made of.
    new: paths of parameters that the file does not have, which are drawn.
    unused: names of tensors of the file that the module does not have.
  """

  module: nn.Module
  variables: Any
  tokenizer: Any
  model: Model
  new: list[str]
  unused: list[str]


def read_model(folder: str, architecture: Architecture | None = None) -> Model:
  """The choices that a folder's config.json makes.

  Args:
    architecture: of one's own; None: that of ARCHITECTURES which config.json
      names as its model_type.

  Raises:
    ValueError: there is no such folder or architecture, or one of the fields
      has a value that is not supported.
  """
  try:
    return model_of(read_config(folder), architecture)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error


def model_of(config: dict, architecture: Architecture | None = None) -> Model:
  """The choices of the fields of a config.json; arguments as of read_model."""
  kind = config.get('model_type')
  if architecture is None:
    if kind not in ARCHITECTURES:
      raise ValueError(
        f'model_type = {kind!r} is not one of '
        f'{", ".join(sorted(ARCHITECTURES))}'
      )
    architecture = ARCHITECTURES[kind]
  return architecture(Config(config))


def read_tokenizer(folder: str):
  """The tokenizer of a folder; None: it has none.

  What the file says of padding and of truncation is left out.

  Raises:
    ValueError: tokenizer.json cannot be read.
  """
  path = os.path.join(folder, 'tokenizer.json')
  if not os.path.isfile(path):
    return None
  import tokenizers

  try:
    tokenizer = tokenizers.Tokenizer.from_file(path)
  # The library raises bare Exception for a file that it cannot parse.
  except Exception as error:
    raise ValueError(f'{path} is no tokenizer: {error}') from error
  tokenizer.no_padding()
  tokenizer.no_truncation()
  return tokenizer


def read_pool(folder: str) -> str | None:
  """The pool of a folder of sentence-transformers; None: it says none."""
  modes = folder_lib.read_json(folder, os.path.join('1_Pooling', 'config.json'))
  start = 'pooling_mode_'
  names = {'cls_token': 'first', 'mean_tokens': 'mean', 'max_tokens': 'max'}
  names['lasttoken'] = 'last'
  chosen = [
    name.removeprefix(start)
    for name in modes
    if name.startswith(start) and modes[name]
  ]
  if not chosen:
    return None
  if len(chosen) > 1 or chosen[0] not in names:
    raise ValueError(
      f'{folder}: the pooling {" and ".join(chosen)} is not supported, only '
      f'one of {", ".join(names)} is'
    )
  return names[chosen[0]]


def read_labels(folder: str) -> list[str]:
  """Names of the outputs of a folder's classifier, in order; [] without any."""
  config = Config(read_config(folder))
  names = folder_lib.mapping(config.get('id2label'))
  if names:
    return [str(names[index]) for index in sorted(names, key=int)]
  return [f'LABEL_{index}' for index in range(config.get('num_labels', 0))]


def usual_head(folder: str) -> str:
  """The head of the class that wrote a folder: vocabulary, text or none."""
  (kind, *_) = read_config(folder).get('architectures') or ['']
  for head, endings in {
    'vocabulary': (
      'ForCausalLM',
      'LMHeadModel',
      'ForMaskedLM',
      'ForPreTraining',
    ),
    'text': ('ForSequenceClassification',),
  }.items():
    if kind.endswith(endings):
      return head
  return 'none'


def load(
  folder: str,
  head: str | None = None,
  num_classes: int | None = None,
  *,
  dtype: jnp.dtype = jnp.float32,
  architecture: Architecture | None = None,
  key: jax.Array | None = None,
  place: Callable[[str, np.ndarray], jax.Array] | None = None,
) -> Loaded:
  """A published model as a Flax module with its parameters.

  Args:
    folder: with config.json and its weights.
    head: 'vocabulary', 'text' or 'none', see `module`; None: that of the class
      which wrote the folder. 'none' has the pool of 1_Pooling/config.json, if
      the folder has that file.
    num_classes: of a head for texts; None: those of config.json.
    dtype: of the computation; parameters are float32.
    architecture: see `read_model`.
    key: of parameters that the file does not have; None: jax.random.key(0).
    place: from the path of a parameter and its array to where it belongs, such
      as a jax.device_put with a sharding; None: jnp.asarray. Arrays are read
      one after another.

  Raises:
    ValueError: see `read_model`; a tensor has another shape than config.json
      says, or a type that is not read.
  """
  model, head = read_model(folder, architecture), head or usual_head(folder)
  if head == 'none' and (pool := read_pool(folder)):
    model = model.replace(pool=Choice(pool))
  if num_classes is None:
    num_classes = len(read_labels(folder)) or 1
  made = module(model, head, num_classes, dtype)
  abstract = abstract_params(made)
  tensors = read_tensors(folder)
  sources = tensors_lib.sources(model, abstract, tensors)
  tensors_lib.check(sources, abstract, tensors)
  tensors_lib.check_constants(model, tensors)
  place = place or (lambda _, array: jnp.asarray(array))
  leaves = dict(tensors_lib.read(sources, abstract, tensors, place))
  new = tensors_lib.missing(sources, abstract, tensors)
  if new:
    drawn = _drawn(made, jax.random.key(0) if key is None else key, new)
    leaves |= {path: place(path, np.asarray(x)) for path, x in drawn.items()}
  params = traverse_util.unflatten_dict(leaves, sep='/')
  unused = tensors_lib.unused(model, sources, tensors)
  variables = {'params': params}
  return Loaded(made, variables, read_tokenizer(folder), model, new, unused)


def abstract_params(made: nn.Module) -> Any:
  """Shapes and types of the parameters of a module, nested."""
  tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
  mask = jax.ShapeDtypeStruct((1, 2), jnp.bool_)
  key = jax.eval_shape(lambda: jax.random.key(0))
  return jax.eval_shape(made.init, key, tokens, mask)['params']


def _drawn(made: nn.Module, key: jax.Array, paths: list[str]) -> dict[str, Any]:
  """The initial values of some parameters; no other is computed."""

  def init(key):
    tokens = jnp.zeros((1, 2), jnp.int32)
    leaves = tensors_lib.by_path(made.init(key, tokens, tokens == 0)['params'])
    return {path: leaves[path] for path in paths}

  return jax.jit(init)(key)


def save(folder: str, model: Model, params: Any, config: dict) -> None:
  """Writes config.json and model.safetensors, as transformers reads them.

  Args:
    folder: an empty or new one.
    model: that the parameters are of.
    params: nested.
    config: fields of config.json.

  Raises:
    ValueError: a parameter has no place in such a file.
  """
  from safetensors.numpy import save_file

  arrays = tensors_lib.write(model, params) | tensors_lib.constants(model)
  os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, 'model.safetensors')
  save_file(arrays, path, metadata={'format': 'pt'})
  with open(os.path.join(folder, 'config.json'), 'w') as file:
    json.dump(config, file, indent=2, sort_keys=True)
    file.write('\n')


__all__ = [
  'ARCHITECTURES',
  'Architecture',
  'Choice',
  'Config',
  'From',
  'Loaded',
  'Model',
  'abstract_params',
  'load',
  'model_of',
  'module',
  'read_config',
  'read_labels',
  'read_model',
  'read_pool',
  'read_tensors',
  'read_tokenizer',
  'save',
  'usual_head',
]
