"""Flags of the commands that read a trained run."""

from __future__ import annotations

from absl import flags

from experiments.data.text_files import SPLITS


def define_run(
  values: flags.FlagValues, workdir: str = 'Folder of a trained run.'
) -> None:
  """Adds --workdir, of this meaning, and --checkpoint."""
  flags.DEFINE_string('workdir', None, workdir, flag_values=values)
  flags.DEFINE_string(
    'checkpoint',
    'best',
    'Checkpoint to load: best, last, or a step.',
    flag_values=values,
  )


def define_split(values: flags.FlagValues, default: str) -> None:
  """Adds --split and --data_dir."""
  flags.DEFINE_enum(
    'split', default, SPLITS, 'Split to read.', flag_values=values
  )
  flags.DEFINE_string(
    'data_dir',
    None,
    'Folder of the data, if it has moved since training.',
    flag_values=values,
  )


def define_batch_size(values: flags.FlagValues, default: int) -> None:
  """Adds --batch_size."""
  flags.DEFINE_integer(
    'batch_size', default, 'Texts of a batch.', 1, flag_values=values
  )
