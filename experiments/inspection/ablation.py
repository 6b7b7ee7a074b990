"""Ablation of attention heads: how much a model needs each of them.

A head is ablated by a gate of 0 on its output, selfattn.analysis.gate_heads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.batches import Batch, Examples, eval_batches
from experiments.learning import steps
from experiments.learning.tasks import Task
from selfattn import analysis


def unsupported_reason(classifier, params, task: Task) -> str | None:
  """Why heads of this model cannot be ablated, or None."""
  if task.compares_texts:
    return 'a task that compares texts has no loss of a text alone'
  # An encoder may have no parameters.
  layers = analysis.attention_layers(params.get('encoder', {}))
  if len(layers) == classifier.encoder.num_layers:
    return None
  return (
    'every layer needs one selfattn.Attention, and '
    f'{type(classifier.encoder).__name__} has {len(layers)} for '
    f'{classifier.encoder.num_layers} layers'
  )


def importance(
  classifier, params, examples: Examples, lengths, task: Task = steps.CLASSIFY
) -> np.ndarray:
  """Mean over texts of |d loss / d gate| of each head, (layers, heads).

  Michel et al. 2019, equation 2: the sensitivity of the loss of a text to the
  gate of a head, at gates of 1.
  """
  gates = ones(classifier)

  def loss(gates, params, tokens, length, label):
    one = Batch(tokens[None], length[None], label[None], np.ones(1))
    logits, targets = _outputs(classifier, task, params, gates, one)
    # Of the prediction; that of several heads is not the sum of their losses.
    losses, *_ = task.outputs(logits, targets)
    return losses.sum() / jnp.maximum((targets.weights > 0).sum(), 1)

  of_texts = jax.jit(jax.vmap(jax.grad(loss), (None, None, 0, 0, 0)))
  total = np.zeros(gates.shape)
  for rows, batch in eval_batches(examples, 64, lengths):
    slopes = of_texts(gates, params, batch.tokens, batch.lengths, batch.labels)
    total += abs(np.asarray(slopes)[: len(rows)]).sum(axis=0)
  return total / len(examples)


def _outputs(classifier, task: Task, params, gates, batch: Batch):
  """Logits with gated heads, and targets."""
  gated = params | {'encoder': analysis.gate_heads(params['encoder'], gates)}
  return steps.eval_logits(task, classifier, gated, batch)


def ones(classifier) -> np.ndarray:
  """Gates of 1 for all heads, (layers, heads)."""
  encoder = classifier.encoder
  return np.ones((encoder.num_layers, encoder.num_heads), np.float32)


def metric(task: Task) -> str:
  """What is measured: the metric of training that is not the loss."""
  (name, *_) = (name for name in task.mean_metrics(0.0, 0.0) if name != 'loss')
  return name


def measured(
  classifier,
  params,
  examples: Examples,
  lengths,
  gates: list[np.ndarray],
  task: Task = steps.CLASSIFY,
) -> list[float]:
  """`metric` of the task with each of several gates (layers, heads)."""

  @jax.jit
  def hits(gates, params, batch):
    logits, targets = _outputs(classifier, task, params, gates, batch)
    _, correct = task.losses(logits, targets)
    # Without weights of classes.
    weights = targets.weights > 0
    return jnp.stack([(correct * weights).sum(), weights.sum()])

  total = np.zeros((len(gates), 2))
  for _, batch in eval_batches(examples, 256, lengths):
    total += [np.asarray(hits(one, params, batch)) for one in gates]
  right, count = total.T
  means = task.mean_metrics(0.0, right / np.maximum(count, 1))
  return means[metric(task)].tolist()


def ablation_gates(importance: np.ndarray) -> list[np.ndarray]:
  """Gates with no, one, two, ... all heads ablated, least important first.

  Args:
    importance: (layers, heads).
  """
  gates = np.ones(importance.shape, np.float32)
  steps = [gates]
  for head in np.argsort(importance, axis=None, kind='stable'):
    gates = gates.copy()
    gates.flat[head] = 0
    steps.append(gates)
  return steps


def ablate(
  classifier,
  params,
  examples: Examples,
  lengths,
  task: Task = steps.CLASSIFY,
) -> tuple[list[dict], dict]:
  """Importance of each head, and a metric as heads are ablated.

  Args:
    lengths: bucket lengths of the data.

  Returns:
    One row per head, its `importance` and, of classify, `accuracy_without` it;
    and the `metric` with 0, 1, ... all heads ablated, in two orders.
  """
  important = importance(classifier, params, examples, lengths, task)
  alone = []
  for head in range(important.size):
    gates = ones(classifier)
    gates.flat[head] = 0
    alone.append(gates)
  least, most = ablation_gates(important), ablation_gates(-important)
  values = measured(
    classifier, params, examples, lengths, [*least, *most, *alone], task
  )
  count, name = len(least), metric(task)
  rows = [
    {'importance': float(value), f'{name}_without': without}
    for value, without in zip(important.flat, values[2 * count :], strict=True)
  ]
  return rows, {
    'metric': name,
    'least_important_first': values[:count],
    'most_important_first': values[count : 2 * count],
    'examples': len(examples),
  }
