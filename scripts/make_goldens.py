"""Writes outputs of PyTorch's attention and losses as goldens of the tests.

    pip install torch numpy   # in any environment but the project's
    python scripts/make_goldens.py

Writes tests/selfattn/goldens/attention.npz, in float64, and
tests/learning/goldens/tasks.npz, so that the tests do not need PyTorch. Every
case of attention holds inputs, parameters, outputs, weights and the gradients
of sum(output * probe); every loss, its mean and the gradient of the logits.
"""
# PyTorch is no dependency.
# pyright: reportMissingImports=false

import pathlib
import sys
from typing import Any

import numpy as np
import torch

BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 5, 7, 3, 12
ROOT = pathlib.Path(__file__).parent.parent
PATH = ROOT / 'tests/selfattn/goldens/attention.npz'
TASKS = ROOT / 'tests/learning/goldens/tasks.npz'
GAMMA = 2.0


def random(*shape):
  """Normal values in float64 that are exact in float32."""
  return torch.randn(shape).double()


def multi_head(case):
  """torch.nn.MultiheadAttention, with biases in all projections."""
  layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
  for parameter in layer.parameters():
    parameter.data = random(*parameter.shape) / 4
  inputs = {
    'query': random(BATCH, QUERIES, WIDTH),
    'key': random(BATCH, KEYS, WIDTH),
    'value': random(BATCH, KEYS, WIDTH),
  }
  for tensor in inputs.values():
    tensor.requires_grad_()
  masks = {}
  lengths = torch.tensor([KEYS, 4])
  if case == 'padded':
    # In PyTorch, True masks a key.
    masks['key_padding_mask'] = torch.arange(KEYS) >= lengths[:, None]
  if case == 'causal':
    masks['attn_mask'] = torch.ones(QUERIES, KEYS).triu(1).bool()
  output, weights = layer(**inputs, **masks, average_attn_weights=False)
  probe = random(*output.shape)
  (output * probe).sum().backward()
  arrays = {'probe': probe, 'output': output, 'weights': weights}
  arrays |= inputs | {f'grad_{k}': v.grad for k, v in inputs.items()}
  for name, parameter in layer.named_parameters():
    arrays[name] = parameter
    arrays[f'grad_{name}'] = parameter.grad
  return arrays


def functional():
  """scaled_dot_product_attention with a mask and an additive bias."""
  q = random(BATCH, HEADS, QUERIES, 4).requires_grad_()
  k = random(BATCH, HEADS, KEYS, 4).requires_grad_()
  v = random(BATCH, HEADS, KEYS, 4).requires_grad_()
  bias = random(1, HEADS, QUERIES, KEYS).requires_grad_()
  mask = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.7
  mask[..., 0] = True
  added = bias.masked_fill(~mask, float('-inf'))
  output = torch.nn.functional.scaled_dot_product_attention(
    q, k, v, attn_mask=added
  )
  probe = random(*output.shape)
  (output * probe).sum().backward()
  arrays = {'q': q, 'k': k, 'v': v, 'bias': bias}
  grads = {f'grad_{name}': x.grad for name, x in arrays.items()}
  return arrays | grads | {'mask': mask, 'probe': probe, 'output': output}


def losses():
  """Losses of classes, sets of labels and numbers, and their gradients."""
  rng = np.random.default_rng(0)
  arrays = {
    'logits': (3 * rng.standard_normal((12, 5))).astype(np.float32),
    'classes': rng.integers(0, 5, 12).astype(np.int32),
    'sets': (rng.random((12, 5)) < 0.3).astype(np.float32),
    'numbers': (2 * rng.standard_normal(12)).astype(np.float32),
    'label_weights': np.array([0.5, 1, 2, 3.5, 0], np.float32),
  }
  x = torch.tensor(arrays['logits'], requires_grad=True)
  y = torch.tensor(arrays['classes']).long()
  sets, numbers, w = (
    torch.tensor(arrays[name]) for name in ('sets', 'numbers', 'label_weights')
  )
  of = torch.nn.functional
  log_p = -of.cross_entropy(x, y, reduction='none')
  for name, loss in {
    'weights': of.cross_entropy(x, y, weight=w),
    'smooth': of.cross_entropy(x, y, label_smoothing=0.1),
    'focal': (-((1 - log_p.exp()) ** GAMMA) * log_p).mean(),
    'positive': of.binary_cross_entropy_with_logits(x, sets, pos_weight=w),
    'mse': of.mse_loss(x[:, 0], numbers),
    'huber': of.huber_loss(x[:, 0], numbers),
  }.items():
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    arrays[f'{name}/loss'] = loss.detach().numpy()
    arrays[f'{name}/gradient'] = gradient.numpy()
  return arrays


def main():
  np.savez(TASKS, **losses())
  torch.manual_seed(0)
  goldens: dict[str, Any] = {
    'versions': np.array([f'torch {torch.__version__}', sys.version])
  }
  cases = {case: multi_head(case) for case in ('plain', 'padded', 'causal')}
  cases['functional'] = functional()
  for case, arrays in cases.items():
    for name, array in arrays.items():
      goldens[f'{case}/{name}'] = array.detach().numpy()
  np.savez_compressed(PATH, **goldens)
  print(f'{PATH}: {len(goldens)} arrays')


if __name__ == '__main__':
  main()
