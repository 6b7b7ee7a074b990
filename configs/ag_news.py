"""AG News: titles and descriptions in four classes, 120,000 train, 7,600 test.

Data: train.csv and test.csv, quoted, without header (class, title,
description), from https://github.com/mhjabreel/CharCnn_Keras
(folder data/ag_news_csv).

    bash scripts/run.sh experiments.train --config=configs/ag_news.py \
        --config.data.dir=PATH --workdir=runs/ag_news
"""

from configs import default, sst2


def get_config():
  """Hyperparameters of configs/sst2.py on AG News."""
  config = sst2.get_config()
  config.data.text.train = ('train.csv',)
  config.data.text.test = ('test.csv',)
  config.data.text.format = 'csv(header=False)'
  config.data.text.text_columns = ('1', '2')
  config.data.text.label_column = '0'
  config.data.text.labels = ('1=world', '2=sports', '3=business', '4=science')
  config.data.split_by = 'text'
  config.data.max_length = 128
  config.optimizer.warmup_steps = 1 / 15
  config.train.steps = 1_500
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
