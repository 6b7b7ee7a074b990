"""Accuracy of passkey retrieval by length and depth, of each model of a sweep.

    bash scripts/run.sh python scripts/recall_by_depth.py \\
      --workdir=runs/longer_passkeys --output=FILE

The runs are of configs/passkey.py. A row of FILE has the accuracy of a setting
on the strings of test of one length and one depth, over seeds.
"""

import collections
import json
import pathlib
import sys
from typing import Any

from absl import app, flags

from experiments import predict
from experiments.command import provenance
from experiments.data.token_labels import NONE
from experiments.sweeps import folder, names
from experiments.sweeps.comparison import interval

WORKDIR = flags.DEFINE_string('workdir', None, 'A sweep.', required=True)
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)
# Strings of a batch: each has a score for each two of its tokens.
BATCH = 8


def accuracies(spec):
  """The accuracy of a run by (length, depth)."""
  data = spec.settings.data
  source = data.source.make()
  rows = source.read('', data.seed)['test']
  classify: Any = predict.load(spec.path, batch_size=BATCH)
  hits = collections.defaultdict(list)
  for index, answer in enumerate(classify([row.text for row in rows])):
    number, of_length = divmod(index, len(source.test_lengths))
    place = source.test_lengths[of_length], source.depth(number)
    pairs = zip(answer.label, rows[index].label.split(), strict=True)
    hits[place] += [said == label for said, label in pairs if label != NONE]
  return {place: sum(of) / len(of) for place, of in hits.items()}


def main(_):
  specs = folder.read(WORKDIR.value)
  scores = collections.defaultdict(list)
  for spec, setting in zip(specs, names.of_specs(specs).names, strict=True):
    for place, accuracy in accuracies(spec).items():
      scores[setting, *place].append(accuracy)
  content = {
    'command': provenance.without_paths(['python', *sys.argv]),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'versions': provenance.versions(),
    'rows': [
      {'setting': setting, 'length': length, 'depth': depth}
      | {'accuracy': interval(of_seeds)}
      for (setting, length, depth), of_seeds in scores.items()
    ],
  }
  text = json.dumps(content, indent=1)
  pathlib.Path(OUTPUT.value).write_text(text + '\n')


if __name__ == '__main__':
  app.run(main)
