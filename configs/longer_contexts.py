"""Longer contexts after training: a trained model with other positions.

Three seeds of the language model of configs/language_model.py are trained on
windows of 128 bytes of IMDB's reviews, PATH being a folder with train.tsv and
test.tsv:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --sweep=seeds --workdir=runs/short

Each way of reading longer texts begins with these models: without any training
(zero steps), and with some on longer windows, of as many bytes in a batch:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/short \
        --config.train.steps=0 --sweep=ways,seeds --workdir=runs/long
    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/short \
        --sweep=ways,windows,seeds --workdir=runs/longer

Other models are trained with --config.model.position='rotary,rotary,none',
without positions in the last layer, and with
--config.model.position_sampling='randomised(max_position=2048)'.
"""

from configs import language_model

# Bytes of a window of training.
SHORT = 128


def get_config():
  """Differences from configs/language_model.py."""
  config = language_model.get_config()
  config.data.source = 'stream(train_bytes=10000000, test_bytes=200000)'
  config.data.text.test = ('test.tsv',)
  config.data.validation_fraction = 0.005
  config.data.max_length = SHORT
  config.model.position = 'rotary'
  config.train.steps = 1500
  config.train.eval_every = 1500
  config.train.eval_lengths = (128, 256, 512, 1024, 2048, 4096)
  return config


def sweep_ways():
  """Ways of reading windows that are longer than those of training."""
  yield {'model.position': 'rotary'}
  yield {'model.position': 'none'}
  yield {'model.position': _scaled('dynamic')}
  for factor in (4, 16):
    for scaling in ('linear', 'ntk', 'yarn'):
      yield {'model.position': _scaled(scaling, factor)}
  yield {'model.encoder': f'attention(causal=True, window=({SHORT - 1}, 0))'}


def _scaled(scaling, factor=1):
  options = {'scaling': scaling, 'factor': factor, 'original_length': SHORT}
  if scaling in ('linear', 'ntk'):
    del options['original_length']
  options = ', '.join(f'{name}={value}' for name, value in options.items())
  return f'rotary({options})'


def sweep_windows():
  """Further training on longer windows, of as many bytes in a batch."""
  for length in (512, 2048):
    for steps in (30, 100, 300):
      yield {
        'data.max_length': length,
        'train.batch_size': 32 * SHORT // length,
        'train.steps': steps,
        'train.eval_every': steps,
        'optimizer.learning_rate': 5e-4,
      }


sweep_positions = language_model.sweep_positions
sweep_seeds = language_model.sweep_seeds
