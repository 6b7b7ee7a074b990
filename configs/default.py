"""Every key, once: the built-in word_order task, and what all others build on.

A position-aware encoder tells each sentence from its twin, a bag of words
cannot (see experiments/data/word_order.py).

    bash scripts/run.sh experiments.train
"""

from ml_collections import ConfigDict

from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.tasks import TASKS
from experiments.settings.registry import block
from selfattn.encoders import ENCODERS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS


def get_config():
  """A locked ConfigDict."""
  config = ConfigDict()
  config.seed = 0  # of parameters and dropout

  # A name, and a block of options a data set (experiments/data/datasets.py).
  config.data = data = ConfigDict(block(DATASETS, 'word_order'))
  data.dir = ''  # folder of the files; empty for built-in data and the hub
  data.max_length = 64  # tokens; the rest of a longer text is not read
  # Of generated data, splits cut from train, and the order of the examples, so
  # that runs with other seeds train on the same batches.
  data.seed = 0
  data.validation_fraction = 0.1  # of train, where no validation is given
  data.test_fraction = 0.0  # of train, where no test is given
  data.num_buckets = 2  # padded lengths, each compiled once
  data.vocabulary = block(VOCABULARIES, 'word')

  config.model = model = ConfigDict()
  model.encoder = block(ENCODERS, 'attention')
  model.position = block(POSITIONS, 'sinusoidal')  # or several: a+b
  model.position_sampling = block(SAMPLINGS, 'consecutive')
  model.num_layers = 2
  model.num_heads = 4
  model.embed_dim = 64
  model.mlp_dim = 128
  model.dropout_rate = 0.1  # of embeddings, branches and the pooled vector
  model.attention_dropout_rate = 0.0  # of attention weights
  model.word_dropout_rate = 0.0  # of tokens, which then read as unknown
  model.embed_init_std = 0.1  # larger ones drown a learned position
  model.pool = 'mean'  # or max, cls
  model.dtype = 'float32'  # of the encoder, or bfloat16; parameters: float32
  model.num_members = 1  # of an ensemble, whose probabilities are averaged

  # What a model is trained to do (experiments/learning/tasks.py).
  config.task = block(TASKS, 'classify')
  config.pretrain = pretrain = ConfigDict()  # before that, on the same texts
  pretrain.steps = 0  # updates; 0: none
  pretrain.task = block(TASKS, 'masked_tokens')
  pretrain.learning_rate = 1e-3
  pretrain.warmup_steps = 0.05  # of pretrain.steps; from 1 on, updates

  # A name, and a block of options each (experiments/learning/optimizers.py).
  config.optimizer = optimizer = ConfigDict(block(OPTIMIZERS, 'adamw'))
  optimizer.learning_rate = 1e-3  # the peak, after warm-up
  optimizer.schedule = 'cosine'  # or constant, linear, inverse_sqrt
  optimizer.warmup_steps = 0.05  # of train.steps; from 1 on, updates
  optimizer.weight_decay = 0.01
  optimizer.decay = ('kernel',)  # parameter names that decay
  optimizer.clip_norm = 1.0  # of the whole gradient; 0: never
  optimizer.label_smoothing = 0.0

  config.train = train = ConfigDict()
  train.steps = 2_000  # updates
  train.batch_size = 64  # examples an update, over all devices
  train.accumulate = (
    0  # parts of a batch, for memory; 0: as fits a CPU's caches
  )
  # Numbers a parameter has at least to be cut over devices; 0: none is cut.
  train.shard_from = 0
  train.log_every = 100  # steps
  train.eval_every = 500  # steps
  train.eval_batch_size = 256  # examples
  # Workdir of a run whose parameters to begin with, as far as they fit.
  train.init_from = ''

  config.checkpoint = checkpoint = ConfigDict()
  checkpoint.every_steps = 500
  checkpoint.keep = 2  # newest ones; the best one stays as well
  checkpoint.best_metric = 'accuracy'  # on validation; or another of the task
  return config.lock()


def sweep_positions():
  """Every position method."""
  for name in POSITIONS:
    yield {'model.position.name': name}


def sweep_seeds():
  """Five repetitions."""
  for seed in range(5):
    yield {'seed': seed}
