"""Checkpoints: Orbax behind one small class.

Checkpoint N is the state after N steps. Its one item, `state`, holds the leaves
of the training state as a plain nested dict, so it can be read without this
code. The newest checkpoints and the best one are kept; an older one is removed
only after a newer one is complete.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax.traverse_util import unflatten_dict

from experiments.command import processes
from experiments.command.errors import Failed, UserError, one_line
from experiments.command.log import log
from experiments.workdir import buckets, metrics
from experiments.workdir.workdir import CheckpointSettings

# A tree of arrays with a leaf `step`: the number of steps taken.
T = TypeVar('T', bound=Any)


def leaves(tree) -> dict[str, Any]:
  """Leaves of a tree by name, `block_0/attention/query/kernel`."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


class Corrupt(Failed):
  """A checkpoint that cannot be read; the message names it."""


class _Manager(ocp.CheckpointManager):
  def reached_preemption(self, step: int) -> bool:
    """Never: command.signals polls the same service, with its own counter."""
    return False


class Checkpoints:
  """WORKDIR/checkpoints, listed from disk; always `close` it.

  Attributes:
    directory: holds a folder for each step.
    scores: the validation metric that selects the best checkpoint, by step;
      None where it was undefined.
    common: a step that other runs of the group resume from; it is kept.
  """

  def __init__(
    self,
    workdir: str,
    settings: CheckpointSettings,
    run: str | None = None,
    best: Callable | None = None,
  ):
    """Opens or creates the folder, and removes interrupted saves.

    Each checkpoint has the identity of its run; without one, those of any run
    are read only. `best` is max or min of the scores, if there are any.
    """
    self.scores: dict[int, float | None] = {}
    self.common: int | None = None
    self._workdir = os.path.abspath(workdir)
    self._settings, self._run, self._best = settings, run, best
    self.directory = epath.Path(buckets.origin(self._workdir), 'checkpoints')
    if run is not None:
      self.directory.mkdir(parents=True, exist_ok=True)
    self._manager = _Manager(
      self.directory,
      item_handlers={'state': ocp.StandardCheckpointHandler()},
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self,
        cleanup_tmp_directories=run is not None,
        create=run is not None,
        async_options=ocp.options.AsyncOptions(
          post_finalization_callback=self._upload_files
        ),
      ),
    )

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """Called by Orbax: which of these steps, ascending, to keep."""
    steps = [info.step for info in checkpoints]
    kept = {
      *steps[-self._settings.max_to_keep :],
      self.best(steps),
      self.common,
    }
    return [step in kept for step in steps]

  def steps(self) -> list[int]:
    """Saved steps, ascending."""
    return sorted(self._manager.all_steps())

  def best(self, steps: list[int] | None = None) -> int | None:
    """The best of these or all steps, the latest on ties; None: no scores.

    A score that was undefined is worse than any other.
    """
    steps = self.steps() if steps is None else steps
    there = {step: self.scores[step] for step in steps if step in self.scores}
    if not there or self._best is None:
      return None
    known = [score for score in there.values() if score is not None]
    score = self._best(known) if known else None
    return max(step for step in there if there[step] == score)

  def save(self, state) -> None:
    """Starts saving `state`, a tree, as checkpoint state.step.

    A checkpoint in a bucket is complete once it has the files of the workdir.
    Failed if this checkpoint or the previous one cannot be written.
    """
    # On a CPU the saver reads the buffer itself, which the next step may reuse
    # (donation) while the save continues in the background.
    item = unflatten_dict(jax.tree.map(_copy, leaves(state)), sep='/')
    with self._reported():
      self._manager.save(
        int(state.step),
        args=ocp.args.Composite(state=ocp.args.StandardSave(item)),
        custom_metadata={'run': self._run, 'checksums': _checksums(item)},
        force=True,
      )

  def _upload_files(self) -> None:
    """Called by Orbax in its thread, before a checkpoint is complete."""
    if processes.is_first():
      buckets.upload(self._workdir)

  def wait(self) -> None:
    """Waits for all saves; Failed if one could not be written."""
    with self._reported():
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def close(self) -> None:
    """Waits, and stops the threads of the saver; raises as `wait`."""
    with self._reported():
      self._manager.close()

  def restore(self, step: int, template: T) -> T:
    """The state saved at `step`, with structure and sharding of `template`.

    A UserError says that it belongs to another run, or that its paths, shapes
    or dtypes differ. Corrupt if it cannot be read, or holds another step.
    """
    self.check(step, template, self._run)
    arrays = leaves(template)
    with self._reading(step):
      values = self._read(step, arrays)
      state = jax.tree.unflatten(
        jax.tree.structure(template), [values[name] for name in arrays]
      )
      if int(state.step) != step:
        raise ValueError(f'it holds step {int(state.step)}')
    return state

  def check(self, step: int, template, run: str | None) -> None:
    """Raises as `restore` does in a folder of `run`, but reads no array."""
    with self._reading(step):
      saved_by = self._metadata(step, 'run')
      self._check(step, self._saved(step), leaves(template))
      if run is not None and saved_by is None:
        raise ValueError('its metadata is missing')
      if run not in (None, saved_by):
        raise UserError(
          f'checkpoint {self.directory}/{step} is of another run; choose '
          'another --workdir'
        )

  def restore_params(
    self, step: int, template=None, is_part: bool = False
  ) -> dict[str, jax.Array]:
    """The parameters saved at `step` by name, without the rest of the state.

    Their averages, if any were kept: what the step was evaluated with. Without
    a template of their shapes, dtypes and shardings, they are on one device.
    Where the template `is_part` of the model, others are not read. Raises as
    `restore`.
    """
    with self._reading(step):
      saved = self._saved(step)
      kinds = {name.partition('/')[0] for name in saved}
      prefix = 'average/' if 'average' in kinds else 'params/'
      params = {
        name.removeprefix(prefix): leaf
        for name, leaf in saved.items()
        if name.startswith(prefix)
      }
      if template is None:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        arrays = {
          name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device)
          for name, leaf in params.items()
        }
      else:
        arrays = leaves(template)
        if is_part:
          params = {name: params[name] for name in params.keys() & arrays}
        self._check(step, params, arrays)
      values = self._read(
        step, {prefix + name: leaf for name, leaf in arrays.items()}
      )
    return {name: values[prefix + name] for name in arrays}

  def _check(self, step: int, saved: Mapping, arrays: Mapping) -> None:
    """UserError if names, shapes or dtypes differ from those of `arrays`."""
    there, here = (
      {name: f'{np.dtype(x.dtype)}{list(x.shape)}' for name, x in of.items()}
      for of in (saved, arrays)
    )
    phrases = [f'{name} is missing' for name in here if name not in there]
    phrases += [f'{name} is extra' for name in there if name not in here]
    phrases += [
      f'{name} is {there[name]}, not {kind}'
      for name, kind in here.items()
      if there.get(name, kind) != kind
    ]
    if phrases:
      raise UserError(
        f'checkpoint {self.directory}/{step} does not fit this model, in '
        f'{len(phrases)} arrays: {"; ".join(phrases[:10])}'
      )

  def _read(self, step: int, arrays: Mapping) -> dict[str, Any]:
    """The values of `arrays` at a step by name, with their shardings.

    Through the handler, since the manager synchronizes all processes: if one of
    them cannot read its shard, the others would wait forever.
    """
    item = unflatten_dict(arrays, sep='/')
    restored = ocp.PyTreeCheckpointHandler().restore(
      self.directory / str(step) / 'state',
      args=ocp.args.PyTreeRestore(
        item,
        ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=True,
      ),
    )
    values = leaves(restored)
    expected = self._metadata(step, 'checksums')
    # Those of earlier versions have none.
    found = _checksums(restored) if expected else {}
    for name, checksum in found.items():
      if expected.get(name, checksum) != checksum:
        raise ValueError(f'the values of {name} are not those that were saved')
    return values

  def _metadata(self, step: int, name: str) -> Any:
    """What `save` wrote beside the arrays; None if there is none of it."""
    return (self._manager.metadata(step).custom_metadata or {}).get(name)

  def _saved(self, step: int) -> dict[str, Any]:
    """Shapes and dtypes of the arrays of a step by name."""
    arrays = self._manager.item_metadata(step)['state']
    if arrays is None:
      raise ValueError('its list of arrays is missing')
    return leaves(arrays)

  @contextlib.contextmanager
  def _reading(self, step: int):
    """Converts any exception of Orbax or TensorStore to Corrupt."""
    try:
      yield
    except UserError:
      raise
    except Exception as error:
      raise Corrupt(
        f'checkpoint {self.directory}/{step} is corrupt: {one_line(error)}'
      ) from error

  @contextlib.contextmanager
  def _reported(self):
    """Converts the exception of a failed save to Failed, in one line."""
    try:
      yield
    except (OSError, ValueError) as error:
      raise Failed(
        f'a checkpoint could not be written to {self.directory}: '
        f'{one_line(error)}; earlier ones are kept'
      ) from error

  def set_aside(self, step: int, reason: str) -> None:
    """Moves an unreadable checkpoint to WORKDIR/corrupt, and says why."""
    log(f'WARNING: {reason}; it is moved to corrupt/{step}')
    target = self.directory.parent / 'corrupt' / str(step)
    if processes.is_first():
      target.parent.mkdir(exist_ok=True)
      if target.exists():
        target.rmtree()
      (self.directory / str(step)).rename(target)
    processes.wait_for_all(f'set aside {step}')
    self._manager.reload()

  def drop(self, step: int) -> None:
    """Removes the checkpoint of a step that will be trained again."""
    self._manager.delete(step)


@contextlib.contextmanager
def reading(workdir: str, settings: CheckpointSettings, best: Callable):
  """Checkpoints of a run, with scores; safe while the run is training."""
  folder = Checkpoints(workdir, settings, best=best)
  try:
    folder.scores |= metrics.scores(
      os.path.join(workdir, 'metrics.jsonl'), settings.best_metric
    )
    yield folder
  finally:
    folder.close()


def _checksums(tree) -> dict[str, int]:
  """CRC-32 of each array by name, which the storage format does not have.

  Without arrays of which this process has a part only.
  """
  return {
    name: zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).data)
    for name, leaf in leaves(tree).items()
    if getattr(leaf, 'is_fully_addressable', True) or leaf.is_fully_replicated
  }


def _copy(leaf):
  devices = leaf.devices() if isinstance(leaf, jax.Array) else ()
  is_on_cpu = {device.platform for device in devices} == {'cpu'}
  return jnp.copy(leaf) if is_on_cpu else leaf
