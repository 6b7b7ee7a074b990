"""The live display of a terminal: bars of what takes long, and a table.

Only `log` imports it, where standard error is a terminal.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import signal
import sys
import time
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
  BarColumn,
  Progress,
  ProgressColumn,
  Task,
  TaskID,
  TextColumn,
)
from rich.table import Column, Table
from rich.text import Text


class TimeLeft(ProgressColumn):
  """The time left, which also goes down between two counts; '' if unknown.

  rich's own stands still while a trial of a sweep trains for an hour.
  """

  def render(self, task: Task) -> Text:
    left = task.time_remaining
    if left is None:
      return Text()
    left -= time.monotonic() - task.fields['counted']
    return Text(str(datetime.timedelta(seconds=max(math.ceil(left), 0))))


class Display:
  """Bars on standard error, below which nothing is printed.

  Attributes:
    is_possible: whether the terminal can move its cursor.
  """

  def __init__(self):
    # Long lines of the log stay lines, that a terminal wraps.
    self._console = Console(
      stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False
    )
    self.is_possible = self._console.is_interactive
    self._live: Live | None = None
    self._bars = Progress(
      # With little room the text has several lines: nothing is cut.
      TextColumn(
        '{task.description}',
        markup=False,
        table_column=Column(overflow='fold'),
      ),
      BarColumn(
        bar_width=None,
        # rich's own is nearly black: on white, a bar at 0 looks full. The black
        # that a terminal calls bright may be its background. This is between
        # black and white, and bright black where there are 16 colours.
        style='grey46',
        # At least 10 wide, and else what the others leave.
        table_column=Column(ratio=1, width=10),
      ),
      TimeLeft(table_column=Column(no_wrap=True, min_width=7)),
      expand=True,
      console=self._console,
      auto_refresh=False,
      # A step, or a trial, may take longer than any period.
      speed_estimate_period=math.inf,
    )

  def add(self, total: int | None, count: int) -> TaskID:
    """Adds a bar, of so many of a total that may be unknown."""
    begun = time.monotonic()
    with _without_signals():
      bar = self._bars.add_task(
        '', total=total, completed=count, table=[], counted=begun
      )
      # Time is measured from here on, not from the first change of the count.
      self._bars.advance(bar, 0)
    return bar

  def show(
    self, bar: TaskID, text: str, count: int, table: list[list[str]]
  ) -> None:
    """Draws all bars, one of them with another text, count and table.

    Args:
      table: rows, the first one the header; [] for none.
    """
    with _without_signals():
      task = next(task for task in self._bars.tasks if task.id == bar)
      if count != task.completed:
        task.fields['counted'] = time.monotonic()
      self._bars.update(bar, description=text, completed=count, table=table)
      if self._live is None:
        self._live = self._started()
      self._live.refresh()

  def _started(self) -> Live:
    live = Live(
      console=self._console,
      auto_refresh=False,
      transient=True,
      get_renderable=self._drawn,
      # What is printed on the same terminal stands above the bars.
      redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
    live.start()
    # A process that is killed cannot show it again.
    self._console.show_cursor(True)
    return live

  def remove(self, bar: TaskID) -> None:
    """Removes a bar, and with the last one the display."""
    with _without_signals():
      self._bars.remove_task(bar)
      if not self._bars.tasks:
        self.hide()

  def hide(self) -> None:
    """Removes the display until a bar is shown again."""
    with _without_signals():
      if self._live is not None:
        live, self._live = self._live, None
        live.stop()

  def _drawn(self) -> Group:
    tables = [task.fields['table'] for task in self._bars.tasks]
    return Group(self._bars, *map(self._table, filter(None, tables)))

  def _table(self, rows: list[list[str]]) -> Table:
    header, *body = rows
    # The whole name of a setting, whose end is often what it differs in.
    columns = (Column(name, overflow='fold') for name in header)
    table = Table(*columns, box=None)
    # Drawing takes time, and more would not be seen.
    for row in body[: self._console.height]:
      table.add_row(*row)
    return table


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
  """A block at the end of which signals arrive that came inside of it.

  Their handlers hide the bars, or raise, which half-drawn bars do not bear.
  """
  before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
