"""Checks of an installation, its devices, and a run."""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from collections.abc import Iterator
from importlib import metadata

import jax
import numpy as np
from packaging.markers import Marker

from experiments.data import encoding, loading, store
from experiments.data.vocabularies import Vocabulary
from experiments.settings import stored
from experiments.training import compiled
from experiments.workdir import checkpoints
from experiments.workdir import workdir as workdir_lib

# Files that exist where a driver has found an accelerator.
_ACCELERATORS = {'gpu': '/dev/nvidiactl', 'tpu': '/dev/accel*'}
_ENOUGH_BYTES = 2**30

# (what was checked, what was found, whether that is wrong).
Finding = tuple[str, str, bool]


def packages(lock: str) -> Iterator[Finding]:
  """Packages whose version differs from the lock file, for this Python.

  Nothing where there is no such file, as in an installed package.
  """
  if not os.path.exists(lock):
    return
  with open(lock) as file:
    text = file.read()
  wanted: dict[str, set[str]] = {}
  for name, version, marker in re.findall(
    r'^([\w.-]+)==([^\s;]+)(?: ; (.*?))?(?: \\)?$', text, re.MULTILINE
  ):
    if not marker or Marker(marker).evaluate():
      wanted.setdefault(name, set()).add(version)
  wrong = 0
  for name, versions in wanted.items():
    try:
      found = metadata.version(name)
    except metadata.PackageNotFoundError:
      found = 'not installed'
    if found not in versions:
      wrong += 1
      yield name, f'{found}, locked is {" or ".join(sorted(versions))}', True
  if not wrong:
    yield 'packages', f'{len(wanted)} as in requirements.txt', False


def devices() -> Iterator[Finding]:
  """The devices, and accelerators of the machine that jax does not use."""
  found = jax.devices()
  name = f'{len(found)} x {found[0].device_kind} ({jax.default_backend()})'
  yield 'devices', name, False
  for kind, pattern in _ACCELERATORS.items():
    if glob.glob(pattern) and jax.default_backend() != kind:
      yield (
        kind,
        f'{pattern} is there, jax uses {jax.default_backend()}: set '
        'JAX_BUILD=cuda12 or tpu and run scripts/run.sh again, or unset '
        'JAX_PLATFORMS',
        True,
      )
  x = np.arange(12, dtype=np.float32).reshape(3, 4)
  passed = np.allclose(jax.jit(lambda x: x @ x.T)(x), x @ x.T, rtol=1e-2)
  yield 'matmul check', 'passed' if passed else 'failed', not passed


def cache(folder: str | None) -> Iterator[Finding]:
  """The compilation cache, which no other user should be able to write."""
  if not folder:
    yield 'compilation cache', 'none (JAX_COMPILATION_CACHE_DIR)', False
    return
  if not os.path.isdir(folder):
    yield 'compilation cache', f'{folder}, made on first use', False
    return
  if not os.access(folder, os.W_OK):
    yield 'compilation cache', f'{folder} cannot be written', True
  elif os.stat(folder).st_mode & stat.S_IWOTH:
    text = f'{folder} can be written by every user, and so can your programs'
    yield 'compilation cache', text, True
  else:
    count = len(os.listdir(folder))
    yield 'compilation cache', f'{folder}, {count} files', False


def data_cache(folder: str) -> Iterator[Finding]:
  """The size of the cache of texts and tokens, and each of its entries."""
  entries = store.entries(folder)
  size = sum(entry.size for entry in entries)
  text = f'{folder}, {len(entries)} entries, {size / 2**20:,.1f} MiB'
  parent = folder
  while not os.path.exists(parent):
    parent = os.path.dirname(parent)
  if not os.access(parent, os.W_OK):
    # Not wrong: what it holds is read, the rest is kept in memory.
    text += f', cannot be written ({store.VARIABLE})'
  yield 'data cache', text, False
  for entry in entries:
    text = f'{entry.size / 2**20:,.1f} MiB, used {_duration(entry.age)} ago'
    yield os.path.basename(entry.path), text, False


def _duration(seconds: float) -> str:
  for unit, length in (('days', 86_400), ('hours', 3_600), ('minutes', 60)):
    if seconds >= 2 * length:
      return f'{seconds / length:.0f} {unit}'
  return f'{max(seconds, 0):.0f} seconds'


def workdir(path: str) -> Iterator[Finding]:
  """The status of a run, and whether each checkpoint can be read.

  Raises:
    UserError: there is no run.
  """
  settings = stored.read_settings(path)
  if not os.access(path, os.W_OK):
    yield 'workdir', f'{path} cannot be written', True
  free = shutil.disk_usage(path).free
  yield 'disk', f'{free / 2**30:.1f} GiB free', free < _ENOUGH_BYTES
  status = workdir_lib.read_status(path)
  text = f'{status.get("status")} at step {status.get("step")}'
  if 'reason' in status:
    text += f': {status["reason"]}'
  bad = status.get('status') in ('FAILED', 'DIVERGED')
  yield 'status', text, bad
  labels = loading.read_facts(path)['labels']
  vocabulary = Vocabulary.of(encoding.read_tokenizer(path))
  template = compiled.make(settings, vocabulary, len(labels)).template
  with checkpoints.reading(path, settings.checkpoint, settings.best) as saved:
    for step in saved.steps():
      try:
        saved.restore(step, template)
      # Any error of a corrupt checkpoint is a finding.
      except Exception as error:
        yield f'checkpoint {step}', ' '.join(str(error).split())[:200], True
      else:
        best = ', the best' if step == saved.best() else ''
        yield f'checkpoint {step}', f'intact{best}', False
  for name in sorted(glob.glob(os.path.join(path, checkpoints.CORRUPT, '*'))):
    yield (
      checkpoints.CORRUPT,
      f'{name} could not be read; it may be removed',
      False,
    )
