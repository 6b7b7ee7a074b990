"""MRPC (Dolan and Brockett 2005): whether two sentences say the same.

4,076 pairs of train and 1,725 of test; 0.1 of train is held out for validation.
The majority class of test has 1,147 pairs, 66.5%.

Data: msr_paraphrase_train.txt and msr_paraphrase_test.txt, tables with tabs, of
the Microsoft Research Paraphrase Corpus.

    bash scripts/run.sh experiments.train --config=configs/mrpc.py \
        --config.data.dir=PATH --workdir=runs/mrpc
    bash scripts/run.sh experiments.predict --workdir=runs/mrpc \
        --text=$'It rained all day.\tThe rain went on all day.'
"""

from configs import default, small_text


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.data.text.train = ('msr_paraphrase_train.txt',)
  config.data.text.test = ('msr_paraphrase_test.txt',)
  config.data.text.text_columns = ('#1 String', '#2 String')
  config.data.text.join = 'pair'
  config.data.text.label_column = 'Quality'
  config.data.text.labels = ('0=different', '1=paraphrase')
  config.data.max_length = 96
  config.model.pair_positions = 'restart'
  config.model.pool = 'mean'
  config.model.word_dropout_rate = 0.3
  # Validation falls after about three epochs.
  config.train.steps = 150
  config.train.eval_every = 50
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
sweep_choice = small_text.sweep_choice
