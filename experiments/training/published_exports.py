"""A trained run as a folder that transformers reads, with the same logits."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any, cast

from experiments.command import calls
from experiments.command.errors import UserError
from experiments.data import published
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.learning.tasks import Task
from experiments.learning.text_tasks import TextTask
from experiments.settings import open_models
from experiments.settings.settings import Settings
from experiments.training.evaluation import Evaluated
from selfattn import pretrained
from selfattn.pretrained import Model
from selfattn.pretrained.fields import rope_parameters

# What follows the name of a model in that of a class of transformers.
_ENDS = re.compile(r'(For[A-Z]\w*|LMHeadModel|EncoderModel|Model)$')
_PROBLEMS = {
  'classify': 'single_label_classification',
  'multilabel': 'multi_label_classification',
  'regression': 'regression',
}


def files(settings: Settings, path: str) -> dict[str, str]:
  """The file of a workdir that an export needs, content by name.

  Args:
    path: of the workdir.
  """
  name, file = settings.model.pretrained, open_models.FILE
  if not name or os.path.exists(os.path.join(path, file)):
    return {}
  return {file: json.dumps(open_models.described(name), indent=2)}


def write(
  run: Evaluated,
  path: str,
  tokenizer,
  labels: list[str],
  output: str,
  head: str,
) -> dict[str, Any]:
  """Writes config.json, model.safetensors and the tokenizer.

  Args:
    path: workdir of the run.
    labels: names of the outputs.
    output: an existing folder.
    head: 'task', or 'none' to leave the head of the task out.

  Raises:
    UserError: the format cannot say what the settings are.
  """
  says, task = open_models.stored(path), run.program.task
  if not says:
    raise UserError(
      'config.model.pretrained is empty: the format of transformers is for '
      'runs that begin with a published model'
    )
  pool = run.settings.model.pool
  if task.compares_texts and says['pool'] not in (None, str(pool)):
    raise UserError(
      f'config.model.pool = {pool} is not that of the published folder, whose '
      f'files say {says["pool"]} to sentence-transformers'
    )
  config, model = _said(run.settings, says['config'])
  params: dict[str, Any] = dict(cast(Mapping, run.params))
  kind = 'none'
  if head == 'task':
    kind = _kind(run.settings, task, model)
  else:
    params = {n: x for n, x in params.items() if 'head' not in n}
  architectures = _class(config, kind, task.is_causal)
  for older in ('architectures', 'torch_dtype'):
    config.pop(older, None)
  config |= architectures | {'dtype': 'float32'}
  if kind in ('text', 'words'):
    config |= _labels(run.settings.task.name, labels)
  try:
    pretrained.save(output, model, params, config)
  except ValueError as error:
    raise UserError(f'config.model: {error}') from error
  tokenizer.save(os.path.join(output, 'tokenizer.json'))
  _copy_others(run.settings.model.pretrained, output)
  return {'step': run.step, 'task': str(run.settings.task), 'head': kind}


def _said(settings: Settings, config: dict) -> tuple[dict, Model]:
  """A config.json that says the settings, and what is read from it."""
  model = pretrained.model_of(config)
  if not open_models.changed(settings.model, model):
    return config, model
  position = settings.model.position
  if len(position) == 1 and [c.name for c in position[0]] == ['rotary']:
    length = config.get('max_position_embeddings')
    config = config | rope_parameters(position[0][0].options, length)
    for older in ('rope_scaling', 'rope_theta', 'partial_rotary_factor'):
      config.pop(older, None)
    try:
      model = pretrained.model_of(config)
    except ValueError as error:
      raise UserError(f'config.model.position: {error}') from None
  if changed := open_models.changed(settings.model, model):
    raise UserError(
      f'{changed} cannot be said in a config.json of '
      f'model_type {config["model_type"]!r}'
    )
  return config, model


def _kind(settings: Settings, task: Task, model: Model) -> str:
  """What is predicted; UserError for a head that the format does not have."""
  if isinstance(task, ClassifyTokens) and not task.tied and model.word_head:
    return 'words'
  if task.compares_texts:
    return 'none'
  if not isinstance(task, TextTask):
    if settings.model.token_head and task.tied:
      return 'vocabulary'
    raise UserError(
      f'config.task = {settings.task} has a head of its own, which the format '
      'of transformers does not have; --head=none leaves it out'
    )
  values = open_models.values_of(model)
  for key in ('pool', 'head'):
    call = getattr(settings.model, key)
    theirs = calls.parse(values[f'model.{key}'], open_models.table(key), key)
    if call != theirs:
      raise UserError(
        f'config.model.{key} = {call} cannot be said in the format of '
        f'transformers, whose models have {theirs}; --head=none leaves the '
        'head of the task out'
      )
  return 'text'


def _class(config: dict, kind: str, is_causal: bool) -> dict[str, list[str]]:
  """The field with the class of transformers that has the head.

  Without the name of the class before, there is no such field.
  """
  (before, *_) = config.get('architectures') or ['']
  base = _ENDS.sub('', before)
  if not base:
    return {}
  if kind != 'none' and pretrained.head_of_class(before) == kind:
    return {'architectures': [before]}
  ends = {
    'vocabulary': 'ForCausalLM' if is_causal else 'ForMaskedLM',
    'text': 'ForSequenceClassification',
    'words': 'ForTokenClassification',
    # Without its decoder, the model is of another class.
    'none': 'EncoderModel' if config.get('is_encoder_decoder') else 'Model',
  }
  return {'architectures': [base + ends[kind]]}


def _labels(name: str, labels: list[str]) -> dict[str, Any]:
  return {
    'id2label': dict(enumerate(labels)),
    'label2id': {label: index for index, label in enumerate(labels)},
    'num_labels': len(labels),
    'problem_type': _PROBLEMS.get(name),
  }


def _copy_others(name: str, output: str) -> None:
  """Copies what else the published folder says of its tokenizer and pooling."""
  try:
    folder = published.folder(name)
  except UserError:
    return
  for path, _, names in os.walk(folder):
    for file in names:
      relative = os.path.relpath(os.path.join(path, file), folder)
      is_json = file.endswith('.json') and 'safetensors' not in file
      target = os.path.join(output, relative)
      if is_json and not os.path.exists(target) and relative.count(os.sep) < 2:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(os.path.join(path, file), target)
