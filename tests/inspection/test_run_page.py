"""What pages are made of, and that a browser shows it without errors."""

import json
import re
import types

import numpy as np
import pytest

from experiments.data.labels import LabelFacts
from experiments.inspection import charts, curves, pages, results
from experiments.inspection.charts import Point
from experiments.inspection.head_analysis import AttentionMaps
from experiments.inspection.pages import Shaded
from experiments.learning.multilabel import Multilabel
from experiments.training import ensembles
from selfattn.plots import COLOURS


def test_user_text_is_escaped(tmp_path):
  evil = '</script><b onclick="x">&'
  maps = AttentionMaps([evil, 'b'], np.full((1, 1, 2, 2), 0.5))
  page = tmp_path / 'page.html'
  pages.write(
    str(page),
    evil,
    [
      pages.section(evil, pages.table([evil], [[evil]])),
      pages.table([evil], [[Shaded(evil, 1)]], caption=evil),
      charts.lines({evil: [Point(1, 2, note=evil)]}, evil, evil),
      pages.attention([(evil, evil, maps)]),
    ],
  )
  text = page.read_text()
  assert '<b' not in text.replace('<body', '')
  # Of the data, and of the script of maps.
  assert text.count('</script>') == 2
  assert 'http://' not in text.replace('http://www.w3.org', '')
  assert 'https://' not in text


def test_each_run_is_compared_with_its_own_thresholds():
  rng = np.random.default_rng(0)
  labels = (rng.random((40, 2)) < 0.5).astype(np.float32)
  of_runs = [(np.zeros(40), rng.normal(size=(40, 2))) for _ in range(3)]
  fits = [{'thresholds': [x, 1 - x]} for x in (0.3, 0.5, 0.7)]
  task = Multilabel(facts=LabelFacts(('a', 'b')))
  answers = ensembles.Answers(
    task.fitted(fits), of_runs[0], of_runs[0], of_runs, fits, [1, 1, 1]
  )
  texts = types.SimpleNamespace(
    answers=answers, labels=labels, task=answers.task
  )
  table = results._compared(texts, ['r0', 'r1', 'r2'])
  for fit, outputs in zip(fits, of_runs, strict=True):
    score = task.fitted([fit]).scores(outputs, labels)['micro_f1']
    assert f'{score:.4f}' in table


def test_weights_are_quantized():
  weights = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
  weights[0, 0, 0, 0] = 0
  maps = AttentionMaps(['a', 'b', 'c'], weights)
  text = pages.attention([('t', '', maps)])
  (entry,) = json.loads(text.partition('json">')[2].partition('</script>')[0])
  import base64

  unit, zero, text = (
    entry['weights'][key] for key in ('unit', 'zero', 'numbers')
  )
  numbers = np.frombuffer(base64.b64decode(text), '<u2').astype(int)
  sent = unit * (numbers - zero)
  np.testing.assert_allclose(sent, weights.ravel(), atol=0.51 * unit)
  assert sent[0] == weights[0, 0, 0, 0] == 0
  assert (entry['layers'], entry['heads']) == (2, 2)


@pytest.mark.parametrize(
  ('column', 'shown'),
  [
    ([1.0, 0.9998, 0.5], ['1.0000', '0.9998', '0.5000']),
    ([12.5, None, 3], ['12.50', '', '3']),
    ([0.0123, 1e-3], ['0.0123', '0.0010']),
    ([2e-5, 0.0], ['0.0000200', '0.0000000']),
    ([3e-10, 0.0], ['3.00e-10', '0.00e+00']),
    ([float('inf'), 2.5], ['inf', '2.500']),
    ([Shaded(0.25, 1), 123456.7], ['0', '123457']),
  ],
)
def test_numbers_of_a_column_have_the_same_decimals(column, shown):
  table = pages.table(['x'], [[value] for value in column])
  assert re.findall('<td.*?>(.*?)</td>', table) == shown


def test_curves_of_train_stand_in_the_middle_of_what_they_are_means_of():
  rows = [
    {'step': 1, 'train/loss': 0.9, 'train/learning_rate': 0.1},
    {'step': 4, 'train/loss': 0.8, 'train/learning_rate': 0.2},
    {'step': 6, 'validation/loss': 0.5},
    {'step': 8, 'train/loss': 0.7, 'validation/loss': None},
  ]
  # Steps 1, 2 to 4, and 5 to 8.
  assert curves.points(rows) == {
    'loss': {
      'train': [(1, 0.9), (3, 0.8), (6.5, 0.7)],
      'validation': [(6, 0.5)],
    },
    'learning_rate': {'train': [(1, 0.1), (4, 0.2)]},
  }
  # Each split has one colour in all charts.
  colours = re.findall('--c: (.*?)".*?<title>(.*?):', curves.write({'': rows}))
  assert set(colours) == {
    (COLOURS[0], 'validation'),
    (COLOURS[1], 'train'),
  }


def choose(browser, title):
  """Clicks on one of the small maps."""
  browser.find_element('xpath', f'//button[span="{title}"]').click()


def said(browser):
  return browser.find_element('css selector', 'output').text


@pytest.mark.slow
def test_a_browser_shows_the_selected_weights(browser, tmp_path):
  from selenium.webdriver.common.action_chains import ActionChains
  from selenium.webdriver.support.select import Select

  rng = np.random.default_rng(0)
  tokens = ['the', '<b>', 'dull', 'plot']
  texts = [
    (name, note, AttentionMaps(tokens[:n], weights))
    for name, note, n in (('one', 'true: good', 4), ('two', '', 2))
    for weights in [rng.dirichlet(np.ones(n), size=(2, 3, n))]
  ]
  page = tmp_path / 'page.html'
  pages.write(str(page), 'maps', [pages.attention(texts)])
  browser.get(f'file://{page}')

  def expect(weights, tokens, row):
    column = int(weights[row].argmax())
    assert said(browser) == (
      f'from {tokens[row]} ({row}) to {tokens[column]} ({column}): '
      f'{weights[row, column]:.4f}'
    )

  weights = texts[0][2].weights
  assert browser.find_element('css selector', '.attention p').text == (
    'true: good'
  )
  expect(weights[0, 0], tokens, 0)
  choose(browser, 'layer 1, head 2')
  expect(weights[1, 2], tokens, 0)
  words = browser.find_elements('css selector', '.tokens button')
  assert [word.text for word in words] == tokens
  words[2].click()
  expect(weights[1, 2], tokens, 2)
  choose(browser, 'layer 1, mean')
  expect(weights[1].mean(axis=0), tokens, 2)
  choose(browser, 'rollout of all layers')
  expect(texts[0][2].rollout(), tokens, 2)
  Select(browser.find_element('css selector', 'select')).select_by_index(1)
  expect(texts[1][2].weights[0, 0], tokens[:2], 0)
  choose(browser, 'layer 0, head 1')
  # The value at the mouse pointer, in the middle of the last cell.
  canvas = browser.find_element('css selector', '.attention > canvas')
  size = canvas.size['width']
  ActionChains(browser).move_to_element_with_offset(
    canvas, size // 2 - 8, size // 2 - 8
  ).perform()
  last = texts[1][2].weights[0, 1, 1, 1]
  assert said(browser) == f'from <b> (1) to <b> (1): {last:.4f}'
  assert browser.get_log('browser') == []
