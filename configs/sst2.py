"""SST2"""

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
