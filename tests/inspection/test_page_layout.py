"""How pages look: on wide and narrow screens, in the dark, and on paper."""

import numpy as np
import pytest

from experiments.inspection import pages
from experiments.inspection.head_analysis import AttentionMaps
from selfattn import plots

HEBREW = ['הסרט', 'היה', 'good']


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """A page that is too wide for any screen, were it not for its boxes."""
  path = tmp_path_factory.mktemp('layout') / 'page.html'
  labels = [f'class number {n}' for n in range(40)]
  counts = np.arange(1600).reshape(40, 40)
  figure = pages.figure(plots.plot(np.arange(3.0)), 'a curve')
  texts = [
    ['/a/path/' + 'x' * 200, 'many words ' * 20],
    [' '.join(HEBREW), 'short'],
  ]
  maps = AttentionMaps(HEBREW, np.full((1, 2, 3, 3), 1 / 3))
  pages.write(
    str(path),
    'a' * 90,
    [
      pages.figures([figure] * 5, 20),
      pages.beside(
        [pages.confusion(labels, counts), pages.table(['one', 'two'], texts)]
      ),
      pages.attention([('a long title ' * 20, maps)]),
    ],
  )
  return path


def show(browser, page, width, media='screen', scheme='light'):
  """Opens a page in a window, or on paper, of this width in pixels."""
  browser.execute_cdp_cmd(
    'Emulation.setDeviceMetricsOverride',
    {'width': width, 'height': 900, 'deviceScaleFactor': 1, 'mobile': True},
  )
  features = [{'name': 'prefers-color-scheme', 'value': scheme}]
  browser.execute_cdp_cmd(
    'Emulation.setEmulatedMedia', {'media': media, 'features': features}
  )
  browser.get(f'file://{page}')


def find(browser, selector):
  return browser.find_elements('css selector', selector)


def style(browser, selector, name):
  return find(browser, selector)[0].value_of_css_property(name)


def luminance(colour):
  """From 0, black, to 1, of 'rgba(R, G, B, A)'."""
  red, green, blue, *_ = map(float, colour.partition('(')[2][:-1].split(','))
  return (0.21 * red + 0.72 * green + 0.07 * blue) / 255


@pytest.mark.parametrize('width', [400, 1200])
def test_no_page_scrolls_sideways(width, browser, page):
  show(browser, page, width)
  wide = browser.execute_script(
    'return [document.documentElement.scrollWidth, innerWidth]'
  )
  assert wide == [width, width]
  (box,) = find(browser, '.scroll:has(.confusion)')
  inside, outside = (
    int(box.get_property(name)) for name in ('scrollWidth', 'clientWidth')
  )
  assert inside > outside


@pytest.mark.parametrize(
  ('width', 'media', 'in_a_row'),
  [(400, 'screen', 1), (1200, 'screen', 3), (700, 'print', 2)],
)
def test_curves_stand_side_by_side(width, media, in_a_row, browser, page):
  show(browser, page, width, media)
  curves = find(browser, '.figures img')
  tops = [curve.rect['y'] for curve in curves]
  assert tops.count(tops[0]) == in_a_row
  last = curves[in_a_row - 1].rect
  assert last['x'] + last['width'] == pytest.approx(width, abs=20)


@pytest.mark.parametrize(
  ('media', 'scheme', 'is_dark'),
  [
    ('screen', 'light', False),
    ('screen', 'dark', True),
    ('print', 'dark', False),
  ],
)
def test_pages_are_dark_where_the_screen_is(
  media, scheme, is_dark, browser, page
):
  show(browser, page, 1200, media, scheme)
  back = luminance(style(browser, 'body', 'background-color'))
  text = luminance(style(browser, 'body', 'color'))
  assert (back < 0.1) == is_dark
  assert abs(back - text) > 0.7
  # Figures are drawn in black on white.
  for selector in ('img', 'canvas'):
    assert ('invert' in style(browser, selector, 'filter')) == is_dark


def test_names_of_predicted_classes_are_slanted(browser, page):
  show(browser, page, 1200)
  for name in find(browser, '.slanted span')[:3]:
    # The box of a line of text at 45 degrees is a square.
    width, height = browser.execute_script(
      'const box = arguments[0].getBoundingClientRect();'
      'return [box.width, box.height]',
      name,
    )
    assert width == pytest.approx(height, rel=0.02)
    assert width > 40


def test_large_confusion_matrices_are_printed_across_the_paper(browser, page):
  show(browser, page, 700, 'print')
  assert style(browser, '.wide', 'page') == 'wide'
  assert style(browser, '.beside', 'page') == 'auto'


def test_texts_run_in_their_own_direction(browser, page):
  show(browser, page, 1200)
  assert style(browser, 'h1', 'direction') == 'ltr'
  cells = find(browser, 'td[dir=auto]')
  directions = [cell.value_of_css_property('direction') for cell in cells]
  assert directions == ['ltr', 'ltr', 'rtl', 'ltr']
  words = find(browser, '.tokens button')
  first, second, third = (word.rect['x'] for word in words)
  assert first > second > third
