"""Accuracy of logistic regression on tf-idf of words and bigrams.

    bash scripts/run.sh python scripts/linear_baseline.py \\
      --config=configs/trec.py --config.data.dir=PATH --output=FILE

Has the splits of a config, chooses C on folds of train, and adds a row to FILE.
"""

import json
import pathlib
import sys
from dataclasses import replace

import numpy as np
from absl import app, flags
from ml_collections import config_flags
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from experiments.command import invocation, provenance
from experiments.data import datasets, rows, selection, splits
from experiments.data.labels import Classes
from experiments.settings.settings import from_config
from experiments.sweeps.comparison import interval

CONFIG = config_flags.DEFINE_config_file('config')
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)


def measure(data):
  """C and the accuracy on test, of DataSettings."""
  source = datasets.DATASETS[data.source.name](**data.source.options)
  read = rows.gather(source.read(data.dir, data.seed))
  chosen = selection.select(read, source, data)
  texts = np.array([text for part in read.stream() for text in part], object)
  classes, _ = Classes().values(read.names, chosen.labels)
  labels = classes[read.labels]

  def accuracy(train, test, c):
    tf_idf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=c, solver='newton-cg')
    model.fit(tf_idf.fit_transform(texts[train]), labels[train])
    return model.score(tf_idf.transform(texts[test]), labels[test])

  train, how = chosen.splits['train'], (data.seed, data.split_by)
  folds = [splits.fold(read, train, 5, n, *how) for n in range(5)]
  best = max((1, 10, 100), key=lambda c: sum(accuracy(*f, c) for f in folds))
  return best, accuracy(train, chosen.splits['test'], best)


def main(_):
  data = from_config(CONFIG.value).data
  parts = [measure(replace(data, fold=n)) for n in range(data.num_folds or 1)]
  accuracies = [accuracy for _, accuracy in parts]
  config_file = config_flags.get_config_filename(flags.FLAGS['config'])
  row = {
    'command': invocation.without_paths(['python', *sys.argv]),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'config': pathlib.Path(config_file).stem,
    'data.text.test': ' '.join(CONFIG.value.data.text.test),
    'c': [c for c, _ in parts],
    'accuracy': accuracies,
    'test': interval(accuracies),
  }
  path = pathlib.Path(OUTPUT.value)
  before = json.loads(path.read_text())['rows'] if path.exists() else []
  others = [other for other in before if other['command'] != row['command']]
  content = json.dumps({'rows': [*others, row]}, indent=1)
  path.write_text(content + '\n')


if __name__ == '__main__':
  app.run(main)
