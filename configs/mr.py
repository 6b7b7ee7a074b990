"""MR (Pang and Lee 2005): movie-review sentences, 5,331 of each sentiment.

There is no official split: config.data.test_fraction of the data is held out
for testing, and config.data.validation_fraction of the rest for validation, by
config.data.seed. Published results are averages over 10 folds.

Data: rt-polarity.neg and rt-polarity.pos, latin-1, from
https://www.cs.cornell.edu/people/pabo/movie-review-data.

    bash scripts/run.sh experiments.train --config=configs/mr.py \
        --config.data.dir=PATH --workdir=runs/mr
"""

from configs import default, trec


def get_config():
  """Hyperparameters of configs/trec.py, for small data, on MR."""
  config = trec.get_config()
  config.data.text.format = 'class_files'
  config.data.text.train = (
    'negative=rt-polarity.neg',
    'positive=rt-polarity.pos',
  )
  config.data.text.test = ()
  config.data.text.label_depth = 0
  config.data.test_fraction = 0.1
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
