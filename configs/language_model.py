"""A causal language model on a stream of bytes; by default on built-in stories.

    bash scripts/run.sh experiments.train --config=configs/language_model.py \
        --workdir=runs/stories
    bash scripts/run.sh experiments.evaluate --workdir=runs/stories \
        --lengths=64,128,256,512,1024

The initialisation is that of x-transformers: after 300 steps of `rotary`, it
was the best of six on validation.

The table of docs/language_models.md, of IMDB's reviews, PATH being a folder
with train.tsv and test.tsv:

    bash scripts/run.sh experiments.sweep --config=configs/language_model.py \
        --config.data.source='stream(train_bytes=10000000, test_bytes=200000)' \
        --config.data.dir=PATH --config.data.text.test=test.tsv \
        --config.data.validation_fraction=0.005 \
        --config.train.steps=1500 --config.train.eval_every=1500 \
        --config.train.eval_lengths='(128, 256, 512, 1024, 2048)' \
        --sweep=positions,seeds --workdir=runs/lengths
"""

from configs import default
from selfattn.normalisers import NORMALISERS


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.task = 'next_token(tied=False)'
  config.data.source = 'stories'
  config.data.vocabulary = 'byte'
  config.data.max_length = 128
  config.model.encoder = 'attention(causal=True)'
  config.model.position = 'alibi'
  config.model.num_layers = 3
  config.model.embed_dim = 128
  config.model.mlp_dim = 512
  config.model.block = 'pre(kernel_init=torch)'
  config.model.embed_init_std = 0.125
  config.model.dropout_rate = 0.0
  config.optimizer.learning_rate = 2e-3
  config.optimizer.weight_decay = 0.01
  config.train.steps = 400
  config.train.batch_size = 32
  config.train.eval_every = 200
  return config


def sweep_positions():
  """Every position method of a causal encoder."""
  for changes in default.position_methods(max_len=128):
    yield changes | {'model.encoder': 'attention(causal=True)'}


def sweep_seeds():
  """Three seeds."""
  for seed in range(3):
    yield {'seed': seed}


def sweep_normalisers():
  """Every normaliser of a causal encoder."""
  for name in NORMALISERS:
    yield {'model.normaliser': name}
