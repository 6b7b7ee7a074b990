"""Classification heads, HEADS, and heads on each token."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from selfattn import naive_bayes
from selfattn.dropout import Dropout, drop
from selfattn.positions.contract import Tokens, require
from selfattn.positions.local import MAX_N, ngrams


class TiedHead(nn.Module):
  """Logits over the vocabulary, from tied embeddings.

  A transform (dense, gelu, layer norm), a matmul with the embedding table, and
  a bias for each token of the vocabulary (Devlin et al. 2019, section 3.1, and
  their code; Press and Wolf 2017 on tied embeddings).
  """

  @nn.compact
  def __call__(self, x_BLD: jax.Array, embed: nn.Embed) -> jax.Array:
    """Logits, float32 (B, L, V).

    Args:
      x_BLD: float32 vectors of the tokens that have a label.
      embed: the token embedding of the model.
    """
    h_BLD = nn.Dense(x_BLD.shape[-1], name='dense')(x_BLD)
    h_BLD = nn.LayerNorm(name='norm')(nn.gelu(h_BLD, approximate=False))
    bias_V = self.param('bias', nn.initializers.zeros, (embed.num_embeddings,))
    return embed.attend(h_BLD) + bias_V[None, None]


class Head(nn.Module):
  """The contract of a classification head: logits, float32 (B, C).

  The pooled vector of a text without tokens may be 0, and gradients must be
  finite there. Further fields are options, each with a default, and become keys
  of the config.

  Attributes:
    vocab_size: V, ids of tokens are below it; passed by keyword.
    token_params: names of parameters with a row for each token or n-gram, which
      belong to a vocabulary.
    frozen_params: names of parameters that `statistics` sets and nothing
      trains: training computes no gradient of them. They may be integers, which
      jax.grad does not accept. They belong to the training texts: another run
      begins with them only if they are token_params, too.
    fusion_weight: weight of its logits in the mean with those of the heads that
      it is joined with; see LateFusion.
  """

  vocab_size: int | None = dataclasses.field(default=None, kw_only=True)

  token_params: ClassVar[tuple[str, ...]] = ()
  frozen_params: ClassVar[tuple[str, ...]] = ()
  # Without an annotation, so that it is an option only where it is made one.
  fusion_weight = 1.0

  def check(self) -> None:
    """Raises ValueError `OPTION = VALUE must be ...`."""

  def statistics(
    self, texts: Iterable[tuple], num_classes: int
  ) -> dict[str, np.ndarray]:
    """Parameters that are set once, before training, from its texts; by name.

    Each is a parameter of the head, as `self.param` makes it, and trained as
    others are, unless it is one of `frozen_params`.

    Args:
      texts: tuples (tokens_BL, padding_mask_BL, labels_B) of arrays, as often
        as they are iterated over; B and L differ from one to the next.
      num_classes: C.
    """
    del texts, num_classes
    return {}

  def __call__(
    self,
    pooled_BP: jax.Array,
    tokens_BL: jax.Array,
    padding_mask_BL: jax.Array,
    num_classes: int,
    dropout: Dropout | None = None,
  ) -> jax.Array:
    """Logits of each class.

    Args:
      pooled_BP: the vectors of the texts, from the pool, after dropout.
      tokens_BL: integer ids, without [CLS].
      padding_mask_BL: boolean, False at padding, which changes no logit.
      num_classes: C.
      dropout: for layers inside the head; None: evaluation.
    """
    raise NotImplementedError


class LateFusion(Head):
  """Several heads, such as `linear+nbsvm`: logits, float32 (B, 1 + E, C).

  First those that predict, the mean of the logits of all E heads with their
  weights, which teaches nothing; then those of each head, which has its own
  loss; training minimises their sum. The parameters of each are under its name.

  Attributes:
    parts: names and heads, without parents.
  """

  parts: tuple[tuple[str, Head], ...] = ()

  @property
  def token_params(self) -> tuple[str, ...]:
    """Those of all heads, as NAME/PARAMETER."""
    return self._named('token_params')

  @property
  def frozen_params(self) -> tuple[str, ...]:
    """Those of all heads, as NAME/PARAMETER."""
    return self._named('frozen_params')

  def _named(self, kind: str) -> tuple[str, ...]:
    return tuple(
      f'{name}/{param}'
      for name, head in self.parts
      for param in getattr(head, kind)
    )

  def check(self) -> None:
    """As of Head, of each."""
    for name, head in self.parts:
      head.check()
      _check_scale(f'{name}.fusion_weight', head.fusion_weight)

  def statistics(self, texts, num_classes):
    """Those of all heads, as NAME/PARAMETER."""
    return {
      f'{name}/{param}': array
      for name, head in self.parts
      for param, array in head.statistics(texts, num_classes).items()
    }

  @nn.compact
  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    """As of Head, with an axis of the mean and of the heads."""
    inputs = pooled_BP, tokens_BL, padding_mask_BL, num_classes
    logits_BEC = jnp.stack(
      [
        head.clone(name=name, parent=self)(
          *inputs, None if dropout is None else dropout.at(site)
        )
        for site, (name, head) in enumerate(self.parts)
      ],
      axis=1,
    )
    weights_E = np.array([head.fusion_weight for _, head in self.parts])
    weights_E = jnp.float32(weights_E / weights_E.sum())
    # Not a matrix product, which some devices compute in bfloat16.
    mean_BC = (logits_BEC * weights_E[None, :, None]).sum(axis=1)
    return jnp.concatenate([mean_BC[:, None], logits_BEC], axis=1)


def _check_scale(name: str, value) -> None:
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  require(
    is_number and 1e-6 <= value <= 1e6, name, value, 'between 1e-6 and 1e6'
  )


class Linear(Head):
  """An affine function of the pooled vector."""

  @nn.compact
  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    """As of Head."""
    del tokens_BL, padding_mask_BL, dropout
    return _affine(self, pooled_BP, num_classes)


class Mlp(Head):
  """A dense layer with tanh, dropout, and an affine function.

  As RoBERTa (Liu et al. 2019, their code) and the SST-2 example of Flax have
  it.

  Attributes:
    hidden_dim: width of the hidden layer.
  """

  hidden_dim: int = 128

  def check(self) -> None:
    """As of Head."""
    require(self.hidden_dim >= 1, 'hidden_dim', self.hidden_dim, 'at least 1')

  @nn.compact
  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    """As of Head."""
    del tokens_BL, padding_mask_BL
    h_BS = nn.tanh(nn.Dense(self.hidden_dim, name='dense')(pooled_BP))
    return _affine(self, drop(h_BS, dropout, 0), num_classes)


def _affine(head: Head, x_BP, num_classes: int) -> jax.Array:
  """With `kernel` and `bias`, parameters of the head."""
  shape = (x_BP.shape[-1], num_classes)
  kernel_PC = head.param('kernel', nn.initializers.lecun_normal(), shape)
  bias_C = head.param('bias', nn.initializers.zeros, (num_classes,))
  return x_BP @ kernel_PC + bias_C[None]


# n-grams with equal hashes are one: of a million, about two hundred are.
_NUM_HASHES = 2**31 - 1
# Of two classes, 0.8 GB.
_MAX_FEATURES = 2**26


class NGrams(Head):
  """A base of heads that read the set of a text's n-grams: binary features.

  Attributes:
    max_n: tokens of the longest n-gram.
  """

  max_n: int = 2

  def check(self) -> None:
    """As of Head."""
    require(1 <= self.max_n <= MAX_N, 'max_n', self.max_n, f'from 1 to {MAX_N}')

  def hashes(self, tokens_BL, padding_mask_BL, count: int) -> jax.Array:
    """Those of the n-grams of each text, int32 (B, N) below `count`.

    Each once, see selfattn.positions.local.ngrams; `count`, no n-gram,
    elsewhere.
    """
    tokens = Tokens(padding_mask=padding_mask_BL)
    found = [
      jnp.where(is_there_BL, code_BL % count, count)
      for code_BL, is_there_BL in ngrams(tokens_BL, tokens, self.max_n)
    ]
    all_BN = jnp.sort(jnp.concatenate(found, axis=1).astype(jnp.int32), axis=1)
    is_first_BN = jnp.diff(all_BN, axis=1, prepend=-1) > 0
    return jnp.where(is_first_BN, all_BN, count)

  def hashes_of_texts(
    self, texts, count: int
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields `hashes` and labels of the batches of `statistics`."""
    hashes = jax.jit(self.hashes, static_argnums=2)
    num_rows = 0
    for tokens_BL, mask_BL, labels_B in texts:
      # Fewer texts are padded to as many as before: one program for a length.
      num_rows = max(num_rows, len(labels_B))
      more = (0, num_rows - len(labels_B)), (0, 0)
      found = hashes(np.pad(tokens_BL, more), np.pad(mask_BL, more), count)
      yield np.asarray(found)[: len(labels_B)], np.asarray(labels_B)


