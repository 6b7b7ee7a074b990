"""Bits per byte by length of language models of x-transformers, in PyTorch.

    python -m venv PEER && PEER/bin/pip install torch x-transformers
    PYTHONPATH=. PEER/bin/python scripts/language_model_peer.py TRAIN TEST FILE

The sizes, the schedule and the bytes are those of configs/language_model.py on
IMDB: TRAIN and TEST are its tables. A model that FILE has is not trained again.
"""

import importlib.metadata
import itertools
import json
import math
import pathlib
import statistics
import sys

import numpy as np
import torch
import torch.nn.functional as F
from x_transformers import Decoder, TransformerWrapper

from experiments.command import provenance

LENGTHS = (128, 256, 512, 1_024, 2_048)
WINDOW, BATCH, STEPS, WARMUP, RATE = 128, 32, 1_500, 75, 2e-3
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
METHODS = {
  'none': ({}, {'use_abs_pos_emb': False}),
  'sinusoidal': ({}, {'scaled_sinu_pos_emb': True}),
  'rotary': ({'rotary_pos_emb': True}, {'use_abs_pos_emb': False}),
  'alibi': ({'alibi_pos_bias': True}, {'use_abs_pos_emb': False}),
}


def read(path: str, size: int) -> torch.Tensor:
  """The first bytes of the column `text`, a line for each text."""
  with open(path, encoding='utf-8') as file:
    next(file)
    texts = (line.rstrip('\n').split('\t')[1] for line in file)
    data = ''.join(f'{text}\n' for text in texts).encode()[:size]
  tokens = np.frombuffer(data, np.uint8).astype(np.int64)
  return torch.tensor(tokens, device=DEVICE)


def initialised(method: str, seed: int, **options):
  """A model of a method, and of options of its layers."""
  torch.manual_seed(seed)
  of_layers, of_model = METHODS[method]
  layers = Decoder(
    dim=128, depth=3, heads=4, attn_dim_head=32, **of_layers, **options
  )
  return TransformerWrapper(
    num_tokens=256, max_seq_len=max(LENGTHS), attn_layers=layers, **of_model
  ).to(DEVICE)


def train(method: str, seed: int, tokens: torch.Tensor):
  """A model after all steps."""
  model = initialised(method, seed)
  optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
  scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
  draw = np.random.default_rng(seed)
  for _ in range(STEPS):
    starts = draw.integers(len(tokens) - WINDOW, size=BATCH)
    rows = starts[:, None] + np.arange(WINDOW + 1)
    batch = tokens[torch.tensor(rows, device=DEVICE)]
    optimizer.zero_grad()
    losses(model, batch).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
  return model.eval()


def schedule(step: int) -> float:
  """Warm-up, then a cosine to 0."""
  if step < WARMUP:
    return (step + 1) / WARMUP
  return (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def losses(model, batch: torch.Tensor) -> torch.Tensor:
  """Nats of each next token."""
  logits = model(batch[:, :-1]).transpose(1, 2)
  return F.cross_entropy(logits, batch[:, 1:], reduction='none')


@torch.no_grad()
def bits_per_byte(model, tokens: torch.Tensor, length: int) -> float:
  """In windows without overlap; all tokens but the first are predicted."""
  total = 0.0
  for start in range(0, len(tokens) - 1, length):
    total += losses(model, tokens[None, start : start + length + 1]).sum()
  return float(total) / ((len(tokens) - 1) * math.log(2))


def main(train_path: str, test_path: str, output: str) -> None:
  """Trains each model that the file lacks, and writes the file."""
  path, versions = pathlib.Path(output), ('torch', 'x-transformers')
  origin = {
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'device': DEVICE if DEVICE == 'cpu' else torch.cuda.get_device_name(),
    'versions': {name: importlib.metadata.version(name) for name in versions},
  }
  rows = json.loads(path.read_text())['rows'] if path.exists() else []
  known = {(row['method'], row['seed']) for row in rows}
  texts, test = read(train_path, 10_000_000), read(test_path, 200_000)
  for seed, method in itertools.product(range(3), METHODS):
    if (method, seed) in known:
      continue
    model = train(method, seed, texts)
    row = {
      'method': method,
      'seed': seed,
      'parameters': sum(p.numel() for p in model.parameters()),
      'bits_per_byte': {
        str(length): bits_per_byte(model, test, length) for length in LENGTHS
      },
    }
    rows.append(row | origin)
    print(row, flush=True)
    methods = dict.fromkeys(row['method'] for row in rows)
    content = {
      'command': 'python scripts/language_model_peer.py TRAIN TEST FILE',
      'rows': rows,
      'table': [mean(method, rows) for method in methods],
    }
    path.write_text(json.dumps(content, indent=1) + '\n')


def mean(method: str, rows: list[dict]) -> dict:
  """The means over the seeds of a method."""
  losses = [row['bits_per_byte'] for row in rows if row['method'] == method]
  means = {n: statistics.fmean(x[n] for x in losses) for n in losses[0]}
  return {'method': method, 'n': len(losses), 'bits_per_byte': means}


if __name__ == '__main__':
  main(*sys.argv[1:])
