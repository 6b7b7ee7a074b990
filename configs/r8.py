"""R8: Reuters news in eight classes, 5,485 train and 2,189 test.

Data: train.txt and test.txt, with class, tab and text on each line, from
https://github.com/yao8839836/text_gcn (folder data/R8).

Accuracy on test, five seeds: docs/results/r8.json.

    bash scripts/run.sh experiments.train --config=configs/r8.py \
        --config.data.dir=PATH --workdir=runs/r8
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.data.text.format = 'tsv(header=False)'
  config.data.text.text_columns = ('1',)
  config.data.text.label_column = '0'
  config.data.text.train = ('train.txt',)
  config.data.text.test = ('test.txt',)
  config.data.validation_fraction = 0.05
  config.data.max_length = 256
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.pool': 'mean'}
  yield {'model.dropout_rate': 0.5}
  yield {'optimizer.weight_decay': 0.1}
  yield {'optimizer.weight_decay': 1.0}
  yield {'train.steps': 1_400}
