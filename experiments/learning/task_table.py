"""The tasks that config.task names."""

from __future__ import annotations

from experiments.learning.classify import Classify
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.learning.contrastive import Contrastive
from experiments.learning.masked_tokens import MaskedTokens
from experiments.learning.multilabel import Multilabel
from experiments.learning.next_token import NextToken
from experiments.learning.regression import Regression
from experiments.learning.tasks import Task

TASKS: dict[str, type[Task]] = {
  'classify': Classify,
  'multilabel': Multilabel,
  'regression': Regression,
  'classify_tokens': ClassifyTokens,
  'contrastive': Contrastive,
  'masked_tokens': MaskedTokens,
  'next_token': NextToken,
}
