"""Fine-tuning of all-MiniLM-L6-v2 on the sentences of SST-2, three epochs.

The recipe of configs/fine_tuning.py. Data: see configs/sst2_sentences.py.
Accuracy, three seeds: docs/results/minilm_sst2.json.

    bash scripts/run.sh experiments.train --config=configs/minilm_sst2.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm_sst2
"""

from configs import default, fine_tuning, sst2_sentences


def get_config():
  """Differences from configs/fine_tuning.py."""
  config = fine_tuning.get_config(sst2_sentences)
  # Test is the split that published fine-tunings report.
  config.data.text.validation = ()
  config.data.text.test = ('stsa.binary.dev',)
  config.train.steps = 616
  config.train.eval_every = 206
  return config


def sweep_recipes():
  """Changes of the recipe, of which a fifth of train decides."""
  held_out = {
    'data.validation_fraction': 0.2,
    'train.steps': 519,
    'train.eval_every': 519,
  }
  for changes in (
    {'optimizer.learning_rate': 1e-4},
    {'optimizer.learning_rate': 5e-5},
    {'optimizer.learning_rate': 2e-4},
    {'optimizer.learning_rate': 4e-4},
    {'train.steps': 1038, 'train.eval_every': 1038},
    {'optimizer.label_smoothing': 0.1},
    {'train.ema_decay': 0.99},
  ):
    yield held_out | changes


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
