"""Scores of a linear model on tf-idf of words and bigrams.

    bash scripts/run.sh python scripts/linear_baseline.py \\
      --config=configs/trec.py --config.data.dir=PATH --output=FILE

Has the splits and the metrics of a config, chooses C on folds of train, and
adds a row to FILE. It is logistic regression, one for each label of a set, and
ridge regression of numbers. Of pairs of texts, it reads |a - b| and a * b of
the vectors a and b of the two. What a task fits on validation is fitted there.
"""

import json
import pathlib
import sys
from dataclasses import replace

import numpy as np
from absl import app, flags
from ml_collections import config_flags
from scipy import sparse
from sklearn import linear_model
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.multiclass import OneVsRestClassifier

from experiments.command import provenance
from experiments.data import loading, rows, splits
from experiments.data.labels import LabelFacts, Numbers, Sets
from experiments.settings.settings import from_config
from experiments.sweeps.comparison import interval

CONFIG = config_flags.DEFINE_config_file('config')
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)


def fitted(reader, c, inputs, values):
  """A function from inputs to logits, or to numbers, (texts, outputs)."""
  if isinstance(reader, Numbers):
    model = linear_model.Ridge(alpha=1 / c).fit(inputs, values)
    return lambda inputs: model.predict(inputs)[:, None]
  if isinstance(reader, Sets):
    one = linear_model.LogisticRegression(
      C=c, solver='liblinear', class_weight='balanced'
    )
    return OneVsRestClassifier(one).fit(inputs, values).decision_function
  model = linear_model.LogisticRegression(C=c, solver='newton-cg')
  return model.fit(inputs, values).predict_log_proba


def measure(data, task, metric):
  """C and the scores on test, of DataSettings and the call of a task."""
  reader = task.entry.labels
  source, read, _, _, chosen = loading.selected(data, reader)
  texts = np.array([text for part in read.stream() for text in part], object)
  values = reader.values(read.names, chosen.facts['labels'])[0][read.labels]
  task = task.make(facts=LabelFacts.of(chosen.facts))

  def features(tf_idf, texts):
    if not source.has_pairs:
      return tf_idf.transform(texts)
    parts = zip(*map(rows.parted, texts), strict=True)
    first, second = map(tf_idf.transform, parts)
    return sparse.hstack([abs(first - second), first.multiply(second)])

  def scores(train, test, c):
    tf_idf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    tf_idf.fit(texts[train])
    model = fitted(reader, c, features(tf_idf, texts[train]), values[train])
    held_out, test = (
      (model(features(tf_idf, texts[part])), values[part])
      for part in (chosen.splits['validation'], test)
    )
    fit = task.fit((None, held_out[0]), held_out[1])
    losses = task.host_losses(*test)
    outputs = task.average([(losses, test[0])], [fit], test[1])
    return task.fitted([fit]).scores(outputs, test[1])

  train, how = chosen.splits['train'], (data.seed, data.split_by)
  folds = [splits.fold(read, train, 5, n, *how) for n in range(5)]
  best = task.metrics[metric](
    (0.1, 1, 10, 100),
    key=lambda c: sum(scores(*fold, c)[metric] for fold in folds),
  )
  return best, scores(train, chosen.splits['test'], best)


def main(_):
  settings = from_config(CONFIG.value)
  data, metric = settings.data, settings.checkpoint.best_metric
  parts = [
    measure(replace(data, fold=n), settings.task, metric)
    for n in range(data.num_folds or 1)
  ]
  write(
    {
      'c': [c for c, _ in parts],
      'scores': [scores for _, scores in parts],
      'metric': metric,
      'test': interval([scores[metric] for _, scores in parts]),
    }
  )


def write(measured):
  """Adds a row to FILE, in place of that of the same command."""
  config_file = config_flags.get_config_filename(flags.FLAGS['config'])
  row = {
    'command': provenance.without_paths(['python', *sys.argv]),
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
