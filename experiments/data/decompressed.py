"""Files of text, decompressed and decoded."""

from __future__ import annotations

import codecs

# Bytes that are decompressed at once.
_BYTES = 2**20


def opened(path: str, encoding: str):
  """The text of a file; bytes that are no text become lone surrogates.

  Lines keep their ends.

  Raises:
    ValueError: the extra zst is not installed.
  """
  import fsspec

  is_zst = path.endswith('.zst')
  return fsspec.open(
    path,
    'rt',
    encoding=codec(encoding),
    errors='surrogateescape',
    newline='',
    # 'infer' would read compressed bytes if fsspec does not know of zstd.
    compression='zstd' if is_zst else 'infer',
  )


def require_whole(path: str) -> None:
  """Reads a .zst file, since its readers end early if it is truncated.

  Raises:
    ValueError: it is, or the extra zst is not installed.
  """
  if not path.endswith('.zst'):
    return
  try:
    import zstandard
  except ImportError as error:
    raise ValueError(
      'it needs the extra zst: bash scripts/run.sh pip install zstandard'
    ) from error
  frame = None
  with open(path, 'rb') as file:
    while data := file.read(_BYTES):
      while data:
        if frame is None or frame.eof:
          frame = zstandard.ZstdDecompressor().decompressobj()
        frame.decompress(data)
        data = frame.unused_data
  if frame is None or not frame.eof:
    raise ValueError('the compressed file is truncated')


def codec(encoding: str) -> str:
  """The encoding, one that skips a byte order mark for UTF-8."""
  is_utf_8 = codecs.lookup(encoding).name == 'utf-8'
  return 'utf-8-sig' if is_utf_8 else encoding
