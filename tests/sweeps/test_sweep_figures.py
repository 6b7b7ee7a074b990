"""Figures of two swept hyperparameters."""

import numpy as np
import pytest

from experiments.sweeps import comparison, plots

RATES, DECAYS = (1e-3, 1e-2), (0.0, 0.1, 0.3)
KEYS = ['rate', 'decay']


def compared(table, sign=1):
  return comparison.Comparison('score', ('seed',), ('seed',), None, table, sign)


def entry(mean, half_width=None, **keys):
  score = {'mean': mean, 'half_width': half_width}
  return {'setting': str(keys), 'n': 2, 'validation': score} | keys


def crossed(**more):
  """Settings of a grid, the best first; 0.2, 0.3, ... in reading order."""
  means = iter(np.arange(2, 8) / 10)
  table = [
    entry(next(means), rate=rate, decay=decay, **more)
    for rate in RATES
    for decay in DECAYS
  ]
  return table[::-1]


def texts(axes):
  return [text.get_text() for text in axes.texts]


def test_two_crossed_numbers_are_one_surface():
  table = crossed()
  table[0]['validation']['half_width'] = 0.0123
  (name,) = found = plots.against(compared(table), KEYS)
  assert name == 'rate and decay'
  axes, scale = found[name].axes
  (image,) = axes.get_images()
  np.testing.assert_allclose(
    image.get_array(), [[0.2, 0.3, 0.4], [0.5, 0.6, 0.7]]
  )
  assert texts(axes)[-2:] == ['0.600', '0.700\n± 0.012']
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('decay', 'rate')
  ticks = [
    [tick.get_text() for tick in axis.get_ticklabels()]
    for axis in (axes.xaxis, axes.yaxis)
  ]
  assert ticks == [['0', '0.1', '0.3'], ['0.001', '0.01']]
  assert scale.get_ylabel() == 'score on validation (mean, 95% interval)'


@pytest.mark.parametrize(('sign', 'best'), [(1, 0.7), (-1, 0.2)])
def test_the_darkest_cell_is_the_best_one(sign, best):
  (drawn,) = plots.against(compared(crossed(), sign), KEYS).values()
  (image,) = drawn.axes[0].get_images()
  values = image.get_array()
  darkest = image.to_rgba(values)[..., :3].sum(axis=-1).argmin()
  assert values.ravel()[darkest] == best
  # And its text is white, that of the lightest black.
  colours = [text.get_color() for text in drawn.axes[0].texts]
  assert colours[darkest] == 'white'
  assert colours[5 - darkest] == 'black'


def test_a_cell_without_a_result_is_empty():
  table = crossed()
  table[-1] |= {'n': 0, 'validation': None}
  (drawn,) = plots.against(compared(table), KEYS).values()
  (image,) = drawn.axes[0].get_images()
  assert image.get_array().mask.tolist() == [[True, False, False], [False] * 3]
  assert texts(drawn.axes[0])[0] == ''


@pytest.mark.parametrize(
  'settings', [[(1, 3), (2, 4), (5, 6)], [(1, 0), (2, 0)]]
)
def test_numbers_that_are_not_crossed_have_a_figure_each(settings):
  table = [entry(0.5, rate=rate, decay=decay) for rate, decay in settings]
  found = plots.against(compared(table), KEYS)
  assert list(found) == KEYS[: len(settings) - 1]


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
