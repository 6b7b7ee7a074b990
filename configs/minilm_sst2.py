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
  """Learning rates and epochs; a fifth of train decides."""
  rates = [(rate, 3) for rate in (1e-4, 5e-5, 2e-4, 4e-4)]
  for learning_rate, epochs in (*rates, (1e-4, 6)):
    yield {
      'data.validation_fraction': 0.2,
      'optimizer.learning_rate': learning_rate,
      'train.steps': 173 * epochs,
      'train.eval_every': 173 * epochs,
    }


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