def _taken(table_RC: jax.Array, rows_BN: jax.Array) -> jax.Array:
  """Rows of a table, zero where there is none."""
  return jnp.take(table_RC, rows_BN, axis=0, mode='fill', fill_value=0)


class WideAndDeep(NGrams):
  """An affine function of the pooled vector and of the n-grams of the text.

  Adds to `Linear` a linear model of n-grams: each of a text adds the logits of
  its row of a table, `embedding`, zero at initialisation; those that share a
  row add them once. Binary features of n-grams as of Wang and Manning (2012),
  trained with the encoder as in Wide & Deep (Cheng et al. 2016, section 3):
  jointly, so that what the encoder has fitted teaches the n-grams nothing.

  Attributes:
    num_buckets: rows of the table; n-grams with equal hashes share one.
    naive_bayes: whether rows are multiplied by log-count ratios of Naive Bayes,
      the `ratio` of each class to all others (Wang and Manning 2012, section
      2), which `statistics` counts in the training texts; 0 for what is not in
      them.
  """

  num_buckets: int = 100_000
  naive_bayes: bool = False

  token_params: ClassVar = ('embedding', 'ratio')

  @property
  def frozen_params(self) -> tuple[str, ...]:
    """The ratios, if there are any."""
    return ('ratio',) if self.naive_bayes else ()

  def check(self) -> None:
    """As of Head."""
    super().check()
    require(
      1 <= self.num_buckets < 2**31,
      'num_buckets',
      self.num_buckets,
      'at least 1 and below 2147483648',
    )

  def statistics(self, texts, num_classes):
    """As of Head."""
    if not self.naive_bayes:
      return {}
    # Of each n-gram and class, in how many texts; the last row is of none.
    counts = np.zeros((self.num_buckets + 1, num_classes), np.int64)
    for rows_BN, labels_B in self.hashes_of_texts(texts, self.num_buckets):
      np.add.at(counts, (rows_BN, labels_B[:, None]), 1)
    ratio = naive_bayes.log_count_ratios(counts[:-1])
    return {'ratio': ratio.astype(np.float32)}

  @nn.compact
  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    """As of Head."""
    del dropout
    # First, so that its kernel is initialised as that of Linear.
    logits_BC = _affine(self, pooled_BP, num_classes)
    rows_BN = self.hashes(tokens_BL, padding_mask_BL, self.num_buckets)
    shape = (self.num_buckets, num_classes)
    table = self.param('embedding', nn.initializers.zeros, shape)
    found_BNC = _taken(table, rows_BN)
    if self.naive_bayes:
      ratio = self.param('ratio', nn.initializers.ones, shape)
      found_BNC = found_BNC * _taken(ratio, rows_BN)
    return logits_BC + found_BNC.sum(axis=1)


