"""TREC questions (Li and Roth 2002): six classes, 5,452 train, 500 test.

Data: TREC.train and TREC.test, `DESC:manner How did ...` lines in latin-1,
from https://github.com/harvardnlp/sent-conv-torch (folder data/raw). The label
is the part before the colon; with --config.data.text.label_depth=2 it is both
parts, 50 classes.

    bash scripts/run.sh experiments.train --config=configs/trec.py \
        --config.data.dir=PATH --workdir=runs/trec
"""

from configs import default


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.data.name = 'text'
  config.data.text.format = 'lines'
  config.data.text.train = ('TREC.train',)
  config.data.text.test = ('TREC.test',)
  config.data.text.encoding = 'latin-1'
  config.data.text.label_depth = 1
  config.data.num_buckets = 3
  config.data.validation_fraction = 0.05
  config.data.vocabulary.word.min_count = 2
  config.model.num_layers = 1
  config.model.embed_dim = 128
  config.model.position.name = 'learned'
  config.model.pool = 'max'
  config.model.dropout_rate = 0.3
  # Most parameters are embeddings, so these need weight decay, too.
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
