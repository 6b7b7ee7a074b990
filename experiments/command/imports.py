"""Imports of short commands."""

from __future__ import annotations

import gc
import importlib


def import_without_garbage(module: str) -> None:
  """Imports a module, and exempts all imported so far from garbage collection.

  Their objects are many and stay: to search them while a model is traced takes
  a tenth of the time of a short command.
  """
  importlib.import_module(module)
  gc.freeze()
