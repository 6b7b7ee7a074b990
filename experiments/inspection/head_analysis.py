"""What a trained model attends to: attention maps, statistics of heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError
from experiments.data.batches import Batch, Examples, eval_batches
from experiments.data.vocabularies import SEPARATOR
from experiments.learning.steps import CLASSIFY, eval_targets
from experiments.learning.tasks import Targets, Task, padding_mask
from selfattn import analysis, masks
from selfattn.contract import has_heads
from selfattn.encoders import ENCODERS
from selfattn.masks import Tokens

CLS = '[CLS]'
# Attention weights of a batch: 512 MiB.
_MOST_WEIGHTS = 2**27


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
  """Attention of a model on one text.

  Attributes:
    tokens: names of the L tokens, including '[CLS]' if the model prepends it.
    weights: float32 (layers, heads, queries, keys).
    pool_weights: float32 (hops, tokens), of a pool that sows them, as
      selfattn.pools.Attentive does; None: of another one.
    terms: what each part of the position method that depends on the text has
      done, by (part, layer): added to scores, (heads, queries, keys), or to
      vectors, (tokens, width).
  """

  tokens: list[str]
  weights: np.ndarray
  pool_weights: np.ndarray | None = None
  terms: Mapping[tuple[str, int | None], np.ndarray] = dataclasses.field(
    default_factory=dict
  )

  def rollout(self) -> np.ndarray:
    """See selfattn.analysis.rollout; (queries, keys)."""
    return np.asarray(analysis.rollout(jnp.asarray(self.weights)[:, None]))[0]


def require_heads(classifier) -> None:
  """UserError if the encoder has no attention heads."""
  if not has_heads(classifier.encoder):
    classes: dict[str, Any] = ENCODERS
    having = [name for name, cls in classes.items() if has_heads(cls)]
    raise UserError(
      f'config.model.encoder must be {" or ".join(map(repr, having))}: '
      'other encoders have no attention heads'
    )


def require_tokens(texts: list[str], examples: Examples) -> None:
  """UserError if one of the texts is empty after tokenisation."""
  for text, length in zip(texts, examples.lengths, strict=True):
    if not length:
      raise UserError(f'--text={text!r} has no tokens; give a word')


# Whitespace, which would be invisible in a figure or on a page.
_WHITESPACE = str.maketrans({' ': '␣', '\n': '↵', '\t': '⇥', '\r': '↵'})
_PART = '\ufffd'  # decoded from part of a character, in a vocabulary of bytes


def names(tokenizer) -> list[str]:
  """The name of each token id, with whitespace as visible symbols."""
  texts = (
    tokenizer.decode([index], skip_special_tokens=False)
    for index in range(tokenizer.get_vocab_size())
  )
  return [text.translate(_WHITESPACE) for text in texts]


def is_separator(name: str) -> bool:
  """Whether it is [SEP], or has no letter, digit, or part of a character."""
  return name == SEPARATOR or not any(c.isalnum() or c == _PART for c in name)


def sown(classifier, params, batch: Batch | Targets) -> Mapping[str, Any]:
  """What the forward pass of a batch has sown."""
  _, tree = classifier.apply(
    {'params': params},
    batch.tokens,
    padding_mask(batch),
    is_right_padded=True,
    mutable='intermediates',
  )
  return tree['intermediates']


def sown_weights(tree: Mapping) -> jax.Array:
  """Weights of attention, (layers, batch, heads, queries, keys)."""
  layers = analysis.sown(tree['encoder'], 'weights')
  return jnp.stack([weights for *_, weights in layers])


def _terms_of_text(classifier, tree: Mapping) -> dict:
  """`P` of the parts that have no encoding, by (part, layer)."""
  position = getattr(classifier.encoder, 'position', None)
  if position is None:
    return {}
  of_text = {name for name, part in position.parts if not part.has_encoding}
  return {
    (part, layer): P
    for part, layer, P in analysis.encodings(tree['encoder'])
    if part in of_text
  }


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

  @jax.jit
  def run(params, batch):
    tree = sown(classifier, params, batch)
    pooled = analysis.sown(tree, 'pool_weights')
    return (
      sown_weights(tree),
      pooled[0][-1] if pooled else None,
      _terms_of_text(classifier, tree),
    )

  has_cls = classifier.has_cls
  longest = int(examples.lengths.max(initial=1))
  for row, length in enumerate(examples.lengths.tolist()):
    # Padded to one of few lengths, since each is a program.
    padded = min(1 << (length - 1).bit_length(), longest)
    batch = examples.batch(np.array([row]), 1, padded)
    weights, pooled, terms = jax.device_get(run(params, batch))
    texts = [tokens[i] for i in batch.tokens[0, :length]]
    texts = [CLS, *texts] if has_cls else texts
    count = len(texts)
    weights = weights[:, 0, :, :count, :count].astype(np.float32)
    pooled = None if pooled is None else pooled[0, :, :count]
    terms = {
      key: P[0, :, :count, :count] if P.ndim == 4 else P[0, :count]
      for key, P in terms.items()
    }
    yield AttentionMaps(texts, weights, pooled, terms)


def statistics(
  classifier,
  params,
  examples: Examples,
  lengths,
  tokens: list[str],
  task: Task = CLASSIFY,
) -> dict[str, np.ndarray]:
  """selfattn.analysis.head_statistics, means over texts, (layers, heads).

  They are of the tokens that the model reads in evaluation of the task.
  """
  encoder = classifier.encoder
  separators = jnp.array([is_separator(name) for name in tokens])

  @jax.jit
  def run(params, batch):
    read = eval_targets(task, classifier, batch)
    weights = sown_weights(sown(classifier, params, read))
    tokens, is_separator = padding_mask(read), separators[read.tokens]
    if classifier.has_cls:
      before = ((0, 0), (1, 0))
      tokens = jnp.pad(tokens, before, constant_values=True)
      is_separator = jnp.pad(is_separator, before)
    side = Tokens(tokens).with_defaults(tokens.shape[1])
    square = (*tokens.shape, tokens.shape[1])
    seen = []
    for index in range(len(weights)):
      window = encoder.window_of(index)
      of_layer: Any = masks.visible(side, side, encoder.causal, window)
      of_layer = jnp.broadcast_to(of_layer[:, 0], square)
      seen.append(of_layer & tokens[:, :, None])
    return jax.vmap(analysis.head_statistics, (0, 0, None))(
      weights, jnp.stack(seen), is_separator
    )

  of_text = encoder.num_layers * encoder.num_heads * max(lengths) ** 2
  most = max(1, min(64, _MOST_WEIGHTS // of_text))
  parts = []
  for rows, batch in eval_batches(examples, most, lengths):
    part = run(params, batch)
    parts.append({k: np.asarray(v)[:, : len(rows)] for k, v in part.items()})
  return {
    name: _mean(np.concatenate([part[name] for part in parts], axis=1))
    for name in analysis.STATISTICS
  }


def _mean(x: np.ndarray) -> np.ndarray:
  """Means of (layers, texts, heads) over texts with a finite value, or NaN."""
  known = np.isfinite(x)
  count = known.sum(axis=1)
  total = np.where(known, x, 0).sum(axis=1)
  return np.where(count, total / np.maximum(count, 1), np.nan)


def statistics_rows(means: dict[str, np.ndarray]) -> list[dict]:
  """One row per head: layer, head, and each of the `statistics`.

  None for NaN, the mean over no text; JSON has no NaN.
  """
  first, *_ = means.values()
  return [
    {'layer': layer, 'head': head}
    | {
      name: None
      if np.isnan(values[layer, head])
      else float(values[layer, head])
      for name, values in means.items()
    }
    for layer, head in np.ndindex(first.shape)
  ]
