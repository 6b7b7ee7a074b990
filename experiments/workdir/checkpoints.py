"""Checkpoints: Orbax behind one small class.

A step's name is the number of updates applied. One item, `state`, holds the
leaves of a training state as a plain nested dict, so a checkpoint can be read
without this code. The newest few and the best one are kept; an older one goes
only when a newer one is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from experiments.command import processes
from experiments.command.errors import Failed, UserError, writing
from experiments.command.log import log
from experiments.workdir import buckets, metrics
from experiments.workdir.keeping import CheckpointSettings

# A tree of arrays with a leaf `step`: the updates that were applied.
T = TypeVar('T')
# Where a step goes that cannot be read, beside the folder of checkpoints.
_TORN = 'torn'
# Leaves of a state that the first version did not have. They begin at zero.
_ADDED = ('sums',)


class _Manager(ocp.CheckpointManager):
  def reached_preemption(self, step: int) -> bool:
    """Never: command.signals asks the same library, by numbers of its own."""
    del step
    return False


class Checkpoints:
  """WORKDIR/checkpoints, listed from disk; close it on every way out.

  Attributes:
    scores: the validation metric that says which is the best, by step.
    common: a step that other runs of a group go on from, too; it stays.
  """

  def __init__(
    self,
    workdir: str,
    settings: CheckpointSettings,
    run: str | None = None,
    best: Callable | None = None,
  ):
    """Opens or makes the folder, and removes saves that were cut off.

    Args:
      run: identity of the run, which is kept with every step and must be that
        of a step that is restored; None: any may be, and nothing is saved.
      best: max or min, of the scores; None: there are no scores.
    """
    self.scores: dict[int, float] = {}
    self.common: int | None = None
    self._settings, self._run, self._choose = settings, run, best
    place = epath.Path(buckets.origin(os.path.abspath(workdir))) / 'checkpoints'
    if run is not None:
      with writing(str(place)):
        place.mkdir(parents=True, exist_ok=True)
    self._manager = _Manager(
      place,
      item_handlers={'state': ocp.StandardCheckpointHandler()},
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self,
        cleanup_tmp_directories=run is not None,
        create=run is not None,
      ),
    )

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """Orbax's question: which of these steps, ascending, stay."""
    del context
    steps = [info.step for info in checkpoints]
    kept = {*steps[-self._settings.keep :], self._best(steps), self.common}
    return [step in kept for step in steps]

  def steps(self) -> list[int]:
    """Those saved, ascending."""
    return sorted(self._manager.all_steps())

  def best(self) -> int | None:
    """The step with the best score, the latest of equals; None if no score."""
    return self._best(self.steps())

  def _best(self, steps) -> int | None:
    scores = {step: self.scores[step] for step in steps if step in self.scores}
    if not scores:
      return None
    best = self._choose(scores.values())
    return max(step for step, score in scores.items() if score == best)

  def save(self, state) -> None:
    """Starts saving `state`, a tree, under its leaf `step`.

    Raises:
      Failed: this one or the one before could not be written.
    """
    # On a CPU what the saver reads is the buffer itself, which the next update
    # is free to use again while the save goes on in the background.
    kept = {name: _kept(leaf) for name, leaf in leaves(state).items()}
    with _Reported(self):
      self._manager.save(
        int(state.step),
        args=ocp.args.Composite(state=ocp.args.StandardSave(_nest(kept))),
        custom_metadata={'run': self._run},
        force=True,
      )

  def wait(self) -> None:
    """Returns when every save has ended.

    Raises:
      Failed: one could not be written.
    """
    with _Reported(self):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def close(self) -> None:
    """Waits, and ends the threads of the saver; raises as `wait`."""
    with _Reported(self):
      self._manager.close()

  def restore(self, step: int, template: T) -> T:
    """The state saved at `step`, in the form and place of `template`.

    Raises:
      UserError: it is of another run, or its paths, shapes or types are not
        the template's.
    """
    folder = f'{self._manager.directory}/{step}'
    run = (self._manager.metadata(step).custom_metadata or {}).get('run')
    found = self._saved(step)
    everything = leaves(template)
    wanted = {
      name: leaf
      for name, leaf in everything.items()
      if name in found or name not in _ADDED
    }
    differences = _differences(found, wanted)
    if differences:
      raise UserError(
        f'checkpoint {folder} does not fit this model, in '
        f'{len(differences)} places: {"; ".join(differences[:10])}'
      )
    if self._run not in (None, run):
      raise UserError(f'checkpoint {folder} is of another run')
    saved = self._read(step, wanted)
    state = jax.tree.unflatten(
      jax.tree.structure(template),
      [
        saved[name] if name in saved else _zeros(leaf)
        for name, leaf in everything.items()
      ],
    )
    if int(state.step) != step:
      raise ValueError(f'{folder} holds step {int(state.step)}')
    return state

  def restore_params(self, step: int) -> dict[str, jax.Array]:
    """The parameters saved at `step`, whatever the model, by name."""
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    wanted = {
      name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one)
      for name, leaf in self._saved(step).items()
    }
    prefix = 'params/'
    return {
      name.removeprefix(prefix): leaf
      for name, leaf in self._read(step, wanted).items()
      if name.startswith(prefix)
    }

  def _read(self, step: int, wanted: Mapping[str, object]) -> dict:
    """The arrays of a step by name, in the place of those that are wanted.

    By the handler rather than the manager, which would wait for all processes:
    where one of them cannot read its part, the others would wait forever.
    """
    saved = ocp.StandardCheckpointHandler().restore(
      epath.Path(self._manager.directory) / str(step) / 'state',
      args=ocp.args.StandardRestore(_nest(wanted)),
    )
    return leaves(saved)

  def _saved(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
    found = self._manager.item_metadata(step)['state']
    if found is None:
      raise ValueError('its list of arrays is missing')
    return leaves(found)

  def set_aside(self, step: int) -> None:
    """Moves a step that cannot be read to WORKDIR/torn."""
    folder = epath.Path(self._manager.directory)
    torn = folder.parent / _TORN
    if processes.is_first():
      with writing(str(torn)):
        torn.mkdir(exist_ok=True)
        target = torn / str(step)
        if target.exists():
          target.rmtree()
        (folder / str(step)).rename(target)
    processes.wait_for_all(f'set aside {step}')
    self._manager.reload()

  def drop(self, step: int) -> None:
    """Removes a step that will be computed again."""
    self._manager.delete(step)


@contextlib.contextmanager
def reading(workdir: str, settings: CheckpointSettings, best: Callable):
  """The Checkpoints of a run that may be training, with their scores."""
  folder = Checkpoints(workdir, settings, best=best)
  try:
    folder.scores |= metrics.scores(
      os.path.join(workdir, 'metrics.jsonl'), settings.best_metric
    )
    yield folder
  finally:
    folder.close()


class _Reported:
  """Turns what a failed save raises into one line that says what to do."""

  def __init__(self, checkpoints: Checkpoints):
    self._checkpoints = checkpoints

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind, error, trace) -> None:
    if error is None or not isinstance(error, OSError | ValueError):
      return
    manager = self._checkpoints._manager
    raise Failed(
      f'a checkpoint could not be written to {manager.directory}: '
      f'{_first_words(error)}; those before it are kept: make room or repair '
      'it, and run the same command again'
    ) from error


