"""Longer contexts after training: a trained model with other positions.

Three seeds of the language model of configs/language_model.py are trained on
windows of 128 bytes of IMDB's reviews, PATH being a folder with train.tsv and
test.tsv:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --sweep=seeds --workdir=runs/short

Each way of reading longer texts begins with these models, without any training
(zero steps). Ways are ranked by the loss in windows of 512 bytes of validation:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/short \
        --config.train.steps=0 --sweep=ways,seeds --workdir=runs/ways \
        --metric=bits_per_byte_512 \
        --baseline='position=rotary, encoder=attention(causal=True)'
    bash scripts/run.sh python scripts/by_place.py --workdir=runs/ways \
        --output=FILE

The last command has the loss by position. What attention does, of seed 0:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/short \
        --config.train.steps=0 '--config.train.eval_lengths=(128, 512, 2048)' \
        --config.train.measures=attention_entropy+attention_to_first \
        --sweep=ways --workdir=runs/attention

Or they are trained a little on longer windows, 2,048 bytes in a batch:

    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/short \
        --sweep=windows,seeds --workdir=runs/windows --metric=bits_per_byte_512

Other first models, of one seed, each with a few of these ways: `xpos`, layers
without positions (`rotary,rotary,none`, with --sweep=layers), and rotary with
--config.model.position_sampling=randomised in both commands or in the first
(with --sweep=few):

    bash scripts/run.sh experiments.train --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.model.position=xpos \
        --workdir=runs/xpos
    bash scripts/run.sh experiments.sweep --config=configs/longer_contexts.py \
        --config.data.dir=PATH --config.train.init_from=runs/xpos \
        --config.train.steps=0 --sweep=xpos --workdir=runs/xpos_ways \
        --metric=bits_per_byte_512
"""

import itertools

from configs import language_model

# Bytes of a window of the first training.
SHORT = 128
ORIGINAL = f'original_length={SHORT}'
WINDOW = f'attention(causal=True, window=({SHORT - 1}, 0))'


def get_config():
  """Differences from configs/language_model.py."""
  config = language_model.get_config()
  config.data.source = 'stream(train_bytes=10000000, test_bytes=65536)'
  config.data.text.test = ('test.tsv',)
  config.data.validation_fraction = 0.001
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
  yield {'model.encoder': WINDOW}
  yield {'model.position': f'rotary(scaling=dynamic, {ORIGINAL})'}
  for factor in (4, 16):
    yield from scaled(factor, ('linear', 'ntk', 'yarn', 'llama3'))


def sweep_windows():
  """Further training on longer windows, 2,048 bytes in a batch."""
  for steps, length in itertools.product((30, 100, 300), (512, 2048)):
    ways = [{'model.position': 'rotary'}, {'model.position': 'none'}]
    ways += [{'model.encoder': WINDOW}]
    ways += scaled(length // SHORT, ('linear', 'yarn'))
    for way in ways:
      yield way | {
        'data.max_length': length,
        'train.batch_size': 2048 // length,
        'train.eval_batch_size': 256 * SHORT // length,
        'train.steps': steps,
        'train.eval_every': steps,
        'train.eval_lengths': (128, 512, 2048),
        'optimizer.learning_rate': 5e-4,
      }


def sweep_few():
  """Five ways of reading longer windows, of `rotary`."""
  yield from _few('rotary{}')


def sweep_xpos():
  """Five ways of reading longer windows, of `xpos`."""
  yield from _few('xpos{}')


def sweep_layers():
  """Five ways, of two layers with rotary positions and one without."""
  yield from _few('rotary{0}, rotary{0}, none')


def _few(method):
  for options in ('', *map(_options, (4, 16, 16), ('yarn', 'ntk', 'yarn'))):
    yield {'model.position': method.format(options)}
  yield {'model.position': method.format(''), 'model.encoder': WINDOW}


def scaled(factor, scalings):
  """Rotary positions with frequencies for `factor` times the window."""
  for scaling in scalings:
    yield {'model.position': f'rotary{_options(factor, scaling)}'}


def _options(factor, scaling):
  options = f'scaling={scaling}, factor={factor}'
  if scaling in ('yarn', 'llama3'):
    options += f', {ORIGINAL}'
  return f'({options})'


sweep_positions = language_model.sweep_positions
sweep_seeds = language_model.sweep_seeds
