"""Published models of Hugging Face: a folder in, a Flax module out, and back.

    module, variables, tokenizer = pretrained.load('FOLDER')[:3]
    logits_BLV = module.apply(variables, tokens_BL, padding_mask_BL)

A folder has config.json, model.safetensors (or shards of it with their index)
and, often, tokenizer.json. Each entry of ARCHITECTURES is a function from the
fields of config.json to a Model: choices of this package, and a table of where
the parameters are in the file.

Examples of this package have a `folder`, of a Llama of one layer. They begin
with

    >>> from selfattn import pretrained
"""

from __future__ import annotations

import json
import os
import shutil
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
from selfattn.pretrained.fields import usual_names
from selfattn.pretrained.folder import Config, read_config, read_tensors
from selfattn.pretrained.model import Choice, From, Model, module

Architecture = Callable[[Config], Model]
"""The type of an architecture, of this package or one's own.

Examples:
  >>> def of_one_layer(config):
  ...   return pretrained.ARCHITECTURES['llama'](config).replace(num_layers=1)
  >>> pretrained.read_model(folder, of_one_layer).num_layers
  1
"""


class Loaded(NamedTuple):
  """A published model.

  Attributes:
    module: a TextClassifier.
    variables: {'params': ...}, float32.
    tokenizer: a tokenizers.Tokenizer, or None where the folder has none. It
      neither pads nor truncates.
    model: the choices that the module is made of.
    missing: paths of parameters that the file does not have, which are drawn.
    unexpected: names of tensors of the file that the module does not have.

  Examples:
    >>> loaded = pretrained.load(folder)
    >>> loaded.missing, loaded.unexpected
    ([], [])
  """

  module: nn.Module
  variables: Any
  tokenizer: Any
  model: Model
  missing: list[str]
  unexpected: list[str]


def read_model(folder: str, architecture: Architecture | None = None) -> Model:
  """The choices that a folder's config.json makes.

  Args:
    architecture: of one's own; None: that of ARCHITECTURES which config.json
      names as its model_type.

  Raises:
    ValueError: there is no such folder or architecture, or one of the fields
      has a value that is not supported.

  Examples:
    >>> pretrained.read_model(folder).num_layers
    1
  """
  try:
    return model_of(read_config(folder), architecture)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error


def model_of(config: dict, architecture: Architecture | None = None) -> Model:
  """The choices of the fields of a config.json; arguments as of read_model.

  Examples:
    >>> config = pretrained.read_config(folder)
    >>> pretrained.model_of(config | {'num_hidden_layers': 7}).num_layers
    7
  """
  kind = config.get('model_type')
  if architecture is None:
    if kind not in ARCHITECTURES:
      raise ValueError(
        f'model_type = {kind!r} is not one of '
        f'{", ".join(sorted(ARCHITECTURES))}'
      )
    architecture = ARCHITECTURES[kind]
  model = architecture(usual_names(config))
  # That of few architectures is on the hidden layer of their networks, too.
  options = {'hidden_dropout': False, **model.block.options}
  return model.replace(block=Choice(model.block.name, options))


