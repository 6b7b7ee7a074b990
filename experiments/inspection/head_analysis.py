"""Analysis of attention heads: statistics, importance, ablation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command import app
from experiments.command.errors import UserError
from experiments.data.batches import Batch, Examples, eval_batches
from experiments.learning import ensembles, steps
from experiments.learning.tasks import Task, padding_mask
from experiments.settings.settings import Settings
from selfattn import analysis, masks
from selfattn.contract import has_heads
from selfattn.encoders import ENCODERS
from selfattn.masks import Tokens

CLS = '[CLS]'


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
  """Attention of a model on one text.

  Attributes:
    tokens: names of the L tokens, including '[CLS]' if the model prepends it.
    weights: float32 (layers, heads, queries, keys).
  """

  tokens: list[str]
  weights: np.ndarray

  def rollout(self) -> np.ndarray:
    """See selfattn.analysis.rollout; (queries, keys)."""
    return np.asarray(analysis.rollout(jnp.asarray(self.weights)[:, None]))[0]


def require_heads(classifier) -> None:
  """UserError if the encoder has no attention heads."""
  if not has_heads(classifier.encoder):
    having = [name for name, cls in ENCODERS.items() if has_heads(cls)]
    raise UserError(
      f'config.model.encoder.name must be {" or ".join(map(repr, having))}: '
      'other encoders have no attention heads'
    )


def define_member(values) -> None:
  """Adds the flag --member."""
  app.flags.DEFINE_integer(
    'member',
    0,
    'Index of the ensemble member to inspect, from 0.',
    flag_values=values,
  )


def require_member(settings: Settings, index: int) -> None:
  """UserError if the run has no such member."""
  count = settings.model.num_members
  if not 0 <= index < count:
    raise UserError(
      f'--member={index} must be from 0 to {count - 1}, as '
      f'config.model.num_members is {count}'
    )


def of_member(settings: Settings, index: int, params):
  """Parameters of one member of an ensemble."""
  return ensembles.pick(params, index, settings.model.num_members)


def require_tokens(texts: list[str], examples: Examples) -> None:
  """UserError if one of the texts is empty after tokenisation."""
  for text, length in zip(texts, examples.lengths, strict=True):
    if not length:
      raise UserError(f'{text!r} has no tokens')


# Whitespace, which would be invisible in a figure or on a page.
_WHITESPACE = str.maketrans({' ': '␣', '\n': '↵', '\t': '⇥', '\r': '↵'})
_PART = '\ufffd'  # decoded from part of a character, in a vocabulary of bytes


def names(tokenizer) -> list[str]:
  """The name of each token id, with whitespace as visible symbols."""
  found = []
  for index in range(tokenizer.get_vocab_size()):
    name = tokenizer.decode([index], skip_special_tokens=False)
    found.append(name.translate(_WHITESPACE))
  return found


def is_separator(name: str) -> bool:
  """Whether a token has no letter, digit, or part of a character in it."""
  return not any(c.isalnum() or c == _PART for c in name)


def sown_weights(classifier, params, batch: Batch) -> jax.Array:
  """Attention weights of a batch, (layers, batch, heads, queries, keys)."""
  _, sown = classifier.apply(
    {'params': params},
    batch.tokens,
    padding_mask(batch),
    mutable='intermediates',
  )
  found = analysis.sown(sown['intermediates']['encoder'], 'weights')
  # A scanned stack sows those of all layers at once.
  return jnp.concatenate(
    [weights.reshape(-1, *weights.shape[-4:]) for *_, weights in found]
  )


def attention_maps(
  classifier, params, examples: Examples, tokens: list[str]
) -> Iterator[AttentionMaps]:
  """AttentionMaps of each example.

  Args:
    examples: without empty ones; see require_tokens.
    tokens: names of token ids.

  Raises:
    UserError: the encoder has no attention heads.
  """
  require_heads(classifier)
  run = jax.jit(functools.partial(sown_weights, classifier))
  has_cls = classifier.has_cls
  for row, length in enumerate(examples.lengths.tolist()):
    batch = examples.batch(np.array([row]), 1, max(length, 1))
    weights = np.asarray(run(params, batch))[:, 0]
    texts = [tokens[i] for i in batch.tokens[0, :length]]
    texts = [CLS, *texts] if has_cls else texts
    weights = weights[..., : len(texts), : len(texts)]
    yield AttentionMaps(texts, weights.astype(np.float32))


def statistics(
  classifier, params, examples: Examples, lengths, tokens: list[str]
) -> dict[str, np.ndarray]:
  """selfattn.analysis.head_statistics, means over texts, (layers, heads)."""
  separators = jnp.array([is_separator(name) for name in tokens])

  @jax.jit
  def run(params, batch):
    weights = sown_weights(classifier, params, batch)
    tokens, is_separator = padding_mask(batch), separators[batch.tokens]
    if classifier.has_cls:
      before = ((0, 0), (1, 0))
      tokens = jnp.pad(tokens, before, constant_values=True)
      is_separator = jnp.pad(is_separator, before)
    side = Tokens(tokens).filled(tokens.shape[1])
    encoder = classifier.encoder
    window = getattr(encoder, 'window', ()) or None
    seen = masks.visible(side, side, encoder.causal, window)
    square = (*tokens.shape, tokens.shape[1])
    seen = jnp.broadcast_to(seen[:, 0], square) & tokens[:, :, None]
    return jax.vmap(analysis.head_statistics, (0, None, None))(
      weights, seen, is_separator
    )

  found = []
  for rows, batch in eval_batches(examples, 64, lengths):
    part = run(params, batch)
    found.append({k: np.asarray(v)[:, : len(rows)] for k, v in part.items()})
  return {
    name: _mean(np.concatenate([part[name] for part in found], axis=1))
    for name in analysis.STATISTICS
  }


def _mean(x: np.ndarray) -> np.ndarray:
  """Means of (layers, texts, heads) over texts with a finite value, or NaN."""
  known = np.isfinite(x)
  count = known.sum(axis=1)
  total = np.where(known, x, 0).sum(axis=1)
  return np.where(count, total / np.maximum(count, 1), np.nan)


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
    losses, _, count = _sums(classifier, task, params, gates, one)
    return losses / jnp.maximum(count, 1)

  each = jax.jit(jax.vmap(jax.grad(loss), (None, None, 0, 0, 0)))
  total = np.zeros(gates.shape)
  for rows, batch in eval_batches(examples, 64, lengths):
    slopes = each(gates, params, batch.tokens, batch.lengths, batch.labels)
    total += abs(np.asarray(slopes)[: len(rows)]).sum(axis=0)
  return total / len(examples)


def _sums(classifier, task: Task, params, gates, batch: Batch):
  """Summed loss, hits and weights of what the task asks, under gates."""
  gated = params | {'encoder': analysis.gate_heads(params['encoder'], gates)}
  targets = steps.eval_targets(task, classifier, batch)
  logits = classifier.apply(
    {'params': gated},
    targets.tokens,
    padding_mask(targets),
    places_BK=targets.positions,
  )
  losses, hits = task.losses(logits, targets)
  weights = targets.weights
  return (losses * weights).sum(), (hits * weights).sum(), weights.sum()


def ones(classifier) -> np.ndarray:
  """Gates of 1 for all heads, (layers, heads)."""
  encoder = classifier.encoder
  return np.ones((encoder.num_layers, encoder.num_heads), np.float32)


def accuracies(
  classifier,
  params,
  examples: Examples,
  lengths,
  gates: list[np.ndarray],
  task: Task = steps.CLASSIFY,
) -> list[float]:
  """Accuracy with each of several gates (layers, heads)."""

  @jax.jit
  def hits(gates, params, batch):
    return jnp.stack(_sums(classifier, task, params, gates, batch)[1:])

  total = np.zeros((len(gates), 2))
  for _, batch in eval_batches(examples, 256, lengths):
    total += [np.asarray(hits(one, params, batch)) for one in gates]
  right, count = total.T
  return (right / np.maximum(count, 1)).tolist()


def ablation_gates(importance: np.ndarray) -> list[np.ndarray]:
  """Gates with no, one, two, ... all heads ablated, least important first.

  Args:
    importance: (layers, heads).
  """
  gates, found = np.ones(importance.shape, np.float32), []
  found.append(gates)
  for head in np.argsort(importance, axis=None, kind='stable'):
    gates = gates.copy()
    gates.flat[head] = 0
    found.append(gates)
  return found


def analyse(
  classifier,
  params,
  examples: Examples,
  lengths,
  tokens: list[str],
  task: Task = steps.CLASSIFY,
):
  """(one row per head, accuracies as heads are ablated).

  Args:
    lengths: bucket lengths of the data.
    tokens: names of token ids.

  Raises:
    UserError: heads cannot be ablated.
  """
  layers = analysis.attention_layers(params['encoder'])
  if len(layers) != classifier.encoder.num_layers:
    raise UserError(
      'heads can be removed where every layer has a selfattn.Attention, and '
      f'{type(classifier.encoder).__name__} has {len(layers)} for '
      f'{classifier.encoder.num_layers} layers; drop --split'
    )
  means = statistics(classifier, params, examples, lengths, tokens)
  important = importance(classifier, params, examples, lengths, task)
  alone = []
  for head in range(important.size):
    gates = ones(classifier)
    gates.flat[head] = 0
    alone.append(gates)
  least, most = ablation_gates(important), ablation_gates(-important)
  found = accuracies(
    classifier, params, examples, lengths, [*least, *most, *alone], task
  )
  count = len(least)
  rows = [
    {
      'layer': layer,
      'head': head,
      **{name: _scalar(values[layer, head]) for name, values in means.items()},
      'importance': float(important[layer, head]),
      'accuracy_without': found[2 * count + index],
    }
    for index, (layer, head) in enumerate(np.ndindex(important.shape))
  ]
  ablation = {
    'least_important_first': found[:count],
    'most_important_first': found[count : 2 * count],
    'examples': len(examples),
  }
  return rows, ablation


def _scalar(value) -> float | None:
  """None for NaN, the mean over no text; JSON has no NaN."""
  return None if np.isnan(value) else float(value)
