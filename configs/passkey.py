"""Passkey retrieval (Mohtashami and Jaggi 2023), of several keys at once.

Eight keys, each with its value, stand at one of ten depths among random words,
and the end of the text asks for each, in another order. Texts of training have
128 tokens, so that no pair ends after the 112th; the test has as many texts of
128, 256, 512, 1,024 and 2,048. With `rotary`, three seeds of four learn it
between 1,000 and 2,000 steps: then the accuracy on validation is 1.

    bash scripts/run.sh experiments.train --config=configs/passkey.py \
        --workdir=runs/passkey
    bash scripts/run.sh experiments.evaluate --workdir=runs/passkey

Runs of zero steps begin with a trained one, and have other positions, see
configs/longer_contexts.py:

    bash scripts/run.sh experiments.sweep --config=configs/passkey.py \
        --sweep=seeds --workdir=runs/passkeys
    bash scripts/run.sh experiments.sweep --config=configs/passkey.py \
        --config.train.init_from=runs/passkeys --config.train.steps=0 \
        --sweep=ways,seeds --workdir=runs/longer_passkeys
    bash scripts/run.sh python scripts/by_place.py \
        --workdir=runs/longer_passkeys --output=FILE
"""

from configs import longer_contexts, mqar

# Each layer, or the first, reads as many tokens as end with a pair in training.
LOCAL = 'attention(causal=True, window=(111, 0))'
FIRST_LOCAL = 'attention(causal=True, window=((111, 0), ()))'


def get_config():
  """Differences from configs/mqar.py."""
  config = mqar.get_config()
  # As many texts as are read: none is seen twice.
  config.data.source = _source(train=192_000)
  config.data.max_length = 2048
  config.data.num_buckets = 5
  config.train.steps = 3_000
  config.train.eval_batch_size = 16
  return config


def _source(train):
  return (
    'passkey(vocab_size=64, num_pairs=8, length=128, test_lengths=(128, 256, '
    f'512, 1024, 2048), train={train}, test=100)'
  )


def sweep_ways():
  """No change, the best ways of longer_contexts, and local layers.

  None is trained, and no text is one of those that were trained on.
  """
  unchanged = {'model.position': 'rotary'}
  yarn, llama3 = longer_contexts.scaled(4, ('yarn', 'llama3'))
  ntk, far_yarn = longer_contexts.scaled(16, ('ntk', 'yarn'))
  ways = [unchanged, {'model.encoder': longer_contexts.WINDOW}]
  ways += [yarn, llama3, ntk, far_yarn, {'model.encoder': LOCAL}]
  ways += [
    way | {'model.encoder': FIRST_LOCAL} for way in (unchanged, yarn, ntk)
  ]
  for way in ways:
    yield way | {'data.source': _source(train=1_000), 'data.seed': 1}


def sweep_seeds():
  """Three seeds that learn it; 2 has not, after 3,000 steps."""
  for seed in (0, 1, 3):
    yield {'seed': seed}
