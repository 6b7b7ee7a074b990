"""Text from a trained language model, a token at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.command.errors import UserError
from experiments.command.schema import SEED
from experiments.data import encoding
from experiments.training import lengths
from experiments.training.evaluation import Evaluated


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How the next token is drawn.

  Attributes:
    temperature: divides the logits, at least 1e-6, below which quotients leave
      float32; 0: the most probable token.
    top_p: only the most probable tokens are drawn, as few as have at least this
      probability together (Holtzman et al. 2020, nucleus sampling).
    seed: of the draws.
  """

  temperature: float = 1.0
  top_p: float = 1.0
  seed: int = 0

  def check(self) -> None:
    """UserError for a value that is out of range, with its name."""
    is_warm = 1e-6 <= self.temperature < float('inf')
    if not (self.temperature == 0 or is_warm):
      raise UserError(
        f'temperature = {self.temperature} must be 0, or at least 1e-6 and '
        'finite'
      )
    if not 0 < self.top_p <= 1:
      raise UserError(
        f'top_p = {self.top_p} must be greater than 0 and at most 1'
      )
    if not SEED.holds(self.seed):
      raise UserError(f'seed = {self.seed} must be {SEED.text}')


@dataclasses.dataclass(frozen=True)
class Generator:
  """A trained language model.

  Attributes:
    run: the run.
    tokenizer: its vocabulary.
    ends: ids of tokens that end a text.
  """

  run: Evaluated
  tokenizer: Any
  ends: tuple[int, ...] = ()

  def generate(
    self,
    prompt: str,
    max_new_tokens: int = 100,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
  ) -> str:
    """The text that follows a prompt, without the prompt.

    It begins with the space that the vocabulary puts after the prompt, if any.

    Args:
      max_new_tokens: tokens that are drawn, or fewer before one that ends a
        text.
      temperature, top_p, seed: see Sampling.

    Raises:
      UserError: the prompt has no token, an option is out of range, or the
        model cannot read so many tokens, or has no cache.
    """
    if max_new_tokens < 1:
      raise UserError(f'max_new_tokens = {max_new_tokens} must be at least 1')
    sampling = Sampling(temperature, top_p, seed)
    sampling.check()
    ids, _ = encoding.token_ids(self.tokenizer, [prompt], special=True)
    drawn = list(self.sampled(ids, max_new_tokens, sampling))
    before, whole = (
      self.tokenizer.decode(tokens, skip_special_tokens=False)
      for tokens in (ids.tolist(), [*ids.tolist(), *drawn])
    )
    return whole[len(before) :]

  def sampled(self, ids, count: int, sampling: Sampling) -> Iterator[int]:
    """Yields token ids, each drawn from what follows all before it.

    They are `count`, or fewer before one that ends a text.

    Args:
      ids: int32 (tokens,), of the prompt.

    Raises:
      UserError: there is none, or the model cannot read so many tokens, or has
        no cache.
    """
    if not len(ids):
      raise UserError('the prompt has no token; give some text')
    # The last token is not read.
    size = len(ids) + count - 1
    if reason := lengths.unsupported(self.run.program, size):
      raise UserError(
        f'max_new_tokens = {count} after a prompt of {len(ids)} is more than '
        f'the model can read: {reason}'
      )
    step = functools.partial(self._step, size, self.run.params)
    options = sampling.temperature, sampling.top_p
    key, cache = jax.random.key(sampling.seed), {}
    last = jnp.asarray(ids)[None]
    known, anew = list(map(int, ids)), self._lengths_anew()
    try:
      for index in range(count):
        key_of_token = jax.random.fold_in(key, index)
        if len(known) in anew:
          cache, last = {}, jnp.array([known], jnp.int32)
        token, cache = step(cache, last, *options, key_of_token)
        last = token[None, None]
        if int(token) in self.ends:
          return
        known.append(int(token))
        yield known[-1]
    except (TypeError, ValueError) as error:
      raise UserError(f'this model has no cache: {error}') from error

  def _lengths_anew(self) -> set[int]:
    """Numbers of tokens from which earlier ones are read with other positions.

    That of LongRoPE is where its long factors begin; its cache holds what upper
    layers made of the short ones.
    """
    method = getattr(self.run.program.classifier.encoder, 'position', None)
    parts = dict(method.parts).values() if method else ()
    return {
      part.original_length + 1
      for part in parts
      if getattr(part, 'short_factors', ())
    }

  @functools.cached_property
  def _step(self) -> Callable:
    """`_step` of the model, with a program for each size and length."""
    step = functools.partial(_step, self.run.program.classifier)
    return jax.jit(step, static_argnums=0)


def _step(classifier, size, params, cache, tokens, temperature, top_p, key):
  """(the next token, the cache) after tokens (1, L) that follow the cache."""
  logits, state = classifier.apply(
    {'params': params, **cache},
    tokens,
    jnp.ones(tokens.shape, bool),
    mutable=['cache'],
    cache_len=size,
  )
  return draw(logits[0, -1], temperature, top_p, key), state


def draw(logits_V: jax.Array, temperature, top_p, key: jax.Array) -> jax.Array:
  """A token id, drawn from logits (V,); temperature and top_p may be traced."""
  is_greedy = temperature == 0
  log_probs_V = jax.nn.log_softmax(
    logits_V / jnp.where(is_greedy, 1.0, temperature)
  )
  order = jnp.argsort(-log_probs_V)
  probs = jnp.exp(log_probs_V[order])
  # A token is kept if the more probable ones sum to less than top_p.
  is_kept = jnp.cumsum(probs) - probs < top_p
  chosen = jax.random.categorical(
    key, jnp.where(is_kept, log_probs_V[order], -jnp.inf)
  )
  return jnp.where(is_greedy, logits_V.argmax(), order[chosen])
