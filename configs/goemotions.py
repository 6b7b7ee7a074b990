"""GoEmotions (Demszky et al. 2020): 27 emotions and neutral, several of a text.

Data: train.tsv, dev.tsv and test.tsv of the authors, filtered by agreement of
raters, without a header: text, numbers of labels with commas between them, and
an identity; 43,410, 5,426 and 5,427 comments of Reddit.

The recipe is that of small_text.py for more steps, not tuned.

    bash scripts/run.sh experiments.train --config=configs/goemotions.py \
        --config.data.dir=PATH --workdir=runs/goemotions
"""

from configs import default, small_text

EMOTIONS = (
  'admiration', 'amusement', 'anger', 'annoyance', 'approval', 'caring',
  'confusion', 'curiosity', 'desire', 'disappointment', 'disapproval',
  'disgust', 'embarrassment', 'excitement', 'fear', 'gratitude', 'grief',
  'joy', 'love', 'nervousness', 'optimism', 'pride', 'realization', 'relief',
  'remorse', 'sadness', 'surprise', 'neutral',
)  # fmt: skip


def get_config():
  """Differences from configs/small_text.py."""
  config = small_text.get_config()
  config.task = 'multilabel'
  config.data.text.train = ('train.tsv',)
  config.data.text.validation = ('dev.tsv',)
  config.data.text.test = ('test.tsv',)
  config.data.text.format = 'tsv(header=False)'
  config.data.text.text_columns = ('0',)
  config.data.text.label_column = '1'
  config.data.text.label_separator = ','
  config.data.text.labels = tuple(
    f'{number}={name}' for number, name in enumerate(EMOTIONS)
  )
  config.data.max_length = 40
  config.optimizer.label_smoothing = 0.0
  config.train.steps = 2_000
  config.train.eval_every = 500
  config.checkpoint.best_metric = 'macro_f1'
  return config


sweep_positions = default.sweep_positions
sweep_seeds = default.sweep_seeds
