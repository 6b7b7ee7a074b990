r"""Predicts texts, one an argument: python predict.py "A text." "Another."

A tab stands between the two texts of a pair: python predict.py $'One.\tTwo.'
Needs jax, flatbuffers, numpy, safetensors, tokenizers and the files beside it.
"""

import json
import pathlib
import sys

import numpy as np
from jax import export
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
settings = json.loads((HERE / 'settings.json').read_text())
params = load_file(HERE / 'parameters.safetensors')
program = export.deserialize(bytearray((HERE / 'program.bin').read_bytes()))
tokenizer = Tokenizer.from_file(str(HERE / 'tokenizer.json'))
tokenizer.encode_special_tokens = True  # '[PAD]' in a text is characters.
tokenizer.enable_truncation(settings['max_length'], strategy='longest_first')


def predict(texts):
  """The output of settings.json for texts, or for tuples of two texts.

  It is NaN for a text without tokens.
  """
  special = tokenizer.num_special_tokens_to_add(settings['reads_pairs'])
  encoded = tokenizer.encode_batch(texts)
  # An empty text, or a pair of two, has no tokens in training.
  ids = [text.ids if len(text.ids) > special else [] for text in encoded]
  lengths = np.array([len(row) for row in ids], np.int32)
  longest = max([1, *lengths])
  if settings['length'] != 'any':
    longest = settings['max_length']
  if not ids:
    ids, lengths = [[]], np.zeros(1, np.int32)
  tokens = np.zeros((len(ids), longest), np.int32)
  for row, of_text in zip(tokens, ids, strict=True):
    row[: len(of_text)] = of_text
  outputs = np.array(program.call(params, tokens, lengths))
  outputs[lengths == 0] = np.nan
  return outputs[: len(texts)]


if __name__ == '__main__':
  texts = sys.argv[1:]
  if settings['reads_pairs']:
    texts = [tuple(pair.split('\t', 1)) for pair in texts]
  for answer in predict(texts):
    labels = settings['labels'] or range(len(answer))
    values = dict(zip(labels, answer.tolist(), strict=True))
    print(json.dumps(None if np.isnan(answer).all() else values))
