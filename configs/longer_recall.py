"""MQAR (configs/mqar.py) in texts that are longer than those of training.

It is configs/passkey.py with another task: eight keys with their values begin a
text, and each key is asked for once, at any distance. Texts of training have
128 tokens, those of test up to 2,048.

    bash scripts/run.sh experiments.sweep --config=configs/longer_recall.py \
        --sweep=seeds --workdir=runs/recall
    bash scripts/run.sh experiments.sweep --config=configs/longer_recall.py \
        --config.train.init_from=runs/recall --config.train.steps=0 \
        --sweep=ways,seeds --workdir=runs/longer_recall
    bash scripts/run.sh python scripts/by_place.py \
        --workdir=runs/longer_recall --output=FILE
"""

from configs import mqar, passkey


def get_config():
  """Differences from configs/passkey.py."""
  config = passkey.get_config()
  config.data.source = _source(train=192_000)
  return config


def _source(train):
  return (
    'mqar(vocab_size=64, num_pairs=8, length=128, test_lengths=(128, 256, '
    f'512, 1024, 2048), power=1, train={train}, test=100)'
  )


def sweep_ways():
  """Ways of reading longer texts, as in configs/passkey.py, untrained."""
  for way in passkey.sweep_ways():
    yield way | {'data.source': _source(train=1_000)}


sweep_seeds = mqar.sweep_seeds
