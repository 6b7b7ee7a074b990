"""IMDB (Maas et al. 2011): long movie reviews, 25,000 train, 25,000 test.

Self-attention on words and bigrams, and with it a linear model of both, scaled
by log-count ratios of Naive Bayes, which is trained with the encoder; and
NBSVM, another one, also of trigrams, which is fitted before: the mean of both
logits predicts. Bigrams, the number of steps and word dropout were chosen on a
tenth of train, held out; the linear models and the length on a fifth.

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
  config.data.max_length = 1024
  config.data.num_buckets = 6
  config.model.position.name = 'ngram'
  for method in ('learned', 'tupe'):
    config.model.position[method].max_len = config.data.max_length
  config.model.position.ngram.num_buckets = 200_000
  config.model.word_dropout_rate = 0.2
  config.model.head.name = 'wide_and_deep+nbsvm'
  config.model.head.wide_and_deep.num_buckets = 2_000_000
  config.model.head.nbsvm.max_n = 3
  config.model.head.nbsvm.max_features = 8_000_000
  config.model.head.nbsvm.c = 0.3
  config.model.head.nbsvm.fusion_weight = 4.0
  config.model.head.wide_and_deep.naive_bayes = True
  config.model.num_members = 1
  config.optimizer.warmup_steps = 0.05
  config.train.steps = 800
  config.train.eval_every = 200
  config.train.batch_size = 32
  config.train.eval_batch_size = 64
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.position.ngram.max_n': 3}
  yield {'model.word_dropout_rate': 0.0}
  yield {'model.head.name': 'wide_and_deep'}
  yield {'model.head.name': 'linear'}
  yield {'model.head.name': 'nbsvm'}
  yield {'model.head.nbsvm.c': 1.0}
  yield {'model.head.nbsvm.max_n': 2}
  yield {'model.head.nbsvm.interpolation': 1.0}
  yield {'model.head.nbsvm.fusion_weight': 1.0}
  yield {'model.head.wide_and_deep.naive_bayes': False}
  yield {'model.head.wide_and_deep.max_n': 3}
  yield {'model.position.name': 'none'}
  yield {'data.max_length': 512}
  yield {'optimizer.learning_rate': 4e-3}
  yield {'optimizer.weight_decay_names': ('kernel', 'embedding', 'table')}
  yield {'optimizer.weight_decay': 2.0}
  yield {'train.steps': 1_600}
