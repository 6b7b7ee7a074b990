"""What the first bytes of a file say: the encoding of its text, or none."""

from __future__ import annotations

import codecs
import re
from typing import Any

from experiments.data.contract import InvalidRow

# How files of text begin that say their encoding: UTF-32 before UTF-16.
_MARKS = {
  codecs.BOM_UTF8: 'utf-8', codecs.BOM_UTF32_LE: 'utf-32',
  codecs.BOM_UTF32_BE: 'utf-32', codecs.BOM_UTF16_LE: 'utf-16',
  codecs.BOM_UTF16_BE: 'utf-16',
}  # fmt: skip
# How files begin that are no text, and what to do.
_NAMED = 'give it a name that ends in '
_BINARY = {
  rb'\x1f\x8b': f'gzip: {_NAMED}.gz', rb'BZh[1-9]1AY': f'bzip2: {_NAMED}.bz2',
  rb'\xfd7zXZ\0': f'xz: {_NAMED}.xz',
  rb'\x28\xb5\x2f\xfd': f'Zstandard: {_NAMED}.zst',
  rb'PK\x03\x04': 'zip: unpack it',
  rb'\x00\x05\x16\x07': 'a resource fork of macOS: leave it out',
}  # fmt: skip
_UTF_16 = {
  rb'[^\0]\0': 'UTF-16: change config.data.text.encoding to utf-16-le',
  rb'\0[^\0]': 'UTF-16: change config.data.text.encoding to utf-16-be',
}


def codec(file: Any, encoding: str) -> str:
  """The codec of a file, which skips the byte order mark that it begins with.

  An InvalidRow says that its first bytes are those of no such text.
  """
  first, name = file.peek(8)[:8], codecs.lookup(encoding).name
  for mark, of_mark in _MARKS.items():
    if first.startswith(mark):
      if name.startswith(of_mark):
        return of_mark.replace('utf-8', 'utf-8-sig')
      raise InvalidRow(
        f'the file begins with {mark!r}, the mark of {of_mark.upper()}: '
        f'change config.data.text.encoding to {of_mark}'
      )
  is_wide = name.startswith(('utf-16', 'utf-32'))
  for begin, what in (_BINARY if is_wide else _BINARY | _UTF_16).items():
    if re.match(begin, first, re.DOTALL):
      raise InvalidRow(f'the file begins with {first!r}, as {what}')
  return encoding