def read_tokenizer(folder: str):
  """The tokenizer of a folder; None: it has none.

  What the file says of padding and of truncation is left out.

  Raises:
    ValueError: tokenizer.json cannot be read.

  Examples:
    >>> pretrained.read_tokenizer(folder) is None  # without a tokenizer.json
    True
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


# Pools of this package, by their names in files of sentence-transformers, of
# which older ones have a flag for each.
_POOLS = {'cls': 'first', 'mean': 'mean', 'max': 'max', 'lasttoken': 'last'}
_FLAGS = {
  'cls_token': 'cls',
  'mean_tokens': 'mean',
  'max_tokens': 'max',
  'lasttoken': 'lasttoken',
}
_MODULES = ('Transformer', 'Pooling', 'Normalize')


def read_pool(folder: str) -> str | None:
  """The pool of a folder of sentence-transformers; None: it says none.

  Raises:
    ValueError: it is no pool of this package, or something follows it.

  Examples:
    >>> pretrained.read_pool(folder) is None  # of no sentence-transformers
    True
  """
  for kind in folder_lib.read_modules(folder):
    if kind not in _MODULES:
      raise ValueError(
        f'{folder}: its modules.json has the module {kind}, and only '
        f'{", ".join(_MODULES)} are supported; without that file, the folder '
        'is read as that of its Transformer'
      )
  options = folder_lib.read_json(folder, '1_Pooling/config.json')
  chosen = options.get('pooling_mode', [])
  chosen = [chosen] if isinstance(chosen, str) else list(chosen)
  start = 'pooling_mode_'
  chosen += [
    _FLAGS.get(name.removeprefix(start), name.removeprefix(start))
    for name in options
    if name.startswith(start) and options[name]
  ]
  if not chosen:
    return None
  if len(set(chosen)) > 1 or chosen[0] not in _POOLS:
    raise ValueError(
      f'{folder}: the pooling {" and ".join(chosen)} is not supported, only '
      f'one of {", ".join(_POOLS)} is'
    )
  return _POOLS[chosen[0]]


def read_ends(folder: str) -> list[int]:
  """Ids of the tokens that end a text, in generation; [] if it says none.

  Examples:
    >>> pretrained.read_ends(folder)
    [2]
  """
  says = folder_lib.read_json(folder, 'generation_config.json')
  ends = says.get('eos_token_id', read_config(folder).get('eos_token_id'))
  return ends if isinstance(ends, list) else [] if ends is None else [ends]


def read_labels(folder: str) -> list[str]:
  """Names of the outputs of a folder's classifier, in order.

  transformers leaves two outputs without names out.

  Examples:
    >>> pretrained.read_labels(folder)
    ['LABEL_0', 'LABEL_1']
  """
  config = Config(read_config(folder))
  names = folder_lib.mapping(config.get('id2label'))
  if names:
    return [str(names[index]) for index in sorted(names, key=int)]
  return [f'LABEL_{index}' for index in range(config.get('num_labels', 2))]


# The head of a class of transformers, by the end of its name.
_HEADS = {
  # It tells which tokens were replaced.
  'ElectraForPreTraining': 'none',
  'ForCausalLM': 'vocabulary',
  'LMHeadModel': 'vocabulary',
  'ForMaskedLM': 'vocabulary',
  'ForPreTraining': 'vocabulary',
  'ForSequenceClassification': 'text',
  'ForTokenClassification': 'words',
}


def head_of_class(name: str) -> str:
  """The head of a class of transformers: vocabulary, text, words or none.

  Examples:
    >>> pretrained.head_of_class('BertForSequenceClassification')
    'text'
  """
  ends = [end for end in _HEADS if name.endswith(end)]
  return _HEADS[ends[0]] if ends else 'none'


def default_head(folder: str) -> str:
  """The head of the class that wrote a folder, as of `head_of_class`.

  Examples:
    >>> pretrained.default_head(folder)
    'vocabulary'
  """
  (name, *_) = read_config(folder).get('architectures') or ['']
  return head_of_class(name)


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
    head: 'vocabulary', 'text', 'words' or 'none', see `module`; None: that of
      the class which wrote the folder. 'none' has the pool of
      1_Pooling/config.json, if the folder has that file.
    num_classes: of a head for texts, or words; None: those of config.json.
    dtype: of the computation; parameters are float32.
    architecture: see `read_model`.
    key: of parameters that the file does not have; None: jax.random.key(0).
    place: from the path of a parameter and its array to where it belongs, such
      as a jax.device_put with a sharding; None: jnp.asarray. Arrays are read
      one after another.

  Raises:
    ValueError: see `read_model`; a tensor has another shape than config.json
      says, or a type that is not read; or the file has none of a layer.

  Examples:
    >>> module, variables, *_ = pretrained.load(folder)
    >>> tokens_BL, mask_BL = jnp.ones((2, 5), int), jnp.ones((2, 5), bool)
    >>> module.apply(variables, tokens_BL, mask_BL).shape
    (2, 5, 50)
  """
  model, head = read_model(folder, architecture), head or default_head(folder)
  if head == 'none' and (pool := read_pool(folder)):
    model = model.replace(pool=Choice(pool))
  if num_classes is None:
    num_classes = len(read_labels(folder))
  made = module(model, head, num_classes, dtype)
  abstract = abstract_params(made)
  tensors = tensors_lib.merged(model, read_tensors(folder))
  sources = tensors_lib.sources(model, abstract, tensors)
  tensors_lib.check(sources, abstract, tensors)
  tensors_lib.check_complete(sources, tensors)
  tensors_lib.check_constants(model, tensors)
  place = place or (lambda _, array: jnp.asarray(array))
  leaves = dict(tensors_lib.read(sources, abstract, tensors, place))
  missing = tensors_lib.missing(sources, abstract, tensors)
  if missing:
    drawn = _drawn(made, jax.random.key(0) if key is None else key, missing)
    leaves |= {path: place(path, np.asarray(x)) for path, x in drawn.items()}
  params = traverse_util.unflatten_dict(leaves, sep='/')
  unexpected = tensors_lib.unexpected(model, sources, tensors)
  variables = {'params': params}
  tokenizer = read_tokenizer(folder)
  return Loaded(made, variables, tokenizer, model, missing, unexpected)


def abstract_params(made: nn.Module) -> Any:
  """Shapes and types of the parameters of a module, nested.

  Examples:
    >>> made = pretrained.module(pretrained.read_model(folder))
    >>> pretrained.abstract_params(made)['embed']['embedding'].shape
    (50, 12)
  """
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

  Examples:
    >>> import tempfile
    >>> config, loaded = pretrained.read_config(folder), pretrained.load(folder)
    >>> params = loaded.variables['params']
    >>> with tempfile.TemporaryDirectory() as copy:
    ...   pretrained.save(copy, loaded.model, params, config)
    ...   pretrained.load(copy).missing
    []
  """
  from safetensors.numpy import save_file

  arrays = tensors_lib.write(model, params) | tensors_lib.constants(model)
  os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, 'config.json')
  with open(path, 'w') as file:
    json.dump(config, file, indent=2, sort_keys=True)
    file.write('\n')
  of_tensors = os.path.join(folder, 'model.safetensors')
  save_file(arrays, of_tensors, metadata={'format': 'pt'})
  # That of save_file is private to the user.
  shutil.copymode(path, of_tensors)


__all__ = [
  'ARCHITECTURES',
  'Architecture',
  'Choice',
  'Config',
  'From',
  'Loaded',
  'Model',
  'abstract_params',
  'default_head',
  'head_of_class',
  'load',
  'model_of',
  'module',
  'read_config',
  'read_ends',
  'read_labels',
  'read_model',
  'read_pool',
  'read_tensors',
  'read_tokenizer',
  'save',
]
