"""Where a published model is: a folder, or a name of the Hugging Face hub."""

from __future__ import annotations

import functools
import os

from experiments.command.errors import UserError

_FILES = ['*.json', '*.safetensors', 'tokenizer.model']


@functools.cache
def folder(name: str) -> str:
  """The folder of a published model; that of the hub is downloaded once.

  A UserError says that there is no such folder, and no such model on the hub.
  """
  if os.path.isdir(name):
    return name
  if name.count('/') > 1 or not name or name.startswith(('.', '/', '~')):
    raise UserError(f'there is no folder {name}')
  import huggingface_hub

  try:
    return huggingface_hub.snapshot_download(name, allow_patterns=_FILES)
  # Of the network, of the hub, or of a name that is none.
  except Exception as error:
    reason = ' '.join(str(error).split())[:200]
    raise UserError(
      f'there is no folder {name}, and the Hugging Face hub gives no model of '
      f'that name: {reason}'
    ) from error
