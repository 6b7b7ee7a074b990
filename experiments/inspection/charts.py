"""Charts as inline SVG: they follow the colours of their page, and show values.

A value is shown when the pointer is over its point. A chart prints well, and is
as sharp on a telephone as on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.inspection.pages import Html, escape
from selfattn import plots

# Of the whole chart and of what is around its axes, in pixels.
_WIDTH, _HEIGHT = 420, 270
_RIGHT, _TOP, _BOTTOM = 10, 10, 42
# Left of the axes: at least, of the label of y, and of a character of a tick.
_LEFT, _LABEL, _CHARACTER = 66, 24, 7
# More points of a curve stand for those between them, and are no discs.
_MOST_POINTS, _MOST_DISCS = 200, 40
# Numbers of more characters have an exponent.
_LONGEST_TICK = 6
_DASHES = {'-': '', '--': '6 3', ':': '2 3', '-.': '7 3 2 3'}


class Point(NamedTuple):
  """A point of a curve.

  Attributes:
    low, high: of what is drawn around y, such as an interval; None: nothing.
    note: is shown beside x and y.
  """

  x: float
  y: float
  low: float | None = None
  high: float | None = None
  note: str = ''


def lines(
  curves: Mapping[str, Sequence[Point]],
  xlabel: str,
  ylabel: str,
  *,
  log: bool = False,
  styles: Mapping[str, int] | None = None,
  over: Sequence[Point] = (),
) -> Html:
  """Curves by name, with a legend.

  Equal curves, which would hide one another, are one with all their names.

  Args:
    log: whether x is on a logarithmic axis, whose ticks are the points.
    styles: of plots.style, by name; None: 0, 1, ...
    over: the ends of a dotted line to compare with.
  """
  points = [point for curve in [*curves.values(), over] for point in curve]
  xs = sorted({point.x for point in points})
  seen = [y for p in points for y in (p.y, p.low, p.high) if y is not None]
  low, high = min(seen), max(seen)
  if low == high:
    # From 0, and not beyond a share of 1.
    low, high = sorted((0.0, high or 1.0))
  up = _Axis.of(low, high, _HEIGHT - _BOTTOM, _TOP)
  longest = max(len(text) for _, text in up.ticks())
  left = max(_LEFT, _LABEL + _CHARACTER * longest)
  across = _Axis.of(xs[0], xs[-1], left, _WIDTH - _RIGHT, log)
  ticks = across.ticks()
  if log or len(xs) == 1:
    ticks = [(x, number(x)) for x in xs]
  parts = [*_frame(across, up, ticks, xlabel, ylabel)]
  if over:
    parts.append(f'<polyline class="over" points="{_path(over, across, up)}"/>')
  legend, alike = [], {}
  for name, curve in curves.items():
    alike.setdefault(tuple(curve), []).append(name)
  styles = styles or {name: number for number, name in enumerate(curves)}
  for curve, named in alike.items():
    style, name = plots.style(styles[named[0]]), '; '.join(named)
    name = f'equal: {name}' if len(named) > 1 else name
    colour, dash = style['color'], _DASHES[style['linestyle']]
    parts += _curve(curve, across, up, name, f'style="--c: {colour}"', dash)
    drawn = f'd="M0 4H24" stroke-width="2" stroke-dasharray="{dash}"'
    if len(curve) == 1:
      drawn = 'd="M12 4h0" stroke-width="8" stroke-linecap="round"'
    legend.append(
      f'<span><svg width="24" height="8"><path {drawn} stroke="{colour}"/>'
      f'</svg> {escape(name)}</span>'
    )
  return Html(
    f'<figure class="chart"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
    f'aria-label="{escape(f"{ylabel} by {xlabel}")}">\n{"".join(parts)}\n</svg>'
    f'<figcaption>{"".join(legend)}</figcaption></figure>'
  )


class _Axis(NamedTuple):
  """Maps values from low to high to pixels from start to end."""

  low: float
  high: float
  start: float
  end: float
  log: bool = False

  @classmethod
  def of(cls, low, high, start, end, log=False) -> _Axis:
    """An axis with some room on both sides."""
    if log:
      room = max((high / low) ** 0.04, 1.01)
      return cls(low / room, high * room, start, end, log)
    room = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return cls(low - room, high + room, start, end)

  def __call__(self, value: float) -> float:
    low, high = self.low, self.high
    if self.log:
      value, low, high = (math.log(x) for x in (value, low, high))
    share = (value - low) / (high - low)
    return round(self.start + share * (self.end - self.start), 1)

  def ticks(self) -> list[tuple[float, str]]:
    """At most six round values, and texts with as many decimals."""
    least = (self.high - self.low) / 6
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= least)
    first, last = math.ceil(self.low / step), math.floor(self.high / step)
    digits = max(0, -math.floor(math.log10(step)))
    values = [number * step for number in range(first, last + 1)]
    texts = [f'{value:.{digits}f}' for value in values]
    if max(map(len, texts)) > _LONGEST_TICK:
      # As many digits as tell one from the next.
      most = max(map(abs, values))
      digits = math.floor(math.log10(most)) - math.floor(math.log10(step))
      texts = [f'{value:.{max(digits, 1)}e}' for value in values]
    return list(zip(values, texts, strict=True))


def _frame(across: _Axis, up: _Axis, ticks, xlabel, ylabel) -> Iterable[str]:
  bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
  left, middle = across.start, (_TOP + bottom) / 2
  for value, text in ticks:
    x = across(value)
    yield f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>'
    yield (
      f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
    )
  for value, text in up.ticks():
    y = up(value)
    yield f'<path class="grid" d="M{left} {y}H{right}"/>'
    place = f'x="{left - 5}" y="{y + 4}" text-anchor="end"'
    yield f'<text {place}>{text}</text>'
  yield (
    f'<text x="{(left + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
    f'{escape(xlabel)}</text><text transform="translate(12 {middle}) '
    f'rotate(-90)" text-anchor="middle">{escape(ylabel)}</text>'
  )


def _path(points: Iterable[Point], across: _Axis, up: _Axis) -> str:
  return ' '.join(f'{across(point.x)},{up(point.y)}' for point in points)


def _curve(
  points: Sequence[Point], across: _Axis, up: _Axis, name, style, dash
) -> Iterable[str]:
  """What is around a curve, the curve, and its points."""
  # The last one is always there: the end of training.
  points = [*points[: -1 : -(-len(points) // (_MOST_POINTS - 1))], points[-1]]
  bounds = [p for p in points if p.low is not None]
  around = [p._replace(y=p.low) for p in bounds]
  around += [p._replace(y=p.high) for p in reversed(bounds)]
  if around:
    bar = 'class="bar" ' if len(bounds) == 1 else ''
    yield f'<polygon {bar}{style} points="{_path(around, across, up)}"/>'
  yield (
    f'<polyline {style} stroke-dasharray="{dash}" '
    f'points="{_path(points, across, up)}"/>'
  )
  kind = 'disc' if len(points) <= _MOST_DISCS else 'hidden disc'
  for point in points:
    said = f'{name}: {point.y:.4g} at {number(point.x)} {point.note}'.strip()
    yield (
      f'<circle class="{kind}" {style} cx="{across(point.x)}" '
      f'cy="{up(point.y)}" r="4"><title>{escape(said)}</title></circle>'
    )


def number(value: float) -> str:
  """A number with four digits; an integer with all of them."""
  is_integer = float(value).is_integer() and abs(value) < 1e9
  return f'{value:,.0f}' if is_integer else f'{value:.4g}'


def strip(groups: Sequence[Sequence[float]], seen: Sequence[float]) -> Html:
  """The values of each group as discs on a row, for the cell of a table.

  Args:
    seen: values of all rows of the table, which share one axis.
  """
  axis = _Axis.of(min(seen), max(seen), 6, 194)
  discs = ''.join(
    f'<circle class="disc" style="--c: {plots.COLOURS[number]}" '
    f'cx="{axis(value)}" cy="{6 + 9 * number}" r="4">'
    f'<title>{value:.4g}</title></circle>'
    for number, values in enumerate(groups)
    for value in values
  )
  height = 3 + 9 * len(groups)
  return Html(f'<svg class="chart" width="200" height="{height}">{discs}</svg>')
