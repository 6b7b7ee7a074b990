"""all-MiniLM-L6-v2 as an encoder of sentences, on STS-B, one epoch.

Sentences of pairs with a score of at least 4 belong together. Validation and
test measure whether they find each other, and the Spearman correlation of
cosines with all scores. Data: see configs/stsb.py.

    bash scripts/run.sh experiments.train --config=configs/minilm_stsb.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm_stsb
    bash scripts/run.sh experiments.predict --workdir=runs/minilm_stsb \
        --input=sentences.txt --output=vectors.npy
"""

from configs import default, fine_tuning, stsb


def get_config():
  """Differences from configs/fine_tuning.py."""
  config = fine_tuning.get_config(stsb)
  config.task = 'contrastive(positive=4)'
  config.data.text.join = 'apart'
  config.train.steps = 180
  config.train.eval_every = 60
  config.optimizer.learning_rate = 2e-5
  config.checkpoint.best_metric = 'spearman'
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
