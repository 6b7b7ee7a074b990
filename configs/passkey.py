"""Passkey retrieval (Mohtashami and Jaggi 2023), of several keys at once.

Eight keys, each with its value, stand at one of ten depths among 128 random
words, and the end of the text asks for each. The test has as many texts of 128,
256, 512, 1,024 and 2,048 tokens. `rotary` learns it between 1,500 and 2,000
steps: then the accuracy on validation is 1.

    bash scripts/run.sh experiments.train --config=configs/passkey.py \
        --workdir=runs/passkey
    bash scripts/run.sh experiments.evaluate --workdir=runs/passkey

One key is what a passkey is: a run of zero steps begins with a trained one,

    --config.train.init_from=runs/passkey --config.train.steps=0
    --config.data.source='passkey(vocab_size=64, num_pairs=1, length=128)'

and so do runs with other positions, see configs/longer_contexts.py:

    bash scripts/run.sh experiments.sweep --config=configs/passkey.py \
        --sweep=seeds --workdir=runs/passkeys
    bash scripts/run.sh experiments.sweep --config=configs/passkey.py \
        --config.train.init_from=runs/passkeys --config.train.steps=0 \
        --sweep=ways,seeds --workdir=runs/longer_passkeys
"""

from configs import longer_contexts, mqar


def get_config():
  """Differences from configs/mqar.py."""
  config = mqar.get_config()
  # As many texts as are read: none is seen twice.
  config.data.source = (
    'passkey(vocab_size=64, num_pairs=8, length=128, test_lengths=(128, 256, '
    '512, 1024, 2048), train=192000, test=100)'
  )
  config.data.max_length = 2048
  config.train.steps = 3_000
  config.train.eval_batch_size = 16
  return config


sweep_seeds = mqar.sweep_seeds
sweep_ways = longer_contexts.sweep_ways
