"""What the heads of a trained classifier do, and which of them it needs."""

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
from experiments.learning.tasks import Task, is_token
from experiments.settings.settings import Settings
from selfattn import analysis, masks
from selfattn.encoders import AttentionEncoder
from selfattn.masks import Tokens

CLS = '[CLS]'


@dataclasses.dataclass(frozen=True)
class Opened:
  """One text, and how a model attended to it.

  Attributes:
    tokens: names of the L places, '[CLS]' first where the model puts one there.
    weights: float32 (layers, heads, queries, keys).
  """

  tokens: list[str]
  weights: np.ndarray

  def rollout(self) -> np.ndarray:
    """See selfattn.analysis.rollout; (queries, keys)."""
    return np.asarray(analysis.rollout(jnp.asarray(self.weights)[:, None]))[0]


def require_heads(classifier) -> None:
  """UserError if the encoder has none."""
  if not isinstance(classifier.encoder, AttentionEncoder):
    raise UserError(
      'there are no heads to look at unless config.model.encoder.name is '
      "'attention'"
    )


def define_member(values) -> None:
  """The flag of commands that look into a model."""
  app.flags.DEFINE_integer(
    'member', 0, 'Of an ensemble, the one to look into.', flag_values=values
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
  """Parameters of one member, for everything below."""
  return ensembles.pick(params, index, settings.model.num_members)


def require_tokens(texts: list[str], examples: Examples) -> None:
  """UserError if one of the texts is nothing to the vocabulary."""
  for text, length in zip(texts, examples.lengths, strict=True):
    if not length:
      raise UserError(f'{text!r} has no tokens to attend to')


# Blanks that would not be seen in a picture or on a page.
_BLANKS = str.maketrans({' ': '␣', '\n': '↵', '\t': '⇥', '\r': '↵'})
_PART = '\ufffd'  # of a letter, in a vocabulary of bytes


def names(tokenizer) -> list[str]:
  """What each id stands for; blanks as signs, parts of letters as they are."""
  found = []
  for index in range(tokenizer.get_vocab_size()):
    name = tokenizer.decode([index], skip_special_tokens=False)
    found.append(name.translate(_BLANKS))
  return found


def is_separator(name: str) -> bool:
  """Whether a token has neither a letter nor a digit in it, nor a part."""
  return not any(c.isalnum() or c == _PART for c in name)


def sown_weights(classifier, params, batch: Batch) -> jax.Array:
  """Attention of a batch, (layers, batch, heads, queries, keys)."""
  _, sown = classifier.apply(
    {'params': params},
    batch.tokens,
    is_token(batch),
    mutable='intermediates',
  )
  sown = sown['intermediates']['encoder']
  if 'blocks' in sown:  # a scanned stack
    return sown['blocks']['attention']['weights'][0]
  layers = range(classifier.encoder.num_layers)
  return jnp.stack(
    [sown[f'block_{n}']['attention']['weights'][0] for n in layers]
  )


def opened(
  classifier, params, examples: Examples, tokens: list[str]
) -> Iterator[Opened]:
  """An Opened for each example.

  Args:
    examples: none without tokens; see require_tokens.
    tokens: names of ids.

  Raises:
    UserError: the encoder has no heads.
  """
  require_heads(classifier)
  run = jax.jit(functools.partial(sown_weights, classifier))
  has_cls = classifier.pool == 'cls'
  for row, length in enumerate(examples.lengths.tolist()):
    batch = examples.batch(np.array([row]), 1, max(length, 1))
    weights = np.asarray(run(params, batch))[:, 0]
    texts = [tokens[i] for i in batch.tokens[0, :length]]
    texts = [CLS, *texts] if has_cls else texts
    weights = weights[..., : len(texts), : len(texts)]
    yield Opened(texts, weights.astype(np.float32))


def statistics(
  classifier, params, examples: Examples, lengths, tokens: list[str]
) -> dict[str, np.ndarray]:
  """Means over texts of selfattn.analysis.head_statistics: (layers, heads)."""
  separators = jnp.array([is_separator(name) for name in tokens])

  @jax.jit
  def run(params, batch):
    weights = sown_weights(classifier, params, batch)
    tokens, is_separator = is_token(batch), separators[batch.tokens]
    if classifier.pool == 'cls':
      before = ((0, 0), (1, 0))
      tokens = jnp.pad(tokens, before, constant_values=True)
      is_separator = jnp.pad(is_separator, before)
    side = Tokens(tokens).filled(tokens.shape[1])
    encoder = classifier.encoder
    seen = masks.visible(side, side, encoder.causal, encoder.window or None)
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
  """Over the texts that have a value, (layers, texts, heads); else NaN."""
  known = np.isfinite(x)
  count = known.sum(axis=1)
  total = np.where(known, x, 0).sum(axis=1)
  return np.where(count, total / np.maximum(count, 1), np.nan)


def importance(
  classifier, params, examples: Examples, lengths, task: Task = steps.CLASSIFY
) -> np.ndarray:
  """Mean over texts of |d loss / d gate| of each head, (layers, heads).

  Michel et al. 2019, equation 2: at gates of 1, how much the loss of a text
  would change if a head were turned down.
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
    is_token(targets),
    places_BK=targets.places,
  )
  losses, hits = task.losses(logits, targets)
  weights = targets.weights
  return (losses * weights).sum(), (hits * weights).sum(), weights.sum()


def ones(classifier) -> np.ndarray:
  """Gates that change nothing, (layers, heads)."""
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
  """Accuracy under each of several gates (layers, heads)."""

  @jax.jit
  def hits(gates, params, batch):
    return jnp.stack(_sums(classifier, task, params, gates, batch)[1:])

  total = np.zeros((len(gates), 2))
  for _, batch in eval_batches(examples, 256, lengths):
    total += [np.asarray(hits(one, params, batch)) for one in gates]
  right, count = total.T
  return (right / np.maximum(count, 1)).tolist()


def removals(order: np.ndarray) -> list[np.ndarray]:
  """Gates with none, one, two, ... all heads gone, in the order given.

  Args:
    order: importance (layers, heads); the least goes first.
  """
  gates, found = np.ones(order.shape, np.float32), []
  found.append(gates)
  for place in np.argsort(order, axis=None, kind='stable'):
    gates = gates.copy()
    gates.flat[place] = 0
    found.append(gates)
  return found


def judge(
  classifier,
  params,
  examples: Examples,
  lengths,
  tokens: list[str],
  task: Task = steps.CLASSIFY,
):
  """A row for each head, and accuracies as heads are removed.

  Args:
    lengths: bucket lengths of the data.
    tokens: names of ids.
  """
  means = statistics(classifier, params, examples, lengths, tokens)
  important = importance(classifier, params, examples, lengths, task)
  alone = []
  for place in range(important.size):
    gates = ones(classifier)
    gates.flat[place] = 0
    alone.append(gates)
  least, most = removals(important), removals(-important)
  found = accuracies(
    classifier, params, examples, lengths, [*least, *most, *alone], task
  )
  count = len(least)
  rows = [
    {
      'layer': layer,
      'head': head,
      **{name: _number(values[layer, head]) for name, values in means.items()},
      'importance': float(important[layer, head]),
      'accuracy_without': found[2 * count + place],
    }
    for place, (layer, head) in enumerate(np.ndindex(important.shape))
  ]
  removed = {
    'least_important_first': found[:count],
    'most_important_first': found[count : 2 * count],
    'examples': len(examples),
  }
  return rows, removed


def _number(value) -> float | None:
  """None where no text has what it is a mean of; JSON has no NaN."""
  return None if np.isnan(value) else float(value)
