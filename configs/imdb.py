"""IMDB (Maas et al. 2011): long movie reviews, 25,000 train, 25,000 test.

Self-attention on the first 512 tokens, with convolutional positions. Word
dropout was chosen on a tenth of train, held out; learning rate, dropout, weight
decay and the number of steps on a fifth.

Data: the folder aclImdb (train/pos, train/neg, test/pos, test/neg), from
https://ai.stanford.edu/~amaas/data/sentiment.

    bash scripts/run.sh experiments.train --config=configs/imdb.py \
        --config.data.dir=PATH --workdir=runs/imdb
"""

from configs import default, sst2


def get_config():
  """Differences from configs/sst2.py."""
  config = sst2.get_config()
  config.data.text.format = 'class_folders'
  config.data.text.train = ('train',)
  config.data.text.test = ('test',)
  config.data.text.labels = ('neg=negative', 'pos=positive')
  config.data.split_by = 'text'
  config.data.max_length = 512
  config.data.num_buckets = 6
  config.model.position = 'convolutional'
  config.model.dropout_rate = 0.1
  config.model.word_dropout_rate = 0.2
  config.optimizer.learning_rate = 1e-3
  config.optimizer.warmup_steps = 0.05
  config.optimizer.weight_decay = 0.1
  config.train.steps = 1_600
  config.train.eval_every = 200
  config.train.batch_size = 32
  config.train.eval_batch_size = 64
  return config


sweep_seeds = default.sweep_seeds


def sweep_positions():
  """Every position method, for 512 tokens."""
  return default.position_methods(max_len=512)


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.position': 'none'}
  yield {'model.position': 'learned'}
  yield {'model.dropout_rate': 0.5}
  yield {'model.word_dropout_rate': 0.0}
  yield {'data.max_length': 1_024}
  yield {'optimizer.learning_rate': 2e-3}
  yield {'optimizer.weight_decay': 1.0}
  yield {'train.steps': 800}
