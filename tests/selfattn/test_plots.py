"""What each picture draws: axes, names, ranges, and what is left grey."""

import numpy as np
import pytest

from selfattn import plots

TOKENS = ['the', 'plot', 'was', 'dull']


@pytest.fixture
def weights():
  """Two layers of three heads over six places, the last two of them padding."""
  rng = np.random.default_rng(0)
  return rng.dirichlet(np.ones(6), size=(2, 3, 6))


def maps(figure):
  """The axes with a picture, without the colour bar."""
  return [axis for axis in figure.axes if axis.get_images()]


def test_attention_maps_have_a_panel_a_head_on_one_scale(weights):
  """Padding is left grey."""
  panels = maps(plots.attention_maps(weights, TOKENS))
  assert [p.get_title() for p in panels] == [
    f'layer {n}, head {h}' for n in range(2) for h in range(3)
  ]
  for panel, expected in zip(panels, weights.reshape(-1, 6, 6), strict=True):
    for axis in (panel.xaxis, panel.yaxis):
      assert [t.get_text() for t in axis.get_ticklabels()] == TOKENS
      assert axis.get_ticklocs().tolist() == [0, 1, 2, 3]
    # The first query is on top.
    assert panel.get_ylim() == (5.5, -0.5)
    (image,) = panel.get_images()
    shown = image.get_array()
    assert image.get_clim() == (0, weights[..., :4, :4].max())
    np.testing.assert_array_equal(shown[:4, :4], expected[:4, :4])
    is_padding = np.arange(6) >= 4
    want = is_padding[:, None] | is_padding
    np.testing.assert_array_equal(shown.mask, want)


def test_negative_weights_have_another_hue():
  weights = np.array([[[[0.5, -0.75], [0.25, 0.0]]]])
  (panel,) = maps(plots.attention_maps(weights, ['a', 'b']))
  (image,) = panel.get_images()
  assert image.get_clim() == (-0.75, 0.75)
  np.testing.assert_array_equal(image.get_array(), weights[0, 0])


def test_many_maps_fit_into_a_picture():
  figure = plots.attention_maps(np.full((2, 12, 40, 40), 0.1), ['x'] * 40)
  assert max(plots.DPI * figure.get_size_inches()) < 2**14
  panel = maps(figure)[0]
  assert 'x' not in [t.get_text() for t in panel.get_xticklabels()]


def test_long_texts_show_the_largest_of_each_block_and_say_so():
  length = 512
  weights = np.zeros((1, 1, length, length))
  weights[0, 0, 301, 77] = 0.8
  (panel,) = maps(plots.attention_maps(weights, ['x'] * length))
  (image,) = panel.get_images()
  assert 'largest of each 4 x 4' in panel.get_title()
  shown = image.get_array()
  assert shown.shape == (128, 128)
  assert shown[301 // 4, 77 // 4] == shown.max() == 0.8
  assert np.count_nonzero(shown) == 1
  # Positions, not tokens, and of the whole text.
  assert panel.get_xlim() == (-0.5, length - 0.5)
  assert 'x' not in [t.get_text() for t in panel.get_xticklabels()]
  assert image.get_interpolation() == 'nearest'


def test_block_maximum_equals_a_loop():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 7, 5))
  x[0, 6, 3] = np.nan
  found = plots.block_maximum(x, 3)
  assert found.shape == (2, 3, 2)
  for n, i, j in np.ndindex(found.shape):
    block = x[n, 3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
    np.testing.assert_equal(found[n, i, j], np.nanmax(block))


def test_tokens_are_never_read_as_formulas(tmp_path):
  tokens = ['$$', '$_$', 'x^$', '\\frac']
  figure = plots.attention_maps(np.full((1, 1, 4, 4), 0.25), tokens)
  figure.savefig(tmp_path / 'map.svg')
  (panel,) = maps(figure)
  assert [t.get_text() for t in panel.get_xticklabels()] == tokens
