"""What the models of a sweep do at each place of a text.

    bash scripts/run.sh python scripts/by_place.py --workdir=SWEEP --output=FILE

Of runs of configs/passkey.py, it is the accuracy of retrieval by length of the
text and depth of the keys; of MQAR, whose keys begin a text, by the tenth of
the text that has the question; of language models, bits per byte by position
in a window of 2,048 tokens, in ranges that double. A row of FILE has a setting
and a place, over seeds.
"""

import collections
import json
import sys
from typing import Any

from experiments import predict
from experiments.command import app, provenance
from experiments.command.command_line import define
from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import streams
from experiments.data.recall import Passkey, Recall
from experiments.data.token_labels import NONE
from experiments.sweeps import folder, names
from experiments.sweeps.comparison import interval
from experiments.training import evaluation, lengths
from experiments.workdir import workdir as workdir_lib

# Texts of a batch of retrieval: each has a score for each two of its tokens.
BATCH = 8
WINDOW = 2_048


def accuracies(spec):
  """The accuracy of a run by (length, depth)."""
  data = spec.settings.data
  source = data.source.make()
  rows = source.read('', data.seed)['test']
  classify: Any = predict.load(spec.path, batch_size=BATCH)
  hits = collections.defaultdict(list)
  for index, length in enumerate(source.test_lengths):
    of_length = rows[index :: len(source.test_lengths)]
    answers = classify([row.text for row in of_length])
    for number, answer in enumerate(answers):
      labels = of_length[number].label.split()
      pairs = zip(answer.label, labels, strict=True)
      for place, (said, label) in enumerate(pairs):
        if label != NONE:
          depth = depth_of(source, number, place, length)
          hits[length, depth].append(said == label)
  return {place: sum(of) / len(of) for place, of in hits.items()}


def depth_of(source: Recall, number: int, place: int, length: int) -> int:
  """The depth of the keys, or the tenth of a text that has the question."""
  if isinstance(source, Passkey):
    return source.depth(number)
  return 10 * place // length


def bits(spec):
  """Bits per byte of a run by (first, last) position in a window.

  There are none if it cannot read such a window, and the log says why.
  """
  run = evaluation.restore_params(spec.path, 'best')
  if reason := lengths.unsupported(run.program, WINDOW):
    log(f'trial {spec.index}: {reason}')
    return {}
  data = evaluation.load_data(spec.settings, spec.path, None)
  tokens, size = data.splits['test'].tokens, data.num_bytes['test']
  loss = lengths.evaluate(run, tokens, size, WINDOW, 0, WINDOW)
  return {
    (part['first'], part['last']): streams.bits_per_byte(
      part['loss'], len(tokens), size
    )
    for part in loss.by_position
  }


def check(specs) -> None:
  """UserError unless all runs have ended and can be measured, all alike."""
  for spec in specs:
    status = workdir_lib.read_status(spec.path).get('status', 'PENDING')
    if status != 'DONE':
      raise UserError(f'trial {spec.index} is {status}; run the sweep first')
  settings = [spec.settings for spec in specs]
  are_causal = {of.task.entry.is_causal for of in settings}
  are_recall = {issubclass(of.data.source.entry, Recall) for of in settings}
  if (are_causal, are_recall) not in (({True}, {False}), ({False}, {True})):
    raise UserError(
      '--workdir must be a sweep of config.data.source = passkey or mqar, or '
      'of config.task = next_token'
    )


def _define(values) -> None:
  define(
    values,
    ('workdir', None, 'A sweep.'),
    ('output', None, 'A JSON file.'),
  )


def main(values) -> None:
  """Measures all runs and writes the file."""
  output = app.required(values, 'output')
  app.check_output(output)
  specs = folder.read(app.required(values, 'workdir'))
  check(specs)
  is_causal = specs[0].settings.task.entry.is_causal
  keys = ('first', 'last') if is_causal else ('length', 'depth')
  measured = collections.defaultdict(list)
  for spec, setting in zip(specs, names.of_specs(specs).names, strict=True):
    by_place = bits(spec) if is_causal else accuracies(spec)
    for place, value in by_place.items():
      measured[setting, *place].append(value)
  measure = 'bits_per_byte' if is_causal else 'accuracy'
  content = {
    'command': provenance.without_paths(['python', *sys.argv]),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'versions': provenance.versions(),
    'rows': [
      {'setting': setting, **dict(zip(keys, place, strict=True))}
      | {measure: interval(of_seeds)}
      for (setting, *place), of_seeds in measured.items()
    ],
  }
  workdir_lib.write_atomic(output, json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
  app.run(main, _define, __doc__)
