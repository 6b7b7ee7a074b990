"""Commands, one file each, and their packages, from lowest to highest.

command, workdir, data, learning, settings, training, sweeps, inspection,
benchmarks: each imports only from those before it, and none imports a command.

An installation has this package as `selfattn_commands.experiments`, and
`selfattn_commands.configs` beside it, since a user may have packages of the
short names. All code imports the short names, which `make_importable` has a
process find.
"""

import os
import sys


def make_importable() -> None:
  """Puts the folder of `experiments` and `configs` first on sys.path.

      from selfattn_commands.experiments import make_importable
      make_importable()
      from experiments import predict

  Other packages of these names are hidden in this process from then on.

  Raises:
    ImportError: this process has imported one of them.
  """
  folder = os.path.dirname(os.path.dirname(__file__))
  for name in ('experiments', 'configs'):
    file = getattr(sys.modules.get(name), '__file__', None)
    if file and os.path.dirname(os.path.dirname(file)) != folder:
      raise ImportError(
        f'{name} is {file} here, which was imported before; call '
        'make_importable first, in another process than that which needs it'
      )
  if sys.path[:1] != [folder]:
    sys.path.insert(0, folder)
