"""Small labelled data: hundreds to tens of thousands of short texts.

One block of attention with learned positions and a max pool. Most parameters
are embeddings of tokens, which dropout, weight decay and label smoothing keep
from overfitting. Chosen on parts of the train split of TREC: see
docs/results.md, and sweep_choice below. The base of the configs of small data
sets.

    bash scripts/run.sh experiments.train --config=configs/small_text.py \
        --config.data.dir=PATH --config.data.test_fraction=0.1 \
        --workdir=runs/small_text
"""

from configs import default


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.data.source = 'text'
  config.data.num_buckets = 3
  config.data.vocabulary = 'word(min_count=2)'
  config.model.num_layers = 1
  config.model.embed_dim = 128
  config.model.position = 'learned'
  config.model.pool = 'max'
  config.model.dropout_rate = 0.3
  config.optimizer.weight_decay_names = ('kernel', 'embedding')
  config.optimizer.weight_decay = 0.3
  config.optimizer.learning_rate = 3e-3
  config.optimizer.warmup_steps = 1 / 7
  config.optimizer.label_smoothing = 0.1
  config.train.steps = 700
  config.train.eval_every = 350
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.pool': 'mean'}
  yield {'model.pool': 'attentive'}
  yield {'model.dropout_rate': 0.5}
  yield {'optimizer.learning_rate': 1e-3}
  yield {'optimizer.weight_decay': 0.1}
  yield {'optimizer.weight_decay': 1.0}
  yield {'optimizer.label_smoothing': 0.0}
