"""Figures and tables of the page of a sweep."""

import re

import pytest

from experiments.inspection import charts, pages, sweep_page
from experiments.sweeps import comparison, tables

RATES, DECAYS = (1e-4, 1e-3, 1e-2), (0.0, 0.1)


def compared(sign=1):
  """Two seeds of each of six settings; the best has the first of both."""
  table = []
  for n, rate in enumerate(RATES):
    for m, decay in enumerate(DECAYS):
      values = [0.9 - 0.1 * (2 * n + m) + d for d in (-0.01, 0.01)]
      score = comparison.interval(values) | {
        'values': {str(seed): [v] for seed, v in enumerate(values)}
      }
      entry = {'setting': f'{rate}, {decay}', 'n': 2, 'missing': 0}
      entry |= {'rate': rate, 'decay': decay}
      table.append(entry | {'validation': score, 'test': score})
  over = ('seed',)
  return comparison.Comparison('score', over, over, None, table, sign)


@pytest.mark.parametrize(('sign', 'best'), [(1, 0), (-1, 5)])
def test_two_numbers_are_a_surface_deepest_where_it_is_best(sign, best):
  shown = sweep_page._surface(compared(sign), 'rate', 'decay')
  header = re.findall('<th [^>]*>(.*?)</th>', shown)
  assert header == ['', '0', '0.1']
  cells = re.findall(r'/ ([0-9.]+)\).*?"><span .*?>([0-9.]+)<', shown)
  assert 'title="(0.89, 0.91)"' in shown
  assert [float(mean) for _, mean in cells] == pytest.approx(
    [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
  )
  depths = [float(depth) for depth, _ in cells]
  assert depths.index(max(depths)) == best
  assert min(depths) == 0


def test_few_seeds_have_their_values_and_no_interval():
  shown = sweep_page._settings(compared())
  row = shown.split('>0.0001, 0.0</td>')[1].split('</tr>')[0]
  assert '0.8900, 0.9100' in row
  assert '±' not in row
  # A disc of each value on validation and on test.
  assert re.findall('<title>(.*?)</title>', row) == ['0.89', '0.91'] * 2


@pytest.mark.parametrize('name', ['short', 'a name of many words, ' * 3])
def test_a_table_fits_a_terminal(name):
  found = compared()
  for entry in found.table:
    entry['setting'] = name
  lines = tables.text(found).splitlines()
  assert max(map(len, lines)) <= 80
  rows = [n for n, line in enumerate(lines) if line.startswith(name)]
  assert rows == [*(range(1, 7) if name == 'short' else range(1, 13, 2))]
  assert sum('0.8900, 0.9100' in line for line in lines) == 1


def test_a_chart_is_logarithmic_and_says_its_values():
  chart = sweep_page._against(compared(), 'rate', ['rate', 'decay'])
  titles = re.findall('<title>(.*?)</title>', chart)
  assert titles[0] == 'decay=0.0: 0.9 at 0.0001 (0.89, 0.91)'
  discs = re.findall('cx="([0-9.]+)"', chart)
  first, second, third = map(float, discs[:3])
  assert second - first == pytest.approx(third - second, abs=0.2)
  # The range of the two seeds, around the curve.
  assert chart.count('<polygon') == 2


def test_one_curve_of_a_swept_number_says_what_it_is_of():
  chart = sweep_page._against(compared(), 'rate', ['rate'])
  assert re.findall('</svg> (.*?)</span>', chart) == ['all settings']


def test_a_sweep_without_results_has_a_page(monkeypatch):
  monkeypatch.setattr(
    sweep_page.names, 'swept', lambda specs, over: ['rate', 'decay']
  )
  found = compared()
  assert sweep_page._figures([], found).count('<figure') == 2
  for entry in found.table:
    entry.update(n=0, missing=2)
    del entry['validation'], entry['test']
  assert '0 of 2' in sweep_page._settings(found)
  assert '<figure' not in sweep_page._figures([], found)


def test_lengths_of_windows_are_a_chart():
  found = compared()
  of_seeds = {'128': (2.0, 2.2), '256': (3.0, 3.4)}
  bits = {
    length: {'values': {'0': [one], '1': [other]}}
    for length, (one, other) in of_seeds.items()
  }
  found.table[1]['by_length'] = bits
  chart = sweep_page._by_length(found)
  assert re.findall('<title>(.*?)</title>', chart) == [
    '0.0001, 0.1: 2.1 at 128 (2, 2.2)',
    '0.0001, 0.1: 3.2 at 256 (3, 3.4)',
  ]


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    ([1e-4, 3e-4, 1e-3], True),
    ([1, 2, 4], True),
    ([1, 2, 3], False),
    ([0, 1, 100], False),
    ([1, 2], False),
    ([5], False),
  ],
)
def test_grids_that_grow_by_factors_are_logarithmic(values, expected):
  assert sweep_page.is_logarithmic(values) == expected


@pytest.mark.parametrize('log', [False, True])
def test_a_chart_may_have_one_point(log):
  point = charts.Point(128, 0, -1, 1)
  chart = charts.lines({'a': [point]}, 'x', 'y', log=log)
  assert '>128</text>' in chart
  assert chart.count('<circle') == 1
  # Its range would be lost on the line of the grid.
  assert '<polygon class="bar"' in chart
  # What the curve is.
  assert '</svg> a</span>' in chart


def test_large_integers_are_exact():
  points = [charts.Point(n, 0.5) for n in (8192, 16384)]
  chart = charts.lines({'a': points}, 'x', 'y', log=True)
  assert '>16,384</text>' in chart
  assert 'a: 0.5 at 16,384' in chart


def test_equal_curves_are_one_and_constant_shares_end_at_one():
  flat, point = [charts.Point(0, 1), charts.Point(9, 1)], [charts.Point(3, 1)]
  chart = charts.lines({'a': flat, 'b': flat, 'c': point}, 'x', 'y')
  assert chart.count('<polyline') == 2
  ticks = re.findall('text-anchor="end">(.*?)<', chart)
  assert (ticks[0], ticks[-1]) == ('0.0', '1.0')
  equal, single = re.findall('<span>(.*?)</span>', chart)
  assert equal.endswith('equal: a; b')
  assert ['round' in entry for entry in (equal, single)] == [False, True]


@pytest.mark.parametrize(
  ('low', 'high'), [(0.9999999, 1.0), (0.1234567, 0.1234569), (3e9, 3e9 + 4)]
)
def test_ticks_tell_close_values_apart(low, high):
  chart = charts.lines(
    {'a': [charts.Point(1, low), charts.Point(2, high)]}, 'x', 'y'
  )
  ticks = re.findall('text-anchor="end">(.*?)<', chart)
  assert len({*map(float, ticks)}) == len(ticks) > 1
  room = 0.1 * (high - low)
  assert all(low - room <= float(tick) <= high + room for tick in ticks)


def test_a_long_curve_keeps_its_shape_in_few_points():
  curve = [charts.Point(n, n % 7) for n in range(10_000)]
  chart = charts.lines({'a': curve}, 'x', 'y')
  assert chart.count('<circle') <= 200
  assert isinstance(chart, pages.Html)


def test_a_key_of_lists_is_not_an_axis():
  table = [{'names': ['a'], 'rate': 0.1}, {'names': ['b'], 'rate': 1}]
  assert sweep_page._numeric_keys(table, ['names', 'rate']) == ['rate']
