"""Imports without garbage collection leave it as it was."""

import gc

import pytest

from experiments.command.imports import import_frozen


@pytest.fixture(autouse=True)
def collection():
  """Restores garbage collection."""
  threshold = gc.get_threshold()
  yield
  gc.unfreeze()
  gc.set_threshold(*threshold)
  gc.enable()


@pytest.mark.parametrize('is_enabled', [True, False])
def test_what_exists_is_frozen_and_collection_is_as_before(is_enabled):
  (gc.enable if is_enabled else gc.disable)()
  gc.set_threshold(50_000)
  before = gc.get_freeze_count()
  import_frozen('json')
  assert gc.isenabled() == is_enabled
  assert gc.get_threshold()[0] == 50_000
  assert gc.get_freeze_count() > before


def test_a_module_that_is_missing_leaves_collection_enabled():
  with pytest.raises(ModuleNotFoundError):
    import_frozen('experiments.no_such_module')
  assert gc.isenabled()
