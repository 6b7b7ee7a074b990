"""Pages for a browser: one file each, which opens without a network.

Style and script stand inside the page, pictures as data, numbers as JSON.
Whatever comes from data or a config is escaped.
"""

from __future__ import annotations

import base64
import html
import io
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from experiments.command import app
from experiments.command.values import flat_keys
from experiments.inspection.head_analysis import Opened
from experiments.workdir import workdir as workdir_lib

_HERE = pathlib.Path(__file__).parent
# Weights are sent in 16 bits, a 65,535th apart.
_STEPS = 2**16 - 1


def escape(text: object) -> str:
  """Text for a page, also inside of quotes."""
  return html.escape(str(text))


def write(path: str, title: str, sections: Iterable[str]) -> None:
  """A page of sections, which are HTML already; whole or not at all."""
  style = (_HERE / 'page.css').read_text()
  script = (_HERE / 'attention.js').read_text()
  text = '\n'.join(sections)
  workdir_lib.write_whole(
    path,
    f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    # Browsers ask for an icon; this is one, without the question.
    '<link rel="icon" href="data:,">\n'
    f'<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n'
    f'<body>\n<h1>{escape(title)}</h1>\n{text}\n'
    f'<script>\n{script}</script>\n</body>\n</html>\n',
  )


def section(title: str, content: str) -> str:
  """A heading and what is below it, HTML."""
  return f'<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>'


def table(
  header: Sequence[object],
  rows: Iterable[Sequence[object]],
  marked: Iterable[int] = (),
) -> str:
  """A table of text and numbers.

  Args:
    marked: places of the rows to mark.
  """
  head = ''.join(f'<th>{escape(cell)}</th>' for cell in header)
  lines, marked = [], set(marked)
  for place, row in enumerate(rows):
    cells = ''.join(_cell(cell) for cell in row)
    lines.append(f'<tr{" class=marked" * (place in marked)}>{cells}</tr>')
  lines = '\n'.join(lines)
  body = f'<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>'
  return f'<div class="scroll"><table>\n{body}\n</table></div>'


def _cell(value) -> str:
  if isinstance(value, float):
    return f'<td class="number">{value:.4g}</td>'
  if isinstance(value, int) and not isinstance(value, bool):
    return f'<td class="number">{value:,}</td>'
  return f'<td>{escape("" if value is None else value)}</td>'


def config(flat: dict) -> str:
  """Every key, those with another value than in configs/default.py marked."""
  usual = flat_keys(app.load_config(app.DEFAULT_CONFIG))
  rows, changed = [], []
  for key, value in sorted(flat.items()):
    before = usual.get(key)
    before = list(before) if isinstance(before, tuple) else before
    value = list(value) if isinstance(value, tuple) else value
    if value != before:
      changed.append(len(rows))
    rows.append([f'config.{key}', json.dumps(value), json.dumps(before)])
  note = '<p>Keys that are marked differ from configs/default.py.</p>'
  return note + table(['key', 'value', 'default'], rows, changed)


def confusion(labels: Sequence[str], matrix: np.ndarray) -> str:
  """Counts (true class, predicted class), darker where a row has more."""
  head = ''.join(f'<th>{escape(label)}</th>' for label in labels)
  lines = []
  for label, row in zip(labels, matrix.tolist(), strict=True):
    total = max(sum(row), 1)
    cells = ''.join(
      f'<td class="number" style="background: rgb(0 114 178 / '
      f'{0.6 * count / total:.3f})">{count}</td>'
      for count in row
    )
    lines.append(f'<tr><th>{escape(label)}</th>{cells}</tr>')
  body = '\n'.join(lines)
  return (
    '<table class="confusion">\n<caption>row: true class, column: predicted'
    f'</caption>\n<tr><td></td>{head}</tr>\n{body}\n</table>'
  )


def picture(figure, description: str) -> str:
  """A matplotlib figure inside the page."""
  drawn = io.BytesIO()
  figure.savefig(drawn, format='svg')
  data = base64.b64encode(drawn.getvalue()).decode()
  return (
    f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(description)}">'
  )


def attention(texts: Sequence[tuple[str, Opened]]) -> str:
  """Maps with a choice of text, layer and head, and values under the mouse.

  Args:
    texts: titles, and what was attended to.
  """
  entries = []
  for title, opened in texts:
    entries.append(
      {
        'title': title,
        'tokens': opened.tokens,
        'layers': opened.weights.shape[0],
        'heads': opened.weights.shape[1],
        'weights': _packed(opened.weights),
        'rollout': _packed(opened.rollout()),
      }
    )
  # A text must not end the script that it stands in.
  data = json.dumps(entries).replace('<', '\\u003c')
  return (
    '<div class="attention">\n'
    f'<script type="application/json">{data}</script>\n</div>'
  )


def _packed(weights: np.ndarray) -> str:
  steps = np.rint(np.clip(weights, 0, 1) * _STEPS).astype('<u2')
  return base64.b64encode(steps.tobytes()).decode()
