"""All config keys and their defaults; trains on the built-in word_order task.

A position-aware encoder distinguishes the sentences of a minimal pair, a bag of
words cannot (see experiments/data/word_order.py).

    bash scripts/run.sh experiments.train
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from experiments.data.datasets import DATASETS
from experiments.data.vocabularies import VOCABULARIES
from experiments.learning.optimizers import OPTIMIZERS
from experiments.learning.parameter_groups import GROUPS, GroupSettings
from experiments.learning.tasks import TASKS
from experiments.settings.registry import block, blocks
from selfattn.encoders import ENCODERS
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS


def get_config():
  """A locked ConfigDict."""
  config = ConfigDict()
  config.seed = 0  # of parameters and dropout

  # A name, and a block of options per data set (experiments/data/datasets.py).
  config.data = data = ConfigDict(block(DATASETS, 'word_order'))
  data.dir = ''  # folder of the files; empty for built-in data and the hub
  data.max_length = 64  # tokens; longer texts are truncated
  # Seed of generated data, of splits held out from train, and of the order of
  # examples: runs that differ in config.seed only train on the same batches.
  data.seed = 0
  # Held out from train if the data has no such split:
  data.validation_fraction = 0.1
  data.test_fraction = 0.0
  # Cross-validation: of so many folds of train, one is test; 0: none.
  data.num_folds = 0
  data.fold = 0
  # What is never split: 'text', equal texts; 'sentence', also each phrase and
  # one sentence with it.
  data.split_by = 'text'
  data.num_buckets = 2  # number of padded lengths, each compiled once
  data.vocabulary = block(VOCABULARIES, 'word')

  config.model = model = ConfigDict()
  model.encoder = block(ENCODERS, 'attention')
  model.position = block(POSITIONS, 'sinusoidal')  # or several: a+b
  model.position_sampling = block(SAMPLINGS, 'consecutive')
  model.normaliser = block(NORMALISERS, 'softmax')  # of attention weights
  model.num_layers = 2
  model.num_heads = 4
  model.embed_dim = 64
  model.mlp_dim = 128
  model.dropout_rate = 0.1  # of embeddings, residual branches, pooled vector
  model.attention_dropout_rate = 0.0  # of attention weights
  model.word_dropout_rate = 0.0  # of tokens, which are replaced by [UNK]
  model.embed_init_std = 0.1  # larger ones dominate learned positions
  model.pool = 'mean'  # or max, cls, attentive
  model.pool_options = blocks(POOLS)
  model.dtype = 'float32'  # of the encoder, or bfloat16; parameters: float32
  model.num_members = 1  # ensemble size; probabilities are averaged

  # What the model is trained to do (experiments/learning/tasks.py).
  config.task = block(TASKS, 'classify')
  config.pretrain = pretrain = ConfigDict()  # before that, on the same texts
  pretrain.steps = 0  # 0: none
  pretrain.task = block(TASKS, 'masked_tokens')
  pretrain.learning_rate = 1e-3
  pretrain.warmup_steps = 0.05  # below 1: a fraction of pretrain.steps
  # On validation; training begins with the best checkpoint of pretraining.
  pretrain.best_metric = 'loss'

  # A name, and one block of options each (experiments/learning/optimizers.py).
  config.optimizer = optimizer = ConfigDict(block(OPTIMIZERS, 'adamw'))
  # Another optimizer, or another multiple of the learning rate, for the
  # embeddings, or the matrices of the encoder; '': as the rest.
  optimizer.groups = {group: asdict(GroupSettings()) for group in GROUPS}
  optimizer.learning_rate = 1e-3  # the peak, after warm-up
  optimizer.schedule = 'cosine'  # or constant, linear, inverse_sqrt
  optimizer.warmup_steps = 0.05  # below 1: a fraction of train.steps
  optimizer.weight_decay = 0.01
  optimizer.weight_decay_names = (
    'kernel',
  )  # names of parameters with weight decay
  optimizer.clip_norm = 1.0  # of the global gradient; 0: no clipping
  optimizer.label_smoothing = 0.0

  config.train = train = ConfigDict()
  train.steps = 2_000
  train.batch_size = 64  # examples per step, over all devices
  # Number of microbatches, to save memory; 0: chosen by the caches of a CPU.
  train.grad_accum_steps = 0
  # Decay of an exponential moving average of the parameters, which evaluation
  # then uses; 0: none.
  train.ema_decay = 0.0
  # Shard parameters of at least so many elements over devices; 0: shard none.
  train.fsdp_min_size = 0
  train.log_every = 100  # steps
  train.eval_every = 500  # steps
  train.eval_batch_size = 256  # examples
  # Workdir of a run to initialise parameters from, where they fit.
  train.init_from = ''

  config.checkpoint = checkpoint = ConfigDict()
  checkpoint.every_steps = 500
  checkpoint.max_to_keep = 2  # newest checkpoints; the best one is kept, too
  checkpoint.best_metric = 'accuracy'  # on validation; or another of the task
  return config.lock()


def sweep_positions():
  """Every position method; some are defined for causal encoders alone."""
  for name, method in POSITIONS.items():
    changes = {'model.position.name': name}
    if method.causal_only:
      changes['model.encoder.attention.causal'] = True
    yield changes


def sweep_seeds():
  """Five seeds."""
  for seed in range(5):
    yield {'seed': seed}
