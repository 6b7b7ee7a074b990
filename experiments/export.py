"""Exports a trained run as files that predict without this project.

    bash scripts/run.sh experiments.export --workdir=runs/sst2 --output=exported
    python exported/predict.py "a fine film"

Writes program.bin, the model as jax.export serialises it for CPU, GPU and TPU;
parameters.safetensors; tokenizer.json, the vocabulary; settings.json, the
labels, the config, and whether texts of any length are taken or all are padded
to max_length; and predict.py, an example that reads them. It needs jax,
flatbuffers, numpy, safetensors and tokenizers alone. Tasks of texts export
probabilities, or numbers as the data has them, other tasks logits of each
token. The last line of standard output is one JSON object. One process does
all.
"""

from __future__ import annotations

import os

from experiments.command import app, own_folders
from experiments.command.command_line import define, refuse
from experiments.command.errors import UserError
from experiments.training import run_flags

# Functions import what imports jax: --help and wrong input do not wait.

# What the last line has of settings.json.
_SHOWN = ('step', 'task', 'output', 'length', 'max_length')


def _define(values) -> None:
  define(
    values,
    ('workdir', None, 'Folder of a trained run.'),
    run_flags.CHECKPOINT,
    ('output', None, 'Folder to write to.'),
    ('format', 'jax', 'jax: a program that runs without this project. '
     'transformers: config.json, weights and the tokenizer, of a '
     'run that began with a published model.',
     ('jax', 'transformers')),
    ('head', 'task', 'For transformers: the head of the task, or none, to '
     'leave it out.', ('task', 'none')),
  )  # fmt: skip


def main(values) -> None:
  """Restores a run and writes the files."""
  workdir = app.required(values, 'workdir')
  output = os.path.abspath(app.required(values, 'output'))
  if values.format != 'transformers':
    refuse(values, ('head',), 'is for --format=transformers')
  own_folders.check(output, 'export')
  with run_flags.opened(workdir) as paths:
    if len(paths) > 1:
      raise UserError(
        f'--workdir={workdir} is {len(paths)} folders; give one run'
      )
    (path,) = paths
    app.import_frozen('experiments.training.exports')
    from experiments.command import processes
    from experiments.data import encoding, loading
    from experiments.training import evaluation, exports, published_exports

    processes.require_one('experiments.export')
    run = evaluation.restore_params(path, values.checkpoint)
    tokenizer = encoding.read_tokenizer(path)
    labels = loading.read_facts(path)['labels']
    with own_folders.replaced(output, 'export') as made:
      if values.format == 'transformers':
        result = published_exports.write(
          run, path, tokenizer, labels, made, values.head
        )
      else:
        settings = exports.write(run, tokenizer, labels, made)
        result = {name: settings[name] for name in _SHOWN}
  app.print_result({'path': output} | result)


if __name__ == '__main__':
  app.run(main, _define, __doc__)
