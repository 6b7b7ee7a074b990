"""IMDB (Maas et al. 2011): long movie reviews, 25,000 train, 25,000 test.

Data: the folder aclImdb (train/pos, train/neg, test/pos, test/neg), from
https://ai.stanford.edu/~amaas/data/sentiment.

    bash scripts/run.sh experiments.train --config=configs/imdb.py \
        --config.data.dir=PATH --workdir=runs/imdb
"""

from configs import default, sst2


def get_config():
  """Hyperparameters of configs/sst2.py on IMDB."""
  config = sst2.get_config()
  config.data.text.format = 'class_folders'
  config.data.text.train = ('train',)
  config.data.text.test = ('test',)
  config.data.text.labels = ('neg=negative', 'pos=positive')
  config.data.max_length = 256
  config.model.num_members = 1
  config.optimizer.warmup_steps = 1 / 15
  config.train.steps = 1_500
  config.train.batch_size = 32
  config.train.eval_batch_size = 64
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
