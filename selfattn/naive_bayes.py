"""Linear models of n-grams whose features are Naive Bayes' log-count ratios.

Wang and Manning (2012): a text has binary features, one for each row of a table
that an n-gram in it has.
"""

from __future__ import annotations

import warnings

import numpy as np


def log_count_ratios(counts_RC: np.ndarray) -> np.ndarray:
  """log(p / |p|) - log(q / |q|), p = 1 + counts of a class and q of all others.

  Section 2 of the paper, with alpha = 1, over the rows that occur; 0 elsewhere.

  Args:
    counts_RC: how many texts of each class have each row.
  """
  all_R1 = counts_RC.sum(axis=1, keepdims=True)
  is_there_R1 = all_R1 > 0
  p_RC, q_RC = (
    np.where(is_there_R1, 1 + each, 0)
    for each in (counts_RC, all_R1 - counts_RC)
  )
  with np.errstate(divide='ignore', invalid='ignore'):
    ratio_RC = np.log(p_RC / p_RC.sum(axis=0)) - np.log(q_RC / q_RC.sum(axis=0))
  return np.where(is_there_R1, ratio_RC, 0)


def fit(
  rows_N: np.ndarray,
  ends_B: np.ndarray,
  labels_B: np.ndarray,
  num_rows: int,
  num_classes: int,
  c: float,
  interpolation: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
  """Logistic regression on binary features times their log-count ratios.

  NBSVM with the cross entropy of softmax in the place of the squared hinge
  loss. Minimises

    c sum_b cross_entropy(logits_b, label_b) + |w|^2 / 2

  by L-BFGS in float64, where logits_bk = bias_k + sum_r w_rk ratio_rk over the
  rows r of text b, until the objective falls by less than 1e-10 c for each
  text, or each derivative is below 1e-4, or for 1,000 iterations, with a
  warning. The minimum is unique but for a constant in all biases, whose mean is
  0 here. A class without texts has none, and a bias far below the others. Then
  the classifier is interpolated with Naive Bayes of the same scale s_k =
  mean_r |w_rk| (section 2.3):

    (1 - beta) s_k + beta w_rk,   (1 - beta) s_k log(n_k / m_k) + beta bias_k,

  for n texts of a class and m of others, 1 added to each; a class without texts
  keeps its bias. The paper gives no bias: that of the regression is too large
  beside weights that are mostly those of Naive Bayes, and favours one class.

  Args:
    rows_N: the rows of all texts, those of one after those of another, each at
      most once for a text.
    ends_B: the end of each text in rows_N.
    labels_B: classes.
    num_rows: R, above all rows.
    num_classes: C.
    c: inverse strength of the regularisation.
    interpolation: beta, between Naive Bayes (0) and the regression (1).

  Returns:
    What each row adds to the logits, w ratio, (R, C), and biases, (C,).
  """
  import scipy.optimize
  import scipy.sparse
  import scipy.special

  count = max(len(labels_B), 1)
  starts = np.concatenate([[0], ends_B])
  x_BR = scipy.sparse.csr_array(
    (np.ones(len(rows_N)), rows_N, starts), (len(labels_B), num_rows)
  )
  target_BC = np.eye(num_classes)[labels_B]
  x_RB = x_BR.T.tocsr()
  ratio_RC = log_count_ratios(x_RB @ target_BC)

  def objective(flat):
    w_RC = flat[num_classes:].reshape(num_rows, num_classes)
    logits_BC = x_BR @ (w_RC * ratio_RC) + flat[:num_classes]
    log_probs_BC = scipy.special.log_softmax(logits_BC, axis=1)
    # Divided by count * c, so that the loss is a mean over texts.
    decay = 1 / (count * c)
    loss = (
      -(log_probs_BC * target_BC).sum() / count + decay * (w_RC**2).sum() / 2
    )
    error_BC = (np.exp(log_probs_BC) - target_BC) / count
    of_w_RC = (x_RB @ error_BC) * ratio_RC + decay * w_RC
    return loss, np.concatenate([error_BC.sum(axis=0), of_w_RC.ravel()])

  start = np.zeros((1 + num_rows) * num_classes)
  options = {'maxiter': 1_000, 'ftol': 1e-10, 'gtol': 1e-4 / (count * c)}
  found = scipy.optimize.minimize(
    objective, start, jac=True, method='L-BFGS-B', options=options
  )
  if not found.success:
    warnings.warn(
      f'c = {c}: the logistic regression has not converged in {found.nit} '
      f'iterations ({found.message}); a smaller c is fitted sooner',
      stacklevel=2,
    )
  best = found.x
  w_RC = best[num_classes:].reshape(num_rows, num_classes)
  w_of_nb_C = np.abs(w_RC).sum(axis=0) / max(num_rows, 1)
  w_RC = (1 - interpolation) * w_of_nb_C + interpolation * w_RC
  sizes_C = target_BC.sum(axis=0)
  prior_C = np.log((1 + sizes_C) / (1 + len(labels_B) - sizes_C))
  bias_C = best[:num_classes]
  bias_C = bias_C - bias_C.mean()
  beta_C = np.where(sizes_C > 0, interpolation, 1.0)
  bias_C = (1 - beta_C) * w_of_nb_C * prior_C + beta_C * bias_C
  return w_RC * ratio_RC, bias_C
