"""Accuracy of a published encoder after fine-tuning by transformers.

    python -m venv PEER && PEER/bin/pip install -r requirements.txt torch transformers
    PYTHONPATH=. PEER/bin/python scripts/fine_tuning_peer.py \\
      --config=configs/minilm.py --config.data.dir=PATH --folder=FOLDER --output=FILE

Splits, steps, batch size, learning rate, schedule and weight decay are those of
a config; the model is AutoModelForSequenceClassification, which has a pooler. A
seed that FILE has is not trained again.
"""  # noqa: E501
# PyTorch and transformers need not be installed.
# pyright: reportMissingImports=false

import importlib.metadata
import json
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
import torch
import transformers
from absl import app, flags
from ml_collections import config_flags

from experiments.command import provenance
from experiments.data import loading, rows
from experiments.settings.settings import from_config
from experiments.sweeps.comparison import interval

CONFIG = config_flags.DEFINE_config_file('config')
FOLDER = flags.DEFINE_string(
  'folder', None, 'A published model.', required=True
)
OUTPUT = flags.DEFINE_string('output', None, 'A JSON file.', required=True)
SEEDS = range(3)


def splits(settings) -> dict[str, tuple[list, np.ndarray]]:
  """Texts, or pairs of them, and labels, by split."""
  data, reader = settings.data, settings.task.entry.labels
  source, read, _, _, chosen = loading.selected(data, reader)
  texts = np.array([text for part in read.stream() for text in part], object)
  if source.has_pairs:
    texts = np.array([tuple(rows.parted(text)) for text in texts], object)
  values = reader.values(read.names, chosen.facts['labels'])[0][read.labels]
  return {
    split: (texts[index].tolist(), values[index])
    for split, index in chosen.splits.items()
  }


class Classifier:
  """A published encoder with a head of its own, and its tokenizer."""

  def __init__(self, settings, num_classes: int):
    kind = transformers.AutoModelForSequenceClassification
    self.model = kind.from_pretrained(FOLDER.value, num_labels=num_classes)
    self.tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER.value)
    self.max_length = settings.data.max_length

  def logits(self, texts: list) -> torch.Tensor:
    """Logits of texts, or of pairs, (texts, classes)."""
    columns = [texts]
    if not isinstance(texts[0], str):
      columns = [list(column) for column in zip(*texts, strict=True)]
    inputs = self.tokenizer(
      *columns,
      padding=True,
      truncation=True,
      max_length=self.max_length,
      return_tensors='pt',
    )
    return self.model(**inputs).logits

  @torch.no_grad()
  def accuracy(self, texts: list, labels: np.ndarray) -> float:
    """Share of the texts with the right label."""
    self.model.eval()
    order = sorted(range(len(texts)), key=lambda n: len(str(texts[n])))
    right = 0
    for part in np.array_split(order, -(-len(order) // 64)):
      predicted = self.logits([texts[n] for n in part]).argmax(-1).numpy()
      right += int((predicted == labels[part]).sum())
    return right / len(texts)

  def optimizer(self, settings):
    """AdamW, with weight decay of matrices."""
    named = list(self.model.named_parameters())
    groups = [
      {'params': [p for _, p in named if p.ndim > 1]},
      {'params': [p for _, p in named if p.ndim < 2], 'weight_decay': 0.0},
    ]
    of = settings.optimizer
    return torch.optim.AdamW(
      groups, of.learning_rate, weight_decay=of.weight_decay
    )


def batches(count: int, size: int, seed: int) -> Iterator[np.ndarray]:
  """Indices of the texts of each step, epoch after epoch."""
  draw = np.random.default_rng(seed)
  while True:
    order = draw.permutation(count)
    yield from (order[n : n + size] for n in range(0, count, size))


def train(settings, data: dict, seed: int) -> dict[str, float]:
  """Accuracy at the evaluation that is the best one on validation."""
  torch.manual_seed(seed)
  texts, labels = data['train']
  classifier = Classifier(settings, int(labels.max()) + 1)
  optimizer, steps = classifier.optimizer(settings), settings.train.steps
  warmup = settings.optimizer.warmup_steps
  schedule = transformers.get_linear_schedule_with_warmup(
    optimizer, warmup, steps
  )
  best: dict[str, float] = {'validation': 0.0}
  parts = batches(len(texts), settings.train.batch_size, seed)
  for step, part in zip(range(1, steps + 1), parts, strict=False):
    classifier.model.train()
    loss = torch.nn.functional.cross_entropy(
      classifier.logits([texts[n] for n in part]),
      torch.tensor(labels[part], dtype=torch.int64),
      label_smoothing=settings.optimizer.label_smoothing,
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(
      classifier.model.parameters(), settings.optimizer.clip_norm
    )
    optimizer.step()
    schedule.step()
    if step % settings.train.eval_every == 0 or step == steps:
      validation = classifier.accuracy(*data['validation'])
      if validation > best['validation']:
        test = classifier.accuracy(*data['test'])
        best = {'validation': validation, 'test': test}
  return best


def main(_) -> None:
  """Trains each seed that the file lacks, and writes the file."""
  settings = from_config(CONFIG.value)
  name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS['config']))
  path, libraries = pathlib.Path(OUTPUT.value), ('torch', 'transformers')
  origin = {
    'config': name.stem,
    'command': provenance.without_paths(['python', *sys.argv]),
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'versions': {name: importlib.metadata.version(name) for name in libraries},
  }
  data = splits(settings)
  for seed in SEEDS:
    found = json.loads(path.read_text())['rows'] if path.exists() else []
    known = {(row['config'], row['seed']) for row in found}
    if (name.stem, seed) in known:
      continue
    row = {'seed': seed, **train(settings, data, seed)}
    print(row, flush=True)
    found.append(origin | row)
    content = {'rows': found, 'table': table(found)}
    path.write_text(json.dumps(content, indent=1) + '\n')


def table(found: list[dict]) -> list[dict]:
  """Means over the seeds of each config."""
  configs = dict.fromkeys(row['config'] for row in found)
  of = {
    c: [row['test'] for row in found if row['config'] == c] for c in configs
  }
  return [
    {'config': c, 'n': len(of[c]), 'test': interval(of[c])} for c in configs
  ]


if __name__ == '__main__':
  app.run(main)
