"""Scores of logistic regression on tf-idf of words and bigrams.

    bash scripts/run.sh python scripts/linear_baseline.py \\
      --config=configs/trec.py --config.data.dir=PATH --output=FILE

Has the splits of a config, chooses C on folds of train, and adds a row to FILE.
Of pairs of texts, it reads |a - b| and a * b of the vectors a and b of the two.
Of several labels of a text, there is one regression for each, and C and the
thresholds are chosen on validation, as those of a run are.
"""

import json
import pathlib
import sys
from dataclasses import replace

import numpy as np
from absl import app, flags
from ml_collections import config_flags
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from experiments.command import invocation, provenance
from experiments.data import pairs, rows, selection, splits
from experiments.data.labels import Classes, Sets
from experiments.learning.calibration import threshold
from experiments.learning.scores import of_sets
from experiments.settings.settings import from_config
from experiments.sweeps.comparison import interval

CONFIG = config_flags.DEFINE_config_file('config')
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)


def measure(data):
  """C and the accuracy on test, of DataSettings."""
  source = data.dataset()
  read = rows.gather(source.read(data.dir, data.seed))
  chosen = selection.select(read, source, data)
  texts = np.array([text for part in read.stream() for text in part], object)
  classes, _ = Classes().values(read.names, chosen.labels)
  labels = classes[read.labels]

  def accuracy(train, test, c):
    tf_idf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    tf_idf.fit(texts[train])
    model = LogisticRegression(C=c, solver='newton-cg')
    model.fit(features(tf_idf, texts[train]), labels[train])
    return model.score(features(tf_idf, texts[test]), labels[test])

  def features(tf_idf, texts):
    if not source.has_pairs:
      return tf_idf.transform(texts)
    parts = zip(*map(pairs.parted, texts), strict=True)
    first, second = map(tf_idf.transform, parts)
    return sparse.hstack([abs(first - second), first.multiply(second)])

  train, how = chosen.splits['train'], (data.seed, data.split_by)
  folds = [splits.fold(read, train, 5, n, *how) for n in range(5)]
  best = max((1, 10, 100), key=lambda c: sum(accuracy(*f, c) for f in folds))
  return best, accuracy(train, chosen.splits['test'], best)


def measure_sets(data):
  """C and scores on test, of the DataSettings of several labels."""
  source = data.dataset()
  read = rows.gather(source.read(data.dir, data.seed))
  chosen = selection.select(read, source, data, Sets())
  texts = np.array([text for part in read.stream() for text in part], object)
  values, _ = Sets().values(read.names, chosen.labels)
  truth = values[read.labels] > 0.5
  train, validation, test = (
    chosen.splits[split] for split in ('train', 'validation', 'test')
  )
  tf_idf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
  inputs = tf_idf.fit_transform(texts[train])

  def scored(c):
    one = LogisticRegression(C=c, solver='liblinear', class_weight='balanced')
    model = OneVsRestClassifier(one).fit(inputs, truth[train])
    likely = model.predict_proba(tf_idf.transform(texts[validation]))
    limits = list(map(threshold, likely.T, truth[validation].T))
    called = likely > limits
    likely = model.predict_proba(tf_idf.transform(texts[test]))
    return (
      of_sets(called, truth[validation])['macro_f1'],
      c,
      of_sets(likely > limits, truth[test]),
    )

  _, best, scores = max(map(scored, (0.1, 1, 10)), key=lambda part: part[0])
  return best, scores


def main(_):
  settings = from_config(CONFIG.value)
  if isinstance(settings.task.entry.labels, Sets):
    c, scores = measure_sets(settings.data)
    write({'c': [c], **scores})
    return
  data = settings.data
  parts = [measure(replace(data, fold=n)) for n in range(data.num_folds or 1)]
  accuracies = [accuracy for _, accuracy in parts]
  write(
    {
      'c': [c for c, _ in parts],
      'accuracy': accuracies,
      'test': interval(accuracies),
    }
  )


def write(measured):
  """Adds a row to FILE, in place of that of the same command."""
  config_file = config_flags.get_config_filename(flags.FLAGS['config'])
  row = {
    'command': invocation.without_paths(['python', *sys.argv]),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'config': pathlib.Path(config_file).stem,
    'data.text.test': ' '.join(CONFIG.value.data.text.test),
    **measured,
  }
  path = pathlib.Path(OUTPUT.value)
  before = json.loads(path.read_text())['rows'] if path.exists() else []
  others = [other for other in before if other['command'] != row['command']]
  content = json.dumps({'rows': [*others, row]}, indent=1)
  path.write_text(content + '\n')


if __name__ == '__main__':
  app.run(main)
