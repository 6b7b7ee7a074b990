"""STS-B (Cer et al. 2017): how alike two sentences are, from 0 to 5.

5,749, 1,500 and 1,379 pairs of train, dev and test. Some lines of the files of
the benchmark have more fields than others; PATH has the score and the sentences
alone, with tabs between them:

    for split in train dev test; do
      cut -f 5-7 sts-$split.csv > PATH/$split.tsv
    done

    bash scripts/run.sh experiments.train --config=configs/stsb.py \
        --config.data.dir=PATH --workdir=runs/stsb
    bash scripts/run.sh experiments.predict --workdir=runs/stsb \
        --text=$'A man is playing a flute.\tA man plays an instrument.'
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.task = 'regression'
  config.data.text.train = ('train.tsv',)
  config.data.text.validation = ('dev.tsv',)
  config.data.text.test = ('test.tsv',)
  config.data.text.format = 'tsv(header=False)'
  config.data.text.text_columns = ('1', '2')
  config.data.text.join = 'pair'
  config.data.text.label_column = '0'
  config.data.max_length = 64
  config.model.pair_positions = 'restart'
  config.model.pool = 'mean'
  config.optimizer.label_smoothing = 0.0
  # Validation falls after about three epochs.
  config.train.steps = 400
  config.train.eval_every = 50
  config.checkpoint.best_metric = 'pearson'
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds


def sweep_choice():
  """The recipe, and what differs from it in one thing: validation decides."""
  yield {}
  yield {'model.pool': 'max'}
  yield {'model.word_dropout_rate': 0.3}
  yield {'model.num_layers': 2}
  yield {'model.embed_init_std': 0.5}
  yield {'optimizer.learning_rate': 1e-3}
  yield {'model.pair_positions': 'run_on'}
