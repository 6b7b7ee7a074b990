"""TREC"""

from configs import default


def get_config():
  """configs/default.py with what differs."""
  config = default.get_config()

  config.data.name = 'text'
  config.data.text.format = 'lines'
  config.data.text.train = ('TREC.train',)
  config.data.text.test = ('TREC.test',)
  config.data.text.encoding = 'latin-1'
  config.data.text.label_depth = 1
  config.data.num_buckets = 3
  config.train.steps = 1_500
  return config