class Nbsvm(NGrams):
  """NBSVM: logistic regression on n-grams, fitted once, before training.

  On binary features times log-count ratios of Naive Bayes (Wang and Manning
  2012, and selfattn.naive_bayes.fit). It does not read the pooled vector, and
  stands beside a head that does: `linear+nbsvm`.

  Attributes:
    c: inverse strength of the regularisation, as `C` of scikit-learn.
    interpolation: beta of the paper, which has 0.25: from Naive Bayes (0) to
      the regression alone (1). Of more than two classes, 1: their ratios, each
      of one class to all others, are no Naive Bayes classifier.
    fusion_weight: weight of its logits in the mean with those of the heads that
      it is joined with, as in `linear+nbsvm`; each of these has 1.
    max_features: the most n-grams that are read: those in most texts, and of
      equal ones those of smallest hash.
  """

  c: float = 1.0
  interpolation: float = 1.0
  fusion_weight: float = 1.0
  max_features: int = 2**18

  frozen_params: ClassVar = ('fitted_ngrams', 'fitted_logits', 'fitted_bias')

  def check(self) -> None:
    """As of Head."""
    super().check()
    _check_scale('c', self.c)
    require(
      1 <= self.max_features <= _MAX_FEATURES,
      'max_features',
      self.max_features,
      f'from 1 to {_MAX_FEATURES}',
    )
    _check_scale('fusion_weight', self.fusion_weight)
    require(
      0 <= self.interpolation <= 1,
      'interpolation',
      self.interpolation,
      'between 0 and 1',
    )

  def statistics(self, texts, num_classes):
    """As of Head.

    Takes about 50 bytes for each n-gram of each text, and 400 for each
    different one and each class.
    """
    parts = [(np.zeros(0, np.int32),) * 3]
    for hashes_BN, labels_B in self.hashes_of_texts(texts, _NUM_HASHES):
      is_there_BN = hashes_BN < _NUM_HASHES
      sizes_B = is_there_BN.sum(axis=1)
      parts.append((hashes_BN[is_there_BN], sizes_B, labels_B))
    hashes_N, sizes_B, labels_B = map(np.concatenate, zip(*parts, strict=True))
    ngrams_R, counts_R = np.unique(hashes_N, return_counts=True)
    num_found = len(ngrams_R)
    if num_found > self.max_features:
      warnings.warn(
        f'nbsvm.max_features = {self.max_features}: only the n-grams in most '
        f'texts are read, of {num_found:,} in train',
        stacklevel=2,
      )
      most_R = np.argsort(-counts_R, kind='stable')[: self.max_features]
      ngrams_R = np.sort(ngrams_R[most_R])
    is_read_N = np.isin(hashes_N, ngrams_R)
    logits_RC, bias_C = naive_bayes.fit(
      np.searchsorted(ngrams_R, hashes_N[is_read_N]),
      np.append(0, np.cumsum(is_read_N))[np.cumsum(sizes_B)],
      labels_B,
      len(ngrams_R),
      num_classes,
      self.c,
      self.interpolation,
    )
    more = 0, self.max_features - len(ngrams_R)
    ngrams_R = np.pad(ngrams_R, more, constant_values=_NUM_HASHES)
    return {
      'fitted_ngrams': ngrams_R.astype(np.int32),
      'fitted_logits': np.pad(logits_RC.astype(np.float32), (more, (0, 0))),
      'fitted_bias': bias_C.astype(np.float32),
    }

  @nn.compact
  def __call__(
    self, pooled_BP, tokens_BL, padding_mask_BL, num_classes, dropout=None
  ):
    """As of Head."""
    del pooled_BP, dropout
    none = nn.initializers.constant(_NUM_HASHES, jnp.int32)
    ngrams_R = self.param('fitted_ngrams', none, (self.max_features,))
    logits_RC, bias_C = (
      self.param(name, nn.initializers.zeros, shape)
      for name, shape in (
        ('fitted_logits', (self.max_features, num_classes)),
        ('fitted_bias', (num_classes,)),
      )
    )
    hashes_BN = self.hashes(tokens_BL, padding_mask_BL, _NUM_HASHES)
    rows_BN = jnp.searchsorted(ngrams_R, hashes_BN)
    # Where there is no n-gram, and no row, logits are 0.
    is_known_BN = jnp.take(ngrams_R, rows_BN, mode='clip') == hashes_BN
    rows_BN = jnp.where(is_known_BN, rows_BN, self.max_features)
    return _taken(logits_RC, rows_BN).sum(axis=1) + bias_C[None]


HEADS: dict[str, type[Head]] = {
  'linear': Linear,
  'mlp': Mlp,
  'wide_and_deep': WideAndDeep,
  'nbsvm': Nbsvm,
}


def make(
  options: Mapping[str, Mapping], vocab_size: int | None = None, **fields
) -> Head:
  """The head of a name, or the LateFusion of several.

  Args:
    options: by name, {'linear': {}, 'nbsvm': {'c': 3.0}}.
    vocab_size: as of Head.
    fields: of a Flax module, such as its name.
  """
  if len(options) == 1:
    ((name, own),) = options.items()
    return HEADS[name](**own, vocab_size=vocab_size, **fields)
  parts = tuple(
    (name, HEADS[name](**own, vocab_size=vocab_size, parent=None))
    for name, own in options.items()
  )
  return LateFusion(parts, vocab_size=vocab_size, **fields)
