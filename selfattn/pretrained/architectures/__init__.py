"""Architectures by the model_type of their config.json.

To add one: a function in a file of its family, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from selfattn.pretrained.architectures import (
  bert,
  cohere,
  deberta,
  experts,
  gemma,
  gpt,
  llama,
  modernbert,
  olmo,
  t5,
)
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Model

ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
  'albert': bert.albert,
  'apertus': llama.apertus,
  'arcee': llama.arcee,
  'bert': bert.bert,
  'bloom': gpt.bloom,
  'camembert': bert.roberta,
  'cohere': cohere.cohere,
  'cohere2': cohere.cohere2,
  'deberta': deberta.deberta,
  'deberta-v2': deberta.deberta_v2,
  'distilbert': bert.distilbert,
  'electra': bert.electra,
  'ernie4_5': llama.ernie4_5,
  'esm': bert.esm,
  'eurobert': modernbert.eurobert,
  'exaone4': olmo.exaone4,
  'falcon': gpt.falcon,
  'flint': experts.flint,
  'gemma': gemma.gemma,
  'gemma2': gemma.gemma2,
  'gemma3_text': gemma.gemma3,
  'glm': llama.glm,
  'glm4': llama.glm4,
  'glm4_moe': experts.glm4_moe,
  'gpt2': gpt.gpt2,
  'gpt_bigcode': gpt.gpt_bigcode,
  'gpt_neo': gpt.gpt_neo,
  'gpt_neox': gpt.gpt_neox,
  'gpt_oss': experts.gpt_oss,
  'gptj': gpt.gptj,
  'granite': llama.granite,
  'granite_swa': llama.granite_swa,
  'granitemoe': experts.granitemoe,
  'kolibri1': experts.kolibri1,
  'laguna': experts.laguna,
  'llama': llama.llama,
  'ministral': llama.mistral,
  'mistral': llama.mistral,
  'mixtral': experts.mixtral,
  'modernbert': modernbert.modernbert,
  'mpnet': bert.mpnet,
  'mpt': gpt.mpt,
  'mt5': t5.mt5,
  'nanochat': llama.nanochat,
  'nemotron': llama.nemotron,
  'nomic_bert': modernbert.nomic_bert,
  'olmo': olmo.olmo,
  'olmo2': olmo.olmo2,
  'olmo3': olmo.olmo3,
  'olmoe': experts.olmoe,
  'opt': gpt.opt,
  'phi': gpt.phi,
  'phi3': llama.phi3,
  'qwen2': llama.qwen2,
  'qwen2_moe': experts.qwen2_moe,
  'qwen3': llama.qwen3,
  'qwen3_moe': experts.qwen3_moe,
  'roberta': bert.roberta,
  'roformer': bert.roformer,
  'seed_oss': llama.seed_oss,
  'smollm3': llama.smollm3,
  'solar_open': experts.solar_open,
  'stablelm': llama.stablelm,
  'starcoder2': llama.starcoder2,
  't5': t5.t5,
  'umt5': t5.umt5,
  'xlm-roberta': bert.roberta,
}
"""Functions from the fields of config.json to a Model, by model_type.

Examples:
  >>> 'llama' in pretrained.ARCHITECTURES
  True
"""
