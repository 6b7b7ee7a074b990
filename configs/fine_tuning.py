"""Fine-tuning of a published encoder on a table of texts.

The recipe of the BERT paper (Devlin et al. 2019, appendix A.3), with a learning
rate for small models. Three epochs of N texts are 3 N / 32 steps: set
train.steps to them. docs/data.md has the keys of a table, docs/pretrained.md a
published model.

    bash scripts/run.sh experiments.train --config=configs/fine_tuning.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --config.data.test_fraction=0.1 --workdir=runs/fine_tuning
"""

from configs import default, small_text


def get_config(data=small_text):
  """The defaults, with a recipe for fine-tuning.

  Args:
    data: the config whose data are read.
  """
  config = default.get_config()
  vocabulary = config.data.vocabulary
  config.data = data.get_config().data
  config.data.vocabulary = vocabulary
  config.data.num_buckets = 4
  config.train.batch_size = 32
  config.train.steps = 500
  config.train.eval_every = 100
  config.optimizer.learning_rate = 1e-4
  config.optimizer.warmup_steps = 0.1
  config.optimizer.schedule = 'linear'
  config.optimizer.weight_decay = 0.01
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
