"""Imports without garbage collection.

Objects of modules are many, and stay. To search them again and again, during
the imports and while a model is traced, takes a sixth of the time of a short
command.
"""

from __future__ import annotations

import gc
import importlib

# New objects before they are searched; the default is 700. Tracing makes many
# that stay.
_YOUNG = 10_000


def exempt_from_garbage() -> None:
  """Exempts all objects from garbage collection that exist now."""
  gc.freeze()
  gc.set_threshold(_YOUNG)


def import_without_garbage(module: str) -> None:
  """Imports a module, and exempts its objects from garbage collection."""
  gc.disable()
  try:
    importlib.import_module(module)
    exempt_from_garbage()
  finally:
    gc.enable()
