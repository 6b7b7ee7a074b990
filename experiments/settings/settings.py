"""The settings of a run: every key of a config, and all checks.

This is the only reader of ConfigDicts, and it uses no device. Every check
raises UserError with the key to change.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any

from experiments.command import schema
from experiments.command.calls import Call, Table
from experiments.command.config_files import plain
from experiments.command.schema import (
  ABOVE_0,
  POSITIVE,
  SEED,
  at_least,
  choice,
  field,
  one_of,
  section,
)
from experiments.data.data_settings import DataSettings
from experiments.data.vectors import EMBEDDINGS, Random
from experiments.learning.curricula import CURRICULA, Whole
from experiments.learning.measures import MEASURES, Measure
from experiments.learning.optimizers import OptimizerSettings
from experiments.learning.schedules import warmup_updates
from experiments.learning.task_table import TASKS
from experiments.learning.tasks import Task
from experiments.settings import validation
from experiments.workdir.workdir import CheckpointSettings
from selfattn import positions
from selfattn.blocks import BLOCKS, Block
from selfattn.contract import Encoder
from selfattn.dropout import MAX_RATE
from selfattn.encoders import ENCODERS
from selfattn.feed_forward import EXPERTS, Experts
from selfattn.heads import HEADS, TOKEN_HEADS, Head, VocabularyHead
from selfattn.normalisers import NORMALISERS, Softmax
from selfattn.pools import POOLS, Pool
from selfattn.positions import POSITIONS, Position
from selfattn.positions.sampling import SAMPLINGS, Consecutive

DTYPES = ('float32', 'bfloat16')
# Keys that do not change what is computed, so that a resumed run may change
# them. The folder of the data is one of them, since its content is checked.
FREE = (
  'data.dir',
  'train.callback',
  'train.log_every',
  'train.fsdp_min_size',
  'checkpoint.max_to_keep',
)
_RATE = schema.Limit(
  f'at least 0 and less than 1, {MAX_RATE:.8f} at most',
  lambda value: 0 <= value <= MAX_RATE,
)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
  """The classifier.

  Attributes:
    pretrained: folder of a published model, or its name on the Hugging Face
      hub, whose parameters a run begins with. What its config.json says is the
      value of each key of this section, and of data.vocabulary, that is not
      given; empty: none.
    encoder: from token vectors to contextual vectors.
    position: the position method, or several joined by +, as sinusoidal+t5, or
      a pattern of such over layers, as rotary,rotary,none.
    position_sampling: how position ids are chosen in training.
    pair_positions: where positions of the second text of a pair begin, see
      data.text.join: 'run_on': after those of the first text; 'restart': where
      those of the first text begin.
    normaliser: the function from attention scores to weights, or a pattern of
      them over layers.
    block: how attention, feed-forward network and norms make a layer.
    experts: in place of the feed-forward networks, of which each token has a
      few; empty: none.
    num_layers: layers of the encoder.
    num_heads: heads of attention; a divisor of embed_dim.
    embed_dim: width of the token vectors.
    mlp_dim: width of the hidden layer of feed-forward layers.
    vocab_size: rows of the table of token embeddings; 0: those of the
      vocabulary.
    num_token_types: learned vectors that are added to tokens by their text of a
      pair, those of single texts have the first one; 0: none; -1: two for
      pairs.
    dropout_rate: dropout rate of embeddings, residual branches, pooled vector
      and head.
    attention_dropout_rate: dropout rate of attention weights.
    word_dropout_rate: share of the tokens that are replaced by [UNK] in
      training.
    embed_init_std: standard deviation of token embeddings at initialisation;
      larger ones dominate learned positions.
    embeddings: the token embeddings that a run begins with: random ones, or
      those of words in a file, as file(path=glove.txt, freeze=True).
    pool: how the vectors of the tokens become one.
    head: the classification head, from that vector to logits.
    token_head: the head of tasks that predict tokens of the vocabulary, with
      the table of embeddings unless the task says tied=False; empty: that of
      the task.
    dtype: type of the encoder and of heads on tokens; parameters are float32.
  """

  pretrained: str = ''
  encoder: Call = choice('attention', Table(ENCODERS, Encoder))
  position: tuple[tuple[Call, ...], ...] = choice(
    'sinusoidal',
    Table(POSITIONS, Position, positions.ALIASES, joins=True, layers=True),
  )
  position_sampling: Call = choice('consecutive', Table(SAMPLINGS, Consecutive))
  pair_positions: str = field('run_on', one_of(('run_on', 'restart')))
  normaliser: tuple[tuple[Call, ...], ...] = choice(
    'softmax', Table(NORMALISERS, Softmax, layers=True)
  )
  block: Call = choice('pre', Table(BLOCKS, Block))
  experts: tuple[Call, ...] = choice(
    '', Table(EXPERTS, Experts, joins=True, optional=True)
  )
  num_layers: int = field(2, POSITIVE)
  num_heads: int = field(4, POSITIVE)
  embed_dim: int = field(64, POSITIVE)
  mlp_dim: int = field(128, POSITIVE)
  vocab_size: int = field(0, at_least(0))
  num_token_types: int = field(-1, at_least(-1))
  dropout_rate: float = field(0.1, _RATE)
  attention_dropout_rate: float = field(0.0, _RATE)
  word_dropout_rate: float = field(0.0, _RATE)
  embed_init_std: float = field(0.1, ABOVE_0)
  embeddings: Call = choice('random', Table(EMBEDDINGS, Random))
  pool: Call = choice('mean', Table(POOLS, Pool))
  head: Call = choice('linear', Table(HEADS, Head))
  token_head: tuple[Call, ...] = choice(
    '', Table(TOKEN_HEADS, VocabularyHead, joins=True, optional=True)
  )
  dtype: str = field('float32', one_of(DTYPES))


@dataclasses.dataclass(frozen=True)
class TrainSettings:
  """The loop of training.

  Attributes:
    steps: updates of the parameters; 0: a run of the first ones. More of them,
      in the workdir of a run, continue training.
    batch_size: examples per step, over all devices.
    ema_decay: decay of an exponential moving average of the parameters, which
      evaluation then uses; 0: none.
    grad_accum_steps: number of microbatches, to save memory; 0: chosen by the
      caches of a CPU.
    fsdp_min_size: shard parameters of at least so many elements over devices;
      0: shard none.
    log_every: steps between lines with the means of training.
    eval_every: steps between evaluations on validation.
    curriculum: how many tokens of a text training reads, by step: 'whole': all;
      'longer': more and more.
    patience: early stopping: evaluations without a better score than that of
      an earlier one, by config.checkpoint.best_metric, after which training
      stops; 0: any.
    eval_batch_size: examples per batch of an evaluation.
    eval_lengths: lengths of windows in which a stream is evaluated, too:
      metrics bits_per_byte_LENGTH, and those of measures.
    measures: metrics of what the encoder sows, beside those of the task, such
      as attention_entropy; several are joined by +; empty: none. One with a
      weight is added to the loss, as an auxiliary loss such as
      load_balance(weight=0.01), the load-balancing loss. Where attention
      weights are measured, attention is one that forms them.
    callback: module:function of one's own, called after each evaluation on
      validation; empty: none.
    shuffle_by_seed: whether each config.seed has its own order of examples, as
      the runs of an ensemble should; otherwise it is that of config.data.seed.
    init_from: workdir of a run whose vocabulary and whose parameters, where
      they fit, this one begins with, or of a sweep with one trial that has the
      same value of each key that differs between its trials; empty: none.
  """

  steps: int = field(2_000, at_least(0))
  batch_size: int = field(64, POSITIVE)
  ema_decay: float = field(0.0, _RATE)
  grad_accum_steps: int = field(0, at_least(0))
  fsdp_min_size: int = field(0, at_least(0))
  log_every: int = field(100, POSITIVE)
  eval_every: int = field(500, POSITIVE)
  curriculum: Call = choice('whole', Table(CURRICULA, Whole))
  patience: int = field(0, at_least(0))
  eval_batch_size: int = field(256, POSITIVE)
  eval_lengths: tuple = ()
  measures: tuple[Call, ...] = choice(
    '', Table(MEASURES, Measure, joins=True, optional=True)
  )
  callback: str = ''
  shuffle_by_seed: bool = False
  init_from: str = ''

  def trained_measures(self) -> dict[str, Measure]:
    """The measures that are added to the loss, by name."""
    made = {call.label: call.make() for call in self.measures}
    return {name: measure for name, measure in made.items() if measure.weight}


@dataclasses.dataclass(frozen=True)
class Settings:
  """A whole run.

  Attributes:
    seed: seed of initial parameters and of dropout.
    task: what the model is trained to do.
    Further fields are the sections of a config.
  """

  seed: int = field(0, SEED)
  data: DataSettings = section(DataSettings)
  model: ModelSettings = section(ModelSettings)
  task: Call = choice('classify', Table(TASKS, Task))
  optimizer: OptimizerSettings = section(OptimizerSettings)
  train: TrainSettings = section(TrainSettings)
  checkpoint: CheckpointSettings = section(CheckpointSettings)

  def __post_init__(self):
    # A share of the run and the same number of steps are the same run.
    updates = warmup_updates(self.optimizer.warmup_steps, self.train.steps)
    optimizer = dataclasses.replace(self.optimizer, warmup_steps=updates)
    object.__setattr__(self, 'optimizer', optimizer)
    # The metric that a task lists first, by its name or by none, likewise.
    best_metric = self.checkpoint.best_metric or next(iter(self.metrics), '')
    checkpoint = dataclasses.replace(self.checkpoint, best_metric=best_metric)
    object.__setattr__(self, 'checkpoint', checkpoint)

  @property
  def metrics(self) -> dict[str, Callable]:
    """max or min, the best value, by name: of the task, then of the others."""
    metrics = self.task.make().all_metrics()
    measures = {call.label: call.entry.best for call in self.train.measures}
    if self.data.is_stream:
      metrics |= {'bits_per_byte': min}
      of_windows = {'bits_per_byte': min} | measures
      for length in self.train.eval_lengths:
        metrics |= {f'{n}_{length}': best for n, best in of_windows.items()}
    return metrics | measures

  @property
  def best(self) -> Callable:
    """max or min: what is best of several values of checkpoint.best_metric."""
    return self.metrics[self.checkpoint.best_metric]

  def flat(self) -> dict[str, Any]:
    """Values by dotted key of the config; of a choice, its canonical text."""
    return schema.flat(self)

  def digest(self, free: Collection[str] = FREE) -> str:
    """Sixteen hexadecimal digits, the same for runs that compute the same.

    Defaults are left out, so that a new key, or option, changes no digest, as
    are keys that are `free`.
    """
    usual = default_values()
    chosen = {
      key: value
      for key, value in self.flat().items()
      if key not in free and value != usual[key]
    }
    text = json.dumps(chosen, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def identity(self) -> str:
    """The digest of a run that may go on with more steps."""
    return self.digest((*FREE, 'train.steps'))

  def own_names(self) -> list[str]:
    """`module:NAME` of all that is of no table, but of one's own modules."""
    chosen = [
      *schema.calls_of(self),
      *self.optimizer.methods_by_group().values(),
    ]
    names = (call.name for call in chosen if ':' in call.name)
    return list(dict.fromkeys(names))


def default_config() -> dict:
  """The nested config of all defaults, as JSON holds it."""
  return json.loads(json.dumps(schema.defaults(Settings)))


@functools.cache
def default_values() -> dict[str, Any]:
  """Values of all defaults by dotted key, as those of Settings.flat."""
  return from_config(default_config()).flat()


def from_config(config) -> Settings:
  """Settings from a ConfigDict or the like nested dict, or a UserError."""
  settings = incomplete(config)
  validation.check(settings)
  return settings


def incomplete(config) -> Settings:
  """Settings as of `from_config`, each valid alone, of which no run is made."""
  values = config.to_dict() if hasattr(config, 'to_dict') else dict(config)
  return schema.read(Settings, plain(values))
