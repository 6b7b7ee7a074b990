"""Figures of texts in any script."""

import numpy as np

from experiments.inspection import figures
from experiments.inspection.head_analysis import AttentionMaps
from selfattn import fonts


def maps(tokens):
  count = len(tokens)
  return AttentionMaps(tokens, np.full((1, 2, count, count), 1 / count))


def test_characters_that_no_font_has_are_one_line_of_the_log(
  monkeypatch, capfd
):
  texts = [maps(['caf\u00e9', 'the']), maps(['\u96fb\u5f71', 'a', '\u00e9'])]
  monkeypatch.setattr(fonts, '_characters', lambda path: frozenset(range(128)))
  figures.check_fonts(texts)
  (line,) = capfd.readouterr().err.splitlines()
  assert 'WARNING: no installed font has \u00e9\u5f71\u96fb (3 char' in line
  figures.check_fonts([maps(['the', 'plot'])])
  assert capfd.readouterr().err == ''


def test_figures_of_such_characters_are_drawn_without_warnings(tmp_path):
  # A letter of Adlam, which few machines have a font for.
  tokens = ['\U0001e900', 'the', 'film']
  figures.attention(figures.Figures(str(tmp_path)), 'map', maps(tokens))
