"""How pages look on wide and narrow screens."""

import numpy as np
import pytest

from experiments.inspection import charts, figures, pages
from experiments.inspection.charts import Point
from experiments.inspection.head_analysis import AttentionMaps
from selfattn import plots

HEBREW = ['הסרט', 'היה', 'good']


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """A page that is too wide for any screen, were it not for its boxes."""
  path = tmp_path_factory.mktemp('layout') / 'page.html'
  labels = [f'class number {n}' for n in range(40)]
  counts = np.arange(1600).reshape(40, 40).tolist()
  curve = [Point(n, n) for n in range(3)]
  chart = charts.lines({'a': curve, 'b': curve}, 'x', 'y')
  texts = [
    ['/a/path/' + 'x' * 200, 'many words ' * 20],
    [' '.join(HEBREW), 'short'],
  ]
  # In inches: a single map, and one of each of three and of eight heads.
  drawn = [
    pages.picture(
      figures.png(plots.plot([0, 1], figsize=(width, 3.0))), f'{width} in'
    )
    for width in (4, 8.6, 21)
  ]
  maps = AttentionMaps(HEBREW, np.full((1, 2, 3, 3), 1 / 3))
  pages.write(
    str(path),
    'a' * 90,
    [
      pages.figures([chart] * 5, 20),
      pages.figures(drawn, pages.COLUMN),
      pages.beside(
        [
          pages.table(
            ['', *labels],
            [[label, *row] for label, row in zip(labels, counts, strict=True)],
            caption='row: true class, column: predicted',
            kind='upright matrix',
          ),
          pages.table(['one', 'two'], texts),
        ]
      ),
      pages.attention([('a long title ' * 20, 'a note ' * 50, maps)]),
    ],
  )
  return path


def show(browser, page, width):
  """Opens a page in a window of this width in pixels."""
  browser.execute_cdp_cmd(
    'Emulation.setDeviceMetricsOverride',
    {'width': width, 'height': 900, 'deviceScaleFactor': 1, 'mobile': True},
  )
  browser.get(f'file://{page}')


def find(browser, selector):
  return browser.find_elements('css selector', selector)


def style(browser, selector, name):
  return find(browser, selector)[0].value_of_css_property(name)


@pytest.mark.slow
@pytest.mark.parametrize('width', [400, 1200])
def test_no_page_scrolls_sideways(width, browser, page):
  show(browser, page, width)
  wide = browser.execute_script(
    'return [document.documentElement.scrollWidth, innerWidth]'
  )
  assert wide == [width, width]
  (box,) = find(browser, '.scroll:has(caption)')
  inside, outside = (
    int(box.get_property(name)) for name in ('scrollWidth', 'clientWidth')
  )
  assert inside > outside


@pytest.mark.parametrize(('width', 'in_a_row'), [(400, 1), (1200, 3)])
def test_curves_stand_side_by_side(width, in_a_row, browser, page):
  show(browser, page, width)
  curves = find(browser, '.figures svg[role]')
  tops = [curve.rect['y'] for curve in curves]
  assert tops.count(tops[0]) == in_a_row
  last = curves[in_a_row - 1].rect
  assert last['x'] + last['width'] == pytest.approx(width, abs=20)


@pytest.mark.parametrize('width', [400, 1200])
def test_letters_of_wide_figures_can_be_read(width, browser, page):
  """Letters of 10 points are eight pixels high; on paper, nothing scrolls."""
  show(browser, page, width)
  narrow, _, wide = find(browser, 'img')
  assert narrow.rect['width'] <= width
  assert wide.rect['width'] * 10 / 72 / 21 > 7.9
  emulate = 'Emulation.setEmulatedMedia'
  browser.execute_cdp_cmd(emulate, {'media': 'print'})
  printed = wide.rect['width']
  browser.execute_cdp_cmd(emulate, {'media': ''})
  assert printed <= width


@pytest.mark.parametrize('width', [1280, 1600])
def test_a_figure_that_has_room_does_not_scroll(width, browser, page):
  """Of 8.6 inches, in a page of three columns."""
  show(browser, page, width)
  box = find(browser, '.picture')[1]
  assert box.get_property('scrollWidth') == box.get_property('clientWidth')


@pytest.mark.parametrize(
  ('low', 'high'), [(0, 1e-5), (0.1234567, 0.1234569), (0, 0.004)]
)
def test_ticks_stand_beside_the_title_of_their_axis(
  low, high, browser, tmp_path
):
  chart = charts.lines({'a': [Point(1, low), Point(9, high)]}, 'x', 'a title')
  pages.write(str(tmp_path / 'page.html'), 'a', [pages.figures([chart], 20)])
  show(browser, tmp_path / 'page.html', 400)
  title = browser.find_element('css selector', 'text[transform]').rect
  ticks = find(browser, 'text[text-anchor=end]')
  assert len(ticks) > 2
  assert all(tick.rect['x'] > title['x'] + title['width'] for tick in ticks)


def test_a_printed_matrix_is_on_one_sheet_with_all_columns(browser, page):
  emulate = 'Emulation.setEmulatedMedia'
  browser.execute_cdp_cmd(emulate, {'media': 'print'})
  # A4 without its margins.
  show(browser, page, 718)
  box = browser.find_element('css selector', '.matrix').rect
  inside = style(browser, '.matrix', 'break-inside')
  after = style(browser, '.matrix caption', 'break-after')
  browser.execute_cdp_cmd(emulate, {'media': ''})
  assert (inside, after) == ('avoid', 'avoid')
  assert box['x'] + box['width'] <= 718


def test_texts_run_in_their_own_direction(browser, page):
  show(browser, page, 1200)
  assert style(browser, 'h1', 'direction') == 'ltr'
  cells = find(browser, 'table:not(.matrix) td[dir=auto]')
  directions = [cell.value_of_css_property('direction') for cell in cells]
  assert directions == ['ltr', 'ltr', 'rtl', 'ltr']
  words = find(browser, '.tokens button')
  first, second, third = (word.rect['x'] for word in words)
  assert first > second > third


def test_names_on_the_axes_have_the_colour_of_each_scheme(browser, page):
  """Also of print, where a page that is dark on the screen is light."""

  def emulate(media, scheme):
    features = [{'name': 'prefers-color-scheme', 'value': scheme}]
    browser.execute_cdp_cmd(
      'Emulation.setEmulatedMedia', {'media': media, 'features': features}
    )
    # Once the page has heard of the change.
    return browser.execute_async_script("""
      const canvas = document.querySelector('.attention > canvas');
      const done = arguments[0];
      setTimeout(() => done(canvas.toDataURL()), 300);
    """)

  show(browser, page, 1200)
  light, dark = emulate('screen', 'light'), emulate('screen', 'dark')
  assert light != dark
  assert emulate('print', 'dark') == light
  emulate('', 'light')
