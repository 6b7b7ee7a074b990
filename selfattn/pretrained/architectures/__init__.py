"""Architectures by the model_type of their config.json.

To add one: a function in a file of its family, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from selfattn.pretrained.architectures import bert, llama
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Model

ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
  'albert': bert.albert,
  'bert': bert.bert,
  'bert-generation': bert.bert_generation,
  'camembert': bert.roberta,
  'data2vec-text': bert.data2vec,
  'distilbert': bert.distilbert,
  'electra': bert.electra,
  'ernie': bert.ernie,
  'llama': llama.llama,
  'megatron-bert': bert.megatron_bert,
  'mpnet': bert.mpnet,
  'roberta': bert.roberta,
  'roberta-prelayernorm': bert.roberta_prelayernorm,
  'roformer': bert.roformer,
  'xlm-roberta': bert.roberta,
  'xlm-roberta-xl': bert.xlm_roberta_xl,
}
