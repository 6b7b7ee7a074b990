"""What the first bytes of a file say: the encoding of its text, or none."""

from __future__ import annotations

import codecs
import re
from typing import Any

from experiments.data.contract import InvalidRow

# Bytes that are read; those of tar begin after 257.
_COUNT = 512
# How files of text begin that say their encoding: UTF-32 before UTF-16.
_MARKS = {
  codecs.BOM_UTF8: 'utf-8', codecs.BOM_UTF32_LE: 'utf-32',
  codecs.BOM_UTF32_BE: 'utf-32', codecs.BOM_UTF16_LE: 'utf-16',
  codecs.BOM_UTF16_BE: 'utf-16',
}  # fmt: skip
# How files begin that are no text, and what to do; the first that matches.
_NAMED = 'give it a name that ends in '
_AS_CSV = 'save its table as CSV'
_OFFICE = rb'(\[Content_Types|_rels/|docProps/|xl/|mimetypeapp)'
_BINARY = {
  rb'\x1f\x8b': f'gzip: {_NAMED}.gz', rb'BZh[1-9]1AY': f'bzip2: {_NAMED}.bz2',
  rb'\xfd7zXZ\0': f'xz: {_NAMED}.xz',
  rb'\x28\xb5\x2f\xfd': f'Zstandard: {_NAMED}.zst',
  rb'PK\x03\x04.{26}' + _OFFICE: f'Excel or another office file: {_AS_CSV}',
  rb'PK\x03\x04': 'zip: unpack it', rb'.{257}ustar(  )?\0': 'tar: unpack it',
  rb'PAR1\x15': 'Parquet: change config.data.text.format to parquet',
  rb'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1': f'an old office file: {_AS_CSV}',
  rb'SQLite format 3\0': f'SQLite: {_AS_CSV}',
  rb'%PDF-': 'PDF: extract its text',
  rb'version https://git-lfs': 'a pointer of Git LFS: run git lfs pull',
  rb'\x00\x05\x16\x07': 'a resource fork of macOS: leave it out',
}  # fmt: skip
# A file of a class folder may be one.
_PAGE = {rb'\s*<(?i:!doctype html|html)\b': 'HTML: download the file itself'}
_UTF_16 = {
  rb'[^\0]\0': 'UTF-16: change config.data.text.encoding to utf-16-le',
  rb'\0[^\0]': 'UTF-16: change config.data.text.encoding to utf-16-be',
}


def codec(file: Any, encoding: str, may_be_page: bool) -> str:
  """The codec of a file, which skips the byte order mark that it begins with.

  An InvalidRow says that its first bytes are those of no such text, or of HTML,
  unless it may be a page of it.
  """
  first, name = file.peek(_COUNT)[:_COUNT], codecs.lookup(encoding).name
  for mark, of_mark in _MARKS.items():
    if first.startswith(mark):
      if name.startswith(of_mark):
        return of_mark.replace('utf-8', 'utf-8-sig')
      raise InvalidRow(
        f'the file begins with {mark!r}, the mark of {of_mark.upper()}: '
        f'change config.data.text.encoding to {of_mark}'
      )
  known = _BINARY if may_be_page else _BINARY | _PAGE
  if not name.startswith(('utf-16', 'utf-32')):
    known = known | _UTF_16
  for begin, what in known.items():
    if re.match(begin, first, re.DOTALL):
      raise InvalidRow(f'the file begins with {first[:8]!r}, as {what}')
  return encoding
