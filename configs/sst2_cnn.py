"""SST-2 as in GLUE, with a convolution instead of attention.

The baseline of configs/sst2.py: the same data and training, with one residual
convolution over three tokens, and max pooling (as Kim 2014, with one width).
Accuracy on dev, five seeds: docs/results/sst2_cnn_one.json.

Data: train.tsv and dev.tsv as for configs/sst2.py, from the GLUE archive
(https://gluebenchmark.com/tasks).

    bash scripts/run.sh experiments.train --config=configs/sst2_cnn.py \
        --config.data.dir=PATH --workdir=runs/sst2_cnn
"""

from configs import default, sst2


def get_config():
  """Differences from configs/sst2.py."""
  config = sst2.get_config()
  config.model.encoder = 'cnn'
  config.model.embed_dim = 128
  config.model.pool = 'max'
  return config


sweep_seeds = default.sweep_seeds
