"""The class of some tokens of each text."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from experiments.command.errors import UserError
from experiments.data.batches import Batch, Examples
from experiments.data.labels import Labels
from experiments.data.token_labels import TokenLabels
from experiments.learning import reports
from experiments.learning.reports import Report, Table
from experiments.learning.tasks import Targets, Task
from selfattn.dropout import Bits
from selfattn.heads import EmbeddingHead, TokenHead


@dataclasses.dataclass(frozen=True)
class ClassifyTokens(Task):
  """One class for each token that has a label; loss and accuracy are of these.

  Sequence labelling, and answers of a text with more than one token.

  Attributes:
    tied: whether classes are tokens of the vocabulary, whose logits are matmuls
      with their embeddings; False: the logits are an affine function.
  """

  tied: bool = False
  labels: ClassVar[Labels | None] = TokenLabels()

  def __post_init__(self):
    if self.tied and None in self.label_ids:
      missing = self.facts.names[self.label_ids.index(None)]
      raise UserError(
        'classify_tokens.tied = True needs classes that are tokens of '
        f'config.data.vocabulary, and {missing!r} is none'
      )

  def targets(self, batch: Batch, vocab_size: int, bits: Bits) -> Targets:
    del vocab_size, bits
    # A text has no more labels than tokens, and they come first.
    labels = batch.labels[:, : batch.tokens.shape[1]]
    index, classes = labels[..., 0], labels[..., 1]
    # Labels of tokens that were truncated are left out.
    is_read = (classes >= 0) & (index < batch.lengths[:, None])
    return Targets(
      batch.tokens,
      batch.lengths,
      jnp.where(is_read, classes, 0),
      is_read * batch.weights[:, None],
      jnp.where(is_read, index, 0),
    )

  def head(self, vocab_size: int, num_labels: int) -> nn.Module:
    del vocab_size
    if self.tied:
      return EmbeddingHead(self.label_ids, parent=None)
    return TokenHead(num_labels, parent=None)

  def report(self, outputs, raw, examples: Examples) -> Report:
    """The metrics of a split, and the mean accuracy of texts by length."""
    del raw
    measured = self.scores(outputs, examples.labels)
    table = Table(list(measured), [list(measured.values())])
    _, correct, counts = outputs
    has_labels = counts > 0
    if not has_labels.any():
      return Report({}, [table])
    hits = correct[has_labels] / counts[has_labels]
    report = reports.of_lengths(examples.lengths[has_labels], hits)
    report.tables.insert(0, table)
    return report
