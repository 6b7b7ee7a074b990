"""The weights of all-MiniLM-L6-v2, on the sentences of STS-B.

    SELFATTN_MINILM=FOLDER SELFATTN_STSB=FOLDER pytest -m oracle test_minilm.py

The folders are of the model and of sts-test.csv.
"""

import csv
import importlib.util
import os

import jax
import numpy as np
import pytest

from selfattn import pretrained

FOLDER, DATA = (os.environ.get(f'SELFATTN_{n}', '') for n in ('MINILM', 'STSB'))
ROWS = 32

pytestmark = [
  pytest.mark.oracle,
  pytest.mark.skipif(
    not (FOLDER and DATA and importlib.util.find_spec('transformers')),
    reason='transformers, SELFATTN_MINILM and SELFATTN_STSB are needed',
  ),
]


def sentences():
  """(first, second, score) of each row."""
  path = os.path.join(DATA, 'sts-test.csv')
  with open(path, encoding='utf-8') as file:
    rows = list(csv.reader(file, delimiter='\t', quoting=csv.QUOTE_NONE))
  return [(row[5], row[6], float(row[4])) for row in rows]


def batches(tokenizer, texts):
  """(ids, mask) of sorted texts, each padded to the longest of its batch."""
  tokenizer.enable_padding()
  for start in range(0, len(texts), ROWS):
    encoded = tokenizer.encode_batch(texts[start : start + ROWS])
    ids = np.array([one.ids for one in encoded])
    yield ids, np.array([one.attention_mask for one in encoded], bool)


def spearman(vectors, rows):
  from scipy import stats

  cosines = [
    float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    for a, b in ((vectors[first], vectors[second]) for first, second, _ in rows)
  ]
  return stats.spearmanr(cosines, [score for *_, score in rows]).statistic


def test_vectors_and_their_correlation_with_scores_are_those_of_transformers():
  import torch
  import transformers

  rows = sentences()
  texts = sorted({text for row in rows for text in row[:2]}, key=len)
  loaded = pretrained.load(FOLDER, 'none')
  apply = jax.jit(loaded.module.apply)
  model = transformers.AutoModel.from_pretrained(FOLDER).eval()
  ours, theirs = [], []
  for ids, mask in batches(loaded.tokenizer, texts):
    ours.append(np.asarray(apply(loaded.variables, ids, mask)))
    with torch.no_grad():
      x = model(torch.tensor(ids), torch.tensor(mask.astype(int)))[0].numpy()
    theirs.append((x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))
  ours, theirs = np.concatenate(ours), np.concatenate(theirs)
  difference = abs(ours - theirs).max()
  found, want = (
    spearman(dict(zip(texts, vectors, strict=True)), rows)
    for vectors in (ours, theirs)
  )
  print(
    f'{len(texts)} texts, {difference:.1e}, Spearman {found:.6f}, {want:.6f}'
  )
  assert difference < 1e-4
  assert abs(found - want) < 1e-4
