"""How well texts find those that belong to them; on the host."""

from __future__ import annotations

import numpy as np

# Elements of a matrix of similarities that is in memory at once.
_MOST = 2**24


def scores(
  vectors: np.ndarray,
  fingerprints: np.ndarray,
  is_pair: np.ndarray,
  cuts: tuple[int, ...],
) -> dict[str, float | None]:
  """`mrr`, the mean reciprocal rank of the first right text, and `recall_N`.

  Each distinct first text asks, among all distinct others. Right are the second
  texts of its examples. Recall is the share of them among the nearest N, a mean
  over the texts that ask. Texts that are equally near share the mean of their
  ranks. Without an example whose texts belong together, all are None.

  Args:
    vectors: (examples, texts, P), whose dot products are similarities.
    fingerprints: (examples, texts), equal for equal texts.
    is_pair: boolean (examples,), whether the first two texts belong together.
    cuts: the values of N.
  """
  names = [f'recall_{cut}' for cut in cuts]
  if not is_pair.any():
    return dict.fromkeys(['mrr', *names])
  others = vectors[:, 1:].reshape(-1, vectors.shape[-1])
  _, first, text = np.unique(
    fingerprints[:, 1:], return_index=True, return_inverse=True
  )
  text = text.reshape(len(vectors), -1)[is_pair, 0]
  _, asks_first, asks = np.unique(
    fingerprints[is_pair, 0], return_index=True, return_inverse=True
  )
  pairs = np.unique(np.stack([asks, text], axis=1), axis=0)
  queries, texts = vectors[is_pair, 0][asks_first], others[first]
  size = max(_MOST // len(texts), 1)
  parts = [pairs[start : start + size] for start in range(0, len(pairs), size)]
  ranks = np.concatenate([_ranks(queries, texts, part) for part in parts])
  owner = pairs[:, 0]
  counts = np.bincount(owner)
  best = np.full(len(counts), np.inf)
  np.minimum.at(best, owner, ranks)
  recalls = [
    float((np.bincount(owner, ranks <= cut) / counts).mean()) for cut in cuts
  ]
  return {
    'mrr': float((1 / best).mean()),
    **dict(zip(names, recalls, strict=True)),
  }


def _ranks(queries, texts, pairs: np.ndarray) -> np.ndarray:
  """The rank of the text of each pair (query, text), from 1."""
  near = queries[pairs[:, 0]] @ texts.T
  own = near[np.arange(len(pairs)), pairs[:, 1], None]
  above, equal = (near > own).sum(axis=1), (near == own).sum(axis=1)
  return 1 + above + (equal - 1) / 2
