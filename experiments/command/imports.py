"""Keeps what is imported out of garbage collection.

Objects of modules are many, and stay. To search them again and again, during
the imports and while a model is traced, takes a good part of a short command.
"""

from __future__ import annotations

import gc
import importlib


def import_frozen(module: str) -> None:
  """Imports a module without garbage collection, and then freezes.

  What exists then is never collected (gc.freeze), even if it becomes garbage.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    importlib.import_module(module)
    gc.freeze()
  finally:
    if was_enabled:
      gc.enable()
