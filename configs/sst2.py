"""SST-2 as in GLUE: trains on phrases, reports accuracy on the dev sentences.

Data: train.tsv and dev.tsv with columns `sentence` and `label`, as in the GLUE
archive (https://gluebenchmark.com/tasks); 67,349 and 872 examples.

Size and number of steps were chosen on data held out from train. The first run
also compiles a step for each of 13 lengths, which takes 40 seconds. Accuracy on
dev, eight seeds: docs/results/sst2_one.json.

    bash scripts/run.sh experiments.train --config=configs/sst2.py \
        --config.data.dir=PATH --workdir=runs/sst2

An ensemble is a sweep over seeds; eight were chosen, on the same data:

    bash scripts/run.sh experiments.sweep --config=configs/sst2.py \
        --config.data.dir=PATH --config.train.shuffle_by_seed=True \
        --grid=config.seed=0,1,2,3,4,5,6,7 --workdir=runs/sst2_seeds
    bash scripts/run.sh experiments.evaluate \
        --workdir='runs/sst2_seeds/trials/*' --split=test
"""

from configs import default


def get_config():
  """Differences from configs/default.py."""
  config = default.get_config()
  config.data.source = 'text'
  config.data.text.train = ('train.tsv',)
  config.data.text.test = ('dev.tsv',)
  config.data.text.text_columns = ('sentence',)
  config.data.text.labels = ('0=negative', '1=positive')
  config.data.num_buckets = 13
  # Complete sentences with their phrases: otherwise, nearly all phrases of
  # validation are parts of texts of train.
  config.data.split_by = 'sentence'
  config.data.validation_fraction = 0.02
  config.model.num_layers = 1
  config.model.position = 'learned'
  config.model.dropout_rate = 0.5
  # Most parameters are embeddings, so these need weight decay, too.
  config.optimizer.weight_decay_names = ('kernel', 'embedding')
  config.optimizer.learning_rate = 2e-3
  config.optimizer.warmup_steps = 0.1
  config.optimizer.weight_decay = 1.0
  config.optimizer.label_smoothing = 0.1
  config.train.batch_size = 128
  config.train.steps = 1_000
  config.train.eval_every = 500
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.embed_dim': 32}
  yield {'model.embed_dim': 128}
  yield {'model.pool': 'max'}
  yield {'model.dropout_rate': 0.3}
  yield {'model.attention_dropout_rate': 0.1}
  yield {'model.word_dropout_rate': 0.1}
  yield {'model.position': 'learned+convolutional'}
  yield {'data.vocabulary': 'word(min_count=2)'}
  yield {'data.vocabulary': 'bpe'}
  yield {'optimizer.learning_rate': 1e-3}
  yield {'optimizer.weight_decay': 2.0}
  yield {'optimizer.label_smoothing': 0.2}
  yield {'train.steps': 2_000, 'train.eval_every': 1_000}
