"""Figures of swept hyperparameters."""

import pytest

from experiments.sweeps import comparison, plots

RATES = (1e-3, 1e-2)
KEYS = ['rate', 'decay']


def compared(table, sign=1):
  return comparison.Comparison('score', ('seed',), ('seed',), None, table, sign)


def entry(mean, half_width=None, **keys):
  score = {'mean': mean, 'half_width': half_width}
  return {'setting': str(keys), 'n': 2, 'validation': score} | keys


def test_each_of_two_numbers_has_a_figure_with_curves_of_the_other():
  table = [entry(0.1 * n, rate=rate, decay=0.1 * (n % 3))
           for n, rate in enumerate(RATES * 3)]  # fmt: skip
  figures = plots.against(compared(table[::-1]), KEYS)
  assert list(figures) == KEYS
  counts = [len(shown.axes[0].containers) for shown in figures.values()]
  assert counts == [3, 2]
  curve, *_ = figures['decay'].axes[0].containers
  assert curve[0].get_xdata().tolist() == sorted(curve[0].get_xdata())


@pytest.mark.parametrize('metric', ['accuracy', 'loss'])
def test_intervals_of_shares_end_at_0_and_1(metric):
  table = [entry(0.5, 3.0, rate=rate) for rate in RATES]
  table = [row | {'test': row['validation']} for row in table]
  found = comparison.Comparison(metric, ('seed',), ('seed',), None, table, 1)
  (settings,) = plots.settings(found).axes
  (curve,) = plots.figure(found, 'rate', ['rate']).axes
  for low, high in (settings.get_xlim(), curve.get_ylim()):
    if metric == 'accuracy':
      assert (low, high) == (-0.02, 1.02)
    else:
      assert low < -2 < 3 < high
