"""A trained run as files that run without this project.

A folder holds the program as jax.export serialises it, its parameters, the
vocabulary, and what predict.py, which is copied there, needs to know.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from experiments.command import fields
from experiments.command.log import log
from experiments.learning.tasks import Task
from experiments.learning.text_tasks import TextTask
from experiments.settings.settings import Settings
from experiments.training import build
from experiments.training.evaluation import Evaluated
from experiments.workdir import workdir as workdir_lib
from experiments.workdir.checkpoints import leaves
from selfattn.classifier import TextClassifier

_EXAMPLE = pathlib.Path(__file__).parent / 'exported/predict.py'
# The reference backend, which is no kernel, runs on all these platforms.
_PLATFORMS = ('cpu', 'cuda', 'tpu')
_BACKEND = 'reference'


def write(
  run: Evaluated, tokenizer, labels: list[str], output: str
) -> dict[str, Any]:
  """Writes a trained run into a folder; returns its settings.json.

  Labels are the names of the outputs, and the folder `output` exists.
  """
  from safetensors.numpy import save

  program, has_any_length = _exported(run, len(labels))
  task = run.program.task
  output_of, labels_of = 'vector' if task.compares_texts else 'logits', None
  if isinstance(task, TextTask):
    output_of = 'probabilities' if task.has_probabilities else 'values'
    labels_of = labels
  described = {
    'task': str(run.settings.task),
    'output': output_of,
    'labels': labels_of,
    'thresholds': run.fit.get('thresholds'),
    'reads_pairs': run.settings.data.pair_length is not None,
    'max_length': run.settings.data.max_length,
    'length': 'any' if has_any_length else 'max_length',
    'platforms': list(program.platforms),
    'step': run.step,
    'config': run.settings.flat(),
  }
  # The format needs contiguous arrays on the host.
  params = jax.device_get(leaves(run.params))
  arrays = {name: np.array(leaf, order='C') for name, leaf in params.items()}
  for name, content in {
    'program.bin': bytes(program.serialize()),
    'parameters.safetensors': save(arrays),
    'settings.json': json.dumps(described, indent=2) + '\n',
    'tokenizer.json': tokenizer.to_str(pretty=True),
    'predict.py': _EXAMPLE.read_bytes(),
  }.items():
    workdir_lib.write_atomic(os.path.join(output, name), content)
  return described


def _exported(run: Evaluated, num_labels: int) -> tuple[export.Exported, bool]:
  """The program of a run, and whether its texts have any length.

  It takes parameters by name, token ids int32 (batch, length) and the number
  of tokens of each text, int32 (batch,). The batch is of any size.
  """
  size = run.program.classifier.vocab_size
  task = run.program.task
  classifier = _portable(run.settings, size, num_labels, task)
  names, structure = leaves(run.params), jax.tree.structure(run.params)

  def of_row(arrays, tokens_L, length):
    params = jax.tree.unflatten(structure, [arrays[name] for name in names])
    mask_L = jnp.arange(tokens_L.shape[0]) < length
    logits: Any = classifier.apply(
      {'params': params}, tokens_L[None], mask_L[None], is_right_padded=True
    )
    if not isinstance(task, TextTask):
      return logits[0]
    # Calibrated as predict is, unless it is told not to.
    return task.answers(logits[0] / run.fit.get('temperature', 1.0))

  # vmap over rows: the model sees a batch of one, whatever the batch is.
  of_rows = jax.jit(jax.vmap(of_row, (None, 0, 0)))
  shapes = {
    name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    for name, leaf in names.items()
  }

  def exported(shape: str) -> export.Exported:
    batch, length = export.symbolic_shape(shape)
    return export.export(of_rows, platforms=_PLATFORMS)(
      shapes,
      jax.ShapeDtypeStruct((batch, length), jnp.int32),
      jax.ShapeDtypeStruct((batch,), jnp.int32),
    )

  try:
    return exported('batch, length'), True
  # A class that needs a known length may raise any exception.
  except Exception as error:
    length = run.settings.data.max_length
    reason = ' '.join(str(error).split())[:100]
    log(f'texts are padded to {length} tokens, since the model needs: {reason}')
    return exported(f'batch, {length}'), False


def _portable(
  settings: Settings, vocab_size: int, num_labels: int, task: Task
) -> TextClassifier:
  """The classifier, with attention that has no kernels of one platform."""
  model, encoder = settings.model, settings.model.encoder
  if 'backend' in fields.options(encoder.entry):
    options = {**encoder.options, 'backend': _BACKEND}
    encoder = dataclasses.replace(encoder, options=options)
  model = dataclasses.replace(model, encoder=encoder)
  settings = dataclasses.replace(settings, model=model)
  return build.model(settings, vocab_size, num_labels, 'cpu', task)
