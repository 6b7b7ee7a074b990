"""Attention in float64 NumPy, from the equations, a text at a time.

It shares no code with the package. The terms of a position method are the
formulas of test_positions.py, in float64 too; of these, the slopes of ALiBi
alone are the package's, which test_position_goldens.py checks.
"""

import numpy as np
from test_positions import ROWS, H, K


def reference(q, k, v, parts, query_BL, key_BM, sees, bias=0.0, softcap=0.0):
  """Output (B, L, H, K) and weights (B, H, L, M), float64.

  Args:
    q, k, v: (B, L, H, K) and twice (B, M, G, K).
    parts: (name, method, parameters) of each of the methods that are joined.
    query_BL, key_BM: where the tokens stand.
    sees, bias: broadcasting to (B, H, L, M).
  """
  (B, L), M = q.shape[:2], k.shape[1]
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  sees, bias = (np.broadcast_to(x, (B, H, L, M)) for x in (sees, bias))
  outputs, all_weights = [], []
  for b in range(B):
    group = H // k.shape[2]
    one_q = q[b : b + 1]
    one_k, one_v = (np.repeat(x[b : b + 1], group, axis=2) for x in (k, v))

    def terms(hook, x, query, key, weights):
      found = (
        ROWS[name](method, params, query, key, x, weights).get(hook)
        for name, method, params in parts
      )
      return [term for term in found if term is not None]

    def rotated(x, places):
      for part in parts:
        nothing = np.zeros((1, H, len(places), len(places)))
        found = ROWS[part[0]](*part[1:], places, places, x, nothing)
        x = found.get('rotate', x)
      return x

    places = query_BL[b], key_BM[b]
    nothing = np.zeros((1, H, L, M))
    turned_q, turned_k = rotated(one_q, places[0]), rotated(one_k, places[1])
    scores = np.einsum('blhk,bmhk->bhlm', turned_q, turned_k)
    for term in terms('content', one_q, *places, nothing):
      # NaN where the formula says that a causal mask hides it.
      scores = scores + np.nan_to_num(term, nan=0.0)
    scores = scores / np.sqrt(K)
    if softcap:
      scores = softcap * np.tanh(scores / softcap)
    for term in terms('bias', one_q, *places, nothing):
      scores = scores + term
    scores = np.where(sees[b], scores + bias[b], -np.inf)
    peak = np.max(scores, axis=-1, keepdims=True)
    unnormalised = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = unnormalised.sum(axis=-1, keepdims=True)
    weights = unnormalised / np.where(total > 0, total, 1)
    output = np.einsum('bhlm,bmhk->blhk', weights, one_v)
    for term in terms('value', one_q, *places, weights):
      output = output + term
    outputs.append(output[0])
    all_weights.append(weights[0])
  return np.stack(outputs), np.stack(all_weights)


def visible(B, L, M, *, padding_mask, segments, causal, window):
  """Boolean (B, 1, L, M), by looking at every pair."""
  sees = np.ones((B, 1, L, M), bool)
  for b in range(B):
    for i in range(L):
      for j in range(M):
        left, right = window or (-1, -1)
        sees[b, 0, i, j] = (
          (padding_mask is None or padding_mask[b, j])
          and (segments is None or segments[b, i] == segments[b, j])
          and not (causal and j > i)
          and (left < 0 or j >= i - left)
          and (right < 0 or j <= i + right)
        )
  return sees
