"""Flags of the commands that look into a model."""

from __future__ import annotations

from absl import flags


def define_member(values: flags.FlagValues) -> None:
  """Adds the flag --member."""
  flags.DEFINE_integer(
    'member',
    0,
    'Index of the ensemble member to inspect, from 0.',
    flag_values=values,
  )