def newest(
  folders: list[Checkpoints], template: T
) -> tuple[int | None, list[T]]:
  """The newest step that all folders hold whole, and the states; or None, [].

  Later steps, which cannot be read or which others do not have, will be
  computed again: those that cannot be read are set aside.

  Raises:
    UserError: a step is of another model or run.
    Failed: steps were saved, and none can be read.
  """
  # A process may see what another one has written a little later.
  lists = processes.gather([folder.steps() for folder in folders])
  common = set.intersection(*[set(n) for found in lists for n in found])
  torn: dict[tuple[int, int], str] = {}
  for step in sorted(common, reverse=True):
    states = []
    for index, folder in enumerate(folders):
      reason = None
      try:
        states.append(folder.restore(step, template))
      except UserError:
        raise
      # What a torn file raises is up to Orbax, TensorStore and the file.
      except Exception as error:
        reason = _first_words(error)
      # One process alone may have failed, and then all of them have.
      reasons = [told for told in processes.gather(reason) if told]
      if reasons:
        torn[index, step] = reasons[0]
    if not any(at == step for _, at in torn):
      _go_back(folders, step, torn)
      return step, states
  if torn:
    (index, step), reason = next(iter(torn.items()))
    raise Failed(
      f'step {step} of {folders[index]._manager.directory} cannot be read, '
      f'nor any before it: {reason}; to begin anew, choose another --workdir'
    )
  _go_back(folders, 0, torn)
  return None, []


def _go_back(folders, to: int, torn) -> None:
  for index, folder in enumerate(folders):
    for step in folder.steps():
      if (index, step) in torn:
        log(
          f'WARNING: step {step} of {folder._manager.directory} cannot be '
          f'read, and is moved to {_TORN}/{step}: {torn[index, step]}'
        )
        folder.set_aside(step)
      elif step > to:
        folder.drop(step)


def _first_words(error: Exception) -> str:
  words = f'{type(error).__name__}: {error}'
  return ' '.join(words.split())[:200]


def _kept(leaf):
  if not isinstance(leaf, jax.Array):
    return leaf
  platforms = {device.platform for device in leaf.sharding.device_set}
  return jnp.copy(leaf) if platforms == {'cpu'} else leaf


def leaves(tree) -> dict[str, object]:
  """Leaves of a tree by name, `block_0/attention/query/kernel`."""
  paths, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in paths
  }


def _nest(leaves: Mapping[str, object]) -> dict:
  nested: dict = {}
  for name, leaf in leaves.items():
    *parents, last = name.split('/')
    node = nested
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return nested


def _zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
  return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def _differences(found, wanted) -> list[str]:
  differences = [f'{name} is missing' for name in wanted if name not in found]
  differences += [f'{name} is extra' for name in found if name not in wanted]
  for name in wanted:
    if name in found:
      here = (tuple(found[name].shape), np.dtype(found[name].dtype))
      there = (tuple(wanted[name].shape), np.dtype(wanted[name].dtype))
      if here != there:
        differences.append(
          f'{name} is {here[1]}{list(here[0])}, not {there[1]}{list(there[0])}'
        )
  return differences
