"""HTML pages: self-contained files, viewable offline.

Styles, scripts, figures (as data URLs) and data (as JSON) are embedded.
Everything from data sets or configs is escaped.
"""

from __future__ import annotations

import base64
import html
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from experiments.inspection.figures import png
from experiments.inspection.head_analysis import AttentionMaps
from experiments.settings.settings import default_values
from experiments.workdir import workdir as workdir_lib

# The name of a page in a folder.
NAME = 'index.html'
_HERE = pathlib.Path(__file__).parent
# Columns of cells with longer texts keep some width on narrow screens.
_LONG_TEXT = 40
# Weights are quantized to 16 bits, in steps of 1 / 65,535.
_STEPS = 2**16 - 1


def escape(text: object) -> str:
  """Escapes text for HTML, also inside of quoted attributes."""
  return html.escape(str(text))


def write(path: str, title: str, sections: Iterable[str]) -> None:
  """Writes a page of sections, which are HTML; atomically."""
  style = (_HERE / 'page.css').read_text()
  script = (_HERE / 'attention.js').read_text()
  text = '\n'.join(sections)
  workdir_lib.write_atomic(
    path,
    f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    # An empty icon, so that browsers do not request one.
    '<link rel="icon" href="data:,">\n'
    f'<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n'
    f'<body>\n<h1 dir="auto">{escape(title)}</h1>\n{text}\n'
    f'<script>\n{script}</script>\n</body>\n</html>\n',
  )


def section(title: str, content: str) -> str:
  """A section with heading; `content` is HTML."""
  return f'<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>'


def table(
  header: Sequence[object],
  rows: Iterable[Sequence[object]],
  marked: Iterable[int] = (),
) -> str:
  """A table of texts and scalars.

  Args:
    marked: indices of the rows to highlight.
  """
  head = ''.join(f'<th>{escape(cell)}</th>' for cell in header)
  lines, marked = [], set(marked)
  for index, row in enumerate(rows):
    cells = ''.join(_cell(cell) for cell in row)
    lines.append(f'<tr{" class=marked" * (index in marked)}>{cells}</tr>')
  body = '\n'.join([f'<tr>{head}</tr>', *lines])
  return f'<div class="scroll"><table>\n{body}\n</table></div>'


def _cell(value) -> str:
  if isinstance(value, float):
    return f'<td class="number">{value:.4g}</td>'
  if isinstance(value, int) and not isinstance(value, bool):
    return f'<td class="number">{value:,}</td>'
  text = '' if value is None else str(value)
  kind = ' class="text"' if len(text) > _LONG_TEXT else ''
  return f'<td{kind} dir="auto">{escape(text)}</td>'


def config(flat: dict) -> str:
  """A table of all keys; those that differ from their defaults marked."""
  usual = default_values()
  rows, changed = [], []
  for key, value in sorted(flat.items()):
    before = usual[key]
    if value != before:
      changed.append(len(rows))
    rows.append([f'config.{key}', json.dumps(value), json.dumps(before)])
  note = '<p>Highlighted keys differ from their defaults.</p>'
  return note + table(['key', 'value', 'default'], rows, changed)


def confusion(labels: Sequence[str], matrix: np.ndarray) -> str:
  """Confusion matrix (true class, predicted class), shaded by share of row."""
  head = ''.join(f'<th dir="auto">{escape(label)}</th>' for label in labels)
  lines = []
  for label, row in zip(labels, matrix.tolist(), strict=True):
    total = max(sum(row), 1)
    cells = ''.join(
      f'<td class="number" style="background: rgb(0 114 178 / '
      f'{0.6 * count / total:.3f})">{count}</td>'
      for count in row
    )
    lines.append(f'<tr><th dir="auto">{escape(label)}</th>{cells}</tr>')
  body = '\n'.join(lines)
  return (
    '<div class="scroll"><table>\n<caption>row: true class, column: predicted'
    f'</caption>\n<tr><th></th>{head}</tr>\n{body}\n</table></div>'
  )


def figure(figure, description: str) -> str:
  """A matplotlib figure, embedded."""
  return picture(png(figure), description)


def picture(content: bytes, description: str) -> str:
  """The content of a PNG file, embedded."""
  data = base64.b64encode(content).decode()
  return f'<img src="data:image/png;base64,{data}" alt="{escape(description)}">'


def figures(drawn: Iterable[str], least_rem: int) -> str:
  """Figures side by side, as many in a row as the page has room for.

  Args:
    drawn: each as returned by `figure`.
    least_rem: width below which there are fewer in a row, in rem.
  """
  content = '\n'.join(drawn)
  return (
    f'<div class="figures" style="--least: {least_rem}rem">\n{content}\n</div>'
  )


def beside(tables: Iterable[str]) -> str:
  """Tables side by side, as far as the page has room; HTML."""
  content = '\n'.join(tables)
  return f'<div class="beside">\n{content}\n</div>'


def attention(texts: Sequence[tuple[str, AttentionMaps]]) -> str:
  """Interactive attention maps: selects text, layer and head, shows values.

  Args:
    texts: pairs (title, attention maps).
  """
  entries = []
  for title, maps in texts:
    entries.append(
      {
        'title': title,
        'tokens': maps.tokens,
        'layers': maps.weights.shape[0],
        'heads': maps.weights.shape[1],
        'weights': _packed(maps.weights),
        'rollout': _packed(maps.rollout()),
      }
    )
  # So that '</script>' in a text does not end the element.
  data = json.dumps(entries).replace('<', '\\u003c')
  return (
    '<div class="attention">\n'
    f'<script type="application/json">{data}</script>\n</div>'
  )


def _packed(weights: np.ndarray) -> str:
  steps = np.rint(np.clip(weights, 0, 1) * _STEPS).astype('<u2')
  return base64.b64encode(steps.tobytes()).decode()
