"""MR (Pang and Lee 2005): movie-review sentences, 5,331 of each sentiment.

There is no official split. As published results, test is one of ten folds; of
the rest, config.data.validation_fraction is held out for validation.

Data: rt-polarity.neg and rt-polarity.pos, latin-1, from
https://www.cs.cornell.edu/people/pabo/movie-review-data.

Accuracy, mean of the ten folds: docs/results/mr.json.

    bash scripts/run.sh experiments.train --config=configs/mr.py \
        --config.data.dir=PATH --workdir=runs/mr
    bash scripts/run.sh experiments.sweep --config=configs/mr.py \
        --config.data.dir=PATH --workdir=runs/mr_folds --sweep=folds
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.data.text.format = 'class_files'
  config.data.text.train = (
    'negative=rt-polarity.neg',
    'positive=rt-polarity.pos',
  )
  config.data.text.encoding = 'latin-1'
  config.data.validation_fraction = 0.05
  config.data.num_folds = 10
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
sweep_choice = small_text.sweep_choice


def sweep_folds():
  """Each of the ten folds is test once."""
  for fold in range(10):
    yield {'data.fold': fold}
