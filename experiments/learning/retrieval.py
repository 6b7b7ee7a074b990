"""How well texts find those that belong to them; on the host."""

from __future__ import annotations

import numpy as np

# Elements of a matrix of similarities that is in memory at once.
_MOST = 2**24


def scores(
  vectors: np.ndarray,
  fingerprints: np.ndarray,
  belongs: np.ndarray,
  cuts: tuple[int, ...],
) -> dict[str, float | None]:
  """`mrr`, the mean reciprocal rank of the first right text, and `recall_N`.

  Each distinct first text asks, among all distinct second and third ones but
  itself. Right are the second texts of its examples. Recall is the share of
  them among the nearest N, a mean over the texts that ask. Texts that are
  equally near share the mean of their ranks. Without an example whose texts
  belong together, all are None.

  Args:
    vectors: (examples, texts, P), whose dot products are similarities.
    fingerprints: (examples, texts), equal for equal texts, 0 for empty ones.
    belongs: boolean (examples,), whether the first two texts belong together.
    cuts: the values of N.
  """
  names = [f'recall_{cut}' for cut in cuts]
  if not belongs.any():
    return dict.fromkeys(['mrr', *names])
  others = vectors[:, 1:].reshape(-1, vectors.shape[-1])
  texts, first = np.unique(fingerprints[:, 1:], return_index=True)
  first, texts = first[texts > 0], texts[texts > 0]
  asking, at, owner = np.unique(
    fingerprints[belongs, 0], return_index=True, return_inverse=True
  )
  right = np.searchsorted(texts, fingerprints[belongs, 1])
  owner, right = np.unique(np.stack([owner, right]), axis=1)
  queries, others = vectors[belongs, 0][at], others[first]
  ranks, size = [], max(_MOST // len(texts), 1)
  for start in range(0, len(owner), size):
    asks, own = owner[start : start + size], right[start : start + size]
    near = queries[asks] @ others.T
    of_right = near[np.arange(len(own)), own, None]
    is_itself = texts[None] == asking[asks, None]
    near[is_itself & (np.arange(len(texts)) != own[:, None])] = -np.inf
    above, equal = (near > of_right).sum(1), (near == of_right).sum(1)
    ranks.append(1 + above + (equal - 1) / 2)
  ranks = np.concatenate(ranks)
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
