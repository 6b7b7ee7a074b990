"""What the models of a sweep do at each place of a text.

    bash scripts/run.sh python scripts/by_place.py --workdir=SWEEP --output=FILE

Of runs of configs/passkey.py, it is the accuracy of retrieval by length of the
text and depth of the keys; of language models, bits per byte by position in a
window of 2,048 tokens, in ranges that double. A row of FILE has a setting and a
place, over seeds.
"""

import collections
import json
import math
import pathlib
import sys
from typing import Any

from absl import app, flags

from experiments import predict
from experiments.command import provenance
from experiments.data.token_labels import NONE
from experiments.sweeps import folder, names
from experiments.sweeps.comparison import interval
from experiments.training import evaluation, lengths

WORKDIR = flags.DEFINE_string('workdir', None, 'A sweep.', required=True)
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)
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
      hits[length, source.depth(number)] += [
        said == label for said, label in pairs if label != NONE
      ]
  return {place: sum(of) / len(of) for place, of in hits.items()}


def bits(spec):
  """Bits per byte of a run by (first, last) position in a window.

  A token is a byte.
  """
  data = evaluation.load_data(spec.settings, spec.path, None)
  run = evaluation.restore_params(spec.path, 'best')
  tokens, size = data.splits['test'].tokens, data.num_bytes['test']
  loss = lengths.evaluate(run, tokens, size, WINDOW, 0, WINDOW)
  return {
    (part['first'], part['last']): part['loss'] / math.log(2)
    for part in loss.by_position
  }


def main(_):
  specs = folder.read(WORKDIR.value)
  is_stream = specs[0].settings.data.is_stream
  keys = ('first', 'last') if is_stream else ('length', 'depth')
  measured = collections.defaultdict(list)
  for spec, setting in zip(specs, names.of_specs(specs).names, strict=True):
    by_place = bits(spec) if is_stream else accuracies(spec)
    for place, value in by_place.items():
      measured[setting, *place].append(value)
  measure = 'bits_per_byte' if is_stream else 'accuracy'
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
  text = json.dumps(content, indent=1)
  pathlib.Path(OUTPUT.value).write_text(text + '\n')


if __name__ == '__main__':
  app.run(main)
