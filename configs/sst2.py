"""SST-2 in the form of GLUE: phrases to train on, dev sentences to report.

Data: train.tsv and dev.tsv with columns `sentence` and `label`, as in the GLUE
archive (https://gluebenchmark.com/tasks); 67,349 and 872 examples.

    bash scripts/run.sh experiments.train --config=configs/sst2.py \
        --config.data.dir=PATH --workdir=runs/sst2
"""

from configs import default


def get_config():
  """configs/default.py with what differs."""
  config = default.get_config()
  config.data.name = 'text'
  config.data.text.train = ('train.tsv',)
  config.data.text.test = ('dev.tsv',)
  config.data.text.text_columns = ('sentence',)
  config.data.text.labels = ('0=negative', '1=positive')
  config.data.num_buckets = 6
  config.train.steps = 5_000
  return config
