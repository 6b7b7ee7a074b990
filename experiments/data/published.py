"""Where a published model is: a folder, a bucket, or a name of the hub."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os

from experiments.command.errors import UserError
from experiments.workdir import buckets

# Copies of folders in buckets, which this process reads to its end.
_copies = contextlib.ExitStack()
atexit.register(_copies.close)
_FILES = ['*.json', '*.safetensors', 'tokenizer.model']


@functools.cache
def folder(name: str) -> str:
  """The folder of a published model, or a local copy of it.

  The hub is asked once for a model; a bucket is copied once in a process.

  Raises:
    UserError: there is no such folder, and no such model on the hub; or the
      extra gcs is missing.
  """
  if name.startswith(buckets.SCHEMES):
    staged = buckets.staged(name, name='config.model.pretrained')
    return _copies.enter_context(staged)
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
