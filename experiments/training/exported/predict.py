"""Predicts texts, one an argument: python predict.py "A text." "Another."

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


def predict(texts):
  """Probabilities (texts, labels), or logits of a task without labels."""
  encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
  ids = [text.ids[: settings['max_length']] for text in encoded]
  lengths = np.array([len(row) for row in ids], np.int32)
  longest = max(1, *lengths)
  if settings['length'] != 'any':
    longest = settings['max_length']
  tokens = np.zeros((len(ids), longest), np.int32)
  for row, of_text in zip(tokens, ids, strict=True):
    row[: len(of_text)] = of_text
  return np.asarray(program.call(params, tokens, lengths))


if __name__ == '__main__':
  for answer in predict(sys.argv[1:]):
    labels = settings['labels'] or range(len(answer))
    print(json.dumps(dict(zip(labels, answer.tolist(), strict=True))))
