"""All config keys and their defaults; trains on the built-in word_order task.

A position-aware encoder distinguishes the sentences of a minimal pair, a bag of
words cannot (see experiments/data/word_order.py). --help prints these comments.

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
from selfattn.heads import HEADS
from selfattn.normalisers import NORMALISERS
from selfattn.pools import POOLS
from selfattn.positions import POSITIONS
from selfattn.positions.sampling import SAMPLINGS


def get_config():
  """A locked ConfigDict."""
  config = ConfigDict()
  config.seed = 0  # seed of initial parameters and of dropout

  # the data set (experiments/data/datasets.py)
  config.data = data = ConfigDict(block(DATASETS, 'word_order'))
  data.dir = ''  # folder of the files; empty for generated data and the hub
  data.max_length = 64  # tokens of a text; longer texts are truncated
  # seed of generated data, of splits held out from train, and of the order of
  # examples: runs that differ in config.seed only train on the same batches,
  # unless config.train.shuffle_by_seed is set
  data.seed = 0
  # share of train to hold out for validation, if the data has no such split
  data.validation_fraction = 0.1
  # share of train to hold out for test, if the data has no such split
  data.test_fraction = 0.0
  # cross-validation: train is split into so many folds, of which one is test,
  # at least 2; 0: none
  data.num_folds = 0
  data.fold = 0  # which fold is test, from 0
  # what is never split between train, validation and test: 'text', equal texts;
  # 'sentence', also a sentence and its phrases
  data.split_by = 'text'
  data.num_buckets = 2  # number of lengths that batches are padded to
  # how texts are split into tokens
  data.vocabulary = block(VOCABULARIES, 'word')

  config.model = model = ConfigDict()
  # the encoder, from token vectors to contextual vectors
  model.encoder = block(ENCODERS, 'attention')
  # the position method, or several joined by +, such as sinusoidal+t5
  model.position = block(POSITIONS, 'sinusoidal')
  # how position ids are chosen in training
  model.position_sampling = block(SAMPLINGS, 'consecutive')
  # the function from attention scores to weights
  model.normaliser = block(NORMALISERS, 'softmax')
  model.num_layers = 2  # layers of the encoder
  model.num_heads = 4  # heads of attention; a divisor of config.model.embed_dim
  model.embed_dim = 64  # width of the token vectors
  model.mlp_dim = 128  # width of the hidden layer of feed-forward layers
  # dropout rate of embeddings, residual branches, pooled vector and head
  model.dropout_rate = 0.1
  model.attention_dropout_rate = 0.0  # dropout rate of attention weights
  # share of the tokens that are replaced by [UNK] in training
  model.word_dropout_rate = 0.0
  # standard deviation of token embeddings at initialisation; larger ones
  # dominate learned positions
  model.embed_init_std = 0.1
  model.pool = 'mean'  # how the vectors of the tokens become one
  model.pool_options = blocks(POOLS)
  # the classification head, from that vector to logits
  model.head = block(HEADS, 'linear')
  model.dtype = 'float32'  # type of the encoder; parameters are float32

  # what the model is trained to do (experiments/learning/tasks.py)
  config.task = block(TASKS, 'classify')

  # the optimizer (experiments/learning/optimizers.py)
  config.optimizer = optimizer = ConfigDict(block(OPTIMIZERS, 'adamw'))
  # of parameters with an optimizer or a learning rate of their own: embeddings,
  # and the matrices of the encoder
  optimizer.groups = {group: asdict(GroupSettings()) for group in GROUPS}
  optimizer.learning_rate = 1e-3  # its peak, after warm-up
  # the learning rate after warm-up: 'cosine' and 'linear' fall to 0 at
  # train.steps, so a shorter run has a shorter schedule
  optimizer.schedule = 'cosine'
  # steps that the learning rate rises over; below 1: a share of train.steps
  optimizer.warmup_steps = 0.05
  optimizer.weight_decay = 0.01  # rate of weight decay, before learning_rate
  # last names of the parameters that have weight decay
  optimizer.weight_decay_names = ('kernel',)
  optimizer.clip_norm = 1.0  # bound of the norm of the gradient; 0: none
  # share of a label's probability that all labels get, in training
  optimizer.label_smoothing = 0.0

  config.train = train = ConfigDict()
  train.steps = 2_000  # updates of the parameters
  train.batch_size = 64  # examples per step, over all devices
  # number of microbatches, to save memory; 0: chosen by the caches of a CPU
  train.grad_accum_steps = 0
  # decay of an exponential moving average of the parameters, which evaluation
  # then uses; 0: none
  train.ema_decay = 0.0
  # shard parameters of at least so many elements over devices; 0: shard none
  train.fsdp_min_size = 0
  train.log_every = 100  # steps between lines with the means of training
  train.eval_every = 500  # steps between evaluations on validation
  train.eval_batch_size = 256  # examples per batch of an evaluation
  # whether each config.seed has its own order of examples, as the runs of an
  # ensemble should; otherwise it is that of config.data.seed
  train.shuffle_by_seed = False
  # workdir of a run whose vocabulary and whose parameters, where they fit, this
  # one begins with, or of a sweep with a trial of this model; empty: none
  train.init_from = ''

  config.checkpoint = checkpoint = ConfigDict()
  # steps between checkpoints; there is one at each evaluation, too
  checkpoint.every_steps = 500
  checkpoint.max_to_keep = 2  # newest checkpoints; the best one is kept, too
  # metric on validation that selects the best checkpoint, one of the task's
  checkpoint.best_metric = 'accuracy'
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
