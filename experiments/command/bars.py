"""The live display of a terminal: bars of what takes long, and a table.

Only `log` imports it, where standard error is a terminal.
"""

from __future__ import annotations

import math
import sys

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
  BarColumn,
  Progress,
  TaskID,
  TextColumn,
  TimeRemainingColumn,
)
from rich.table import Table


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
      TextColumn('{task.description}', markup=False),
      BarColumn(bar_width=None),
      TimeRemainingColumn(compact=True),
      console=self._console,
      auto_refresh=False,
      # A step, or a trial, may take longer than any period.
      speed_estimate_period=math.inf,
    )

  def add(self, total: int | None, count: int) -> TaskID:
    """Adds a bar, of so many of a total that may be unknown."""
    bar = self._bars.add_task('', total=total, completed=count, table=[])
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
    self._bars.update(bar, description=text, completed=count, table=table)
    # A signal may hide it in between.
    live = self._live
    if live is None:
      live = self._live = Live(
        console=self._console,
        auto_refresh=False,
        transient=True,
        get_renderable=self._drawn,
        # What is printed on the same terminal stands above the bars.
        redirect_stdout=sys.stdout.isatty(),
      )
      live.start()
      # A process that is killed cannot show it again.
      self._console.show_cursor(True)
    live.refresh()

  def remove(self, bar: TaskID) -> None:
    """Removes a bar, and with the last one the display."""
    self._bars.remove_task(bar)
    if not self._bars.tasks:
      self.hide()

  def hide(self) -> None:
    """Removes the display until a bar is shown again."""
    if self._live is not None:
      live, self._live = self._live, None
      live.stop()

  def _drawn(self) -> Group:
    tables = [task.fields['table'] for task in self._bars.tasks]
    return Group(self._bars, *map(self._table, filter(None, tables)))

  def _table(self, rows: list[list[str]]) -> Table:
    header, *body = rows
    table = Table(*header, box=None)
    # Drawing takes time, and more would not be seen.
    for row in body[: self._console.height]:
      table.add_row(*row)
    return table
