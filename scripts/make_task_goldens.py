"""Losses and gradients of PyTorch for tests/learning/goldens/tasks.npz.

    python scripts/make_task_goldens.py

Needs torch and numpy alone.
"""

import pathlib

import numpy as np
import torch
from torch.nn import functional

FILE = pathlib.Path(__file__).parent.parent / 'tests/learning/goldens/tasks.npz'
GAMMA = 2.0


def main():
  rng = np.random.default_rng(0)
  logits = (3 * rng.standard_normal((12, 5))).astype(np.float32)
  classes = rng.integers(0, 5, 12).astype(np.int32)
  sets = (rng.random((12, 5)) < 0.3).astype(np.float32)
  numbers = (2 * rng.standard_normal(12)).astype(np.float32)
  weights = np.array([0.5, 1, 2, 3.5, 0], np.float32)
  x = torch.tensor(logits, requires_grad=True)
  y = torch.tensor(classes).long()
  log_p = -functional.cross_entropy(x, y, reduction='none')
  w = torch.tensor(weights)
  labels = torch.tensor(sets)
  losses = {
    'weights': functional.cross_entropy(x, y, weight=w),
    'smooth': functional.cross_entropy(x, y, label_smoothing=0.1),
    'focal': (-((1 - log_p.exp()) ** GAMMA) * log_p).mean(),
    'positive': functional.binary_cross_entropy_with_logits(
      x, labels, pos_weight=w
    ),
    'mse': functional.mse_loss(x[:, 0], torch.tensor(numbers)),
    'huber': functional.huber_loss(x[:, 0], torch.tensor(numbers)),
  }
  content = {
    'logits': logits, 'classes': classes, 'sets': sets, 'numbers': numbers,
    'label_weights': weights,
  }  # fmt: skip
  for name, loss in losses.items():
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    content[f'{name}/loss'] = loss.detach().numpy()
    content[f'{name}/gradient'] = gradient.numpy()
  FILE.parent.mkdir(exist_ok=True)
  np.savez(FILE, **content)


if __name__ == '__main__':
  main()
