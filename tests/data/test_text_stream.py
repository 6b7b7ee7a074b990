"""Texts of files and pipes: in order, whole, and as soon as they arrive."""

import _thread
import itertools
import os
import sys
import threading
import time

import numpy as np
import pytest

from experiments.command.errors import Interrupted, UserError
from experiments.data import text_stream


def read(tmp_path, content, size=3):
  path = tmp_path / 'texts'
  path.write_bytes(content)
  with open(path, 'rb') as file:
    return list(text_stream.windows(file, 'here', size))


@pytest.mark.parametrize('num_bytes', [1, 2, 5, 2**16])
def test_windows_of_a_file_hold_its_lines_however_it_is_read(
  tmp_path, monkeypatch, num_bytes
):
  monkeypatch.setattr(text_stream, '_BYTES', num_bytes)
  content = '\ufeffa\n\nçé\r\nd\u2028d\n\x0ce \rx\n\n€\n'.encode()
  found = read(tmp_path, content)
  assert found == [['a', '', 'çé'], ['d\u2028d', '\x0ce \rx', ''], ['€']]


def test_a_last_line_needs_no_end(tmp_path):
  assert read(tmp_path, b'a\nb') == [['a', 'b']]


def test_an_empty_file_has_no_window(tmp_path):
  assert read(tmp_path, b'') == []


@pytest.fixture
def pipe():
  """(file to read, descriptor to write)."""
  source, target = os.pipe()
  with open(source, 'rb') as file:
    yield file, target


def test_texts_of_a_pipe_do_not_wait_for_later_ones(pipe):
  file, target = pipe
  windows = filter(None, text_stream.windows(file, 'pipe', 3))
  os.write(target, b'first\nsecond\nhalf')
  assert next(windows) == ['first', 'second']
  os.write(target, b' of it\n')
  assert next(windows) == ['half of it']
  os.close(target)
  assert list(windows) == []


def test_a_pipe_yields_an_empty_list_before_it_waits(pipe):
  file, target = pipe
  windows = text_stream.windows(file, 'pipe', 3)
  assert next(windows) == []
  for text in ('first', 'second'):
    os.write(target, f'{text}\n'.encode())
    assert next(windows) == [text]
    assert next(windows) == []
  os.close(target)
  assert list(windows) == []


@pytest.mark.parametrize('size', [1, 2, 5])
def test_lines_before_one_that_is_not_utf8_are_yielded(tmp_path, size):
  found = []
  path = tmp_path / 'texts'
  path.write_bytes(b'a\nb\nc\nd\xffd\ne\n')
  with open(path, 'rb') as file, pytest.raises(UserError) as error:
    found += text_stream.windows(file, '--file=x', size)
  assert list(itertools.chain(*found)) == ['a', 'b', 'c']
  assert str(error.value) == (
    'cannot read texts: --file=x line 4 is not UTF-8: invalid start byte 0xff'
  )


def test_a_folder_is_refused():
  descriptor = os.open('/', os.O_RDONLY)

  class Folder:
    def fileno(self):
      return descriptor

  with pytest.raises(UserError, match='here: Is a directory'):
    list(text_stream.windows(Folder(), 'here', 3))
  os.close(descriptor)


def test_an_error_of_the_reader_is_raised_after_the_texts_before_it(
  tmp_path, monkeypatch
):
  chunks = iter([b'a\nb\n'])

  def fail(descriptor, size):
    del descriptor, size
    for chunk in chunks:
      return chunk
    raise MemoryError('full')

  found = []

  def consume():
    try:
      for window in windows:
        found.extend(window)
    except MemoryError as error:
      found.append(str(error))

  (tmp_path / 'texts').touch()
  monkeypatch.setattr(text_stream.os, 'read', fail)
  with open(tmp_path / 'texts', 'rb') as file:
    windows = text_stream.windows(file, 'here', 3)
    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(20)
  assert found == ['a', 'b', 'full']


def test_a_file_is_read_only_a_bounded_number_of_bytes_ahead(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(text_stream, '_BYTES', 8)
  monkeypatch.setattr(text_stream, '_AHEAD', 2)
  texts = [str(n) for n in np.random.default_rng(0).integers(10, 99, 500)]
  path = tmp_path / 'texts'
  path.write_text('\n'.join(texts))
  with open(path, 'rb') as file:
    found = []
    for window in text_stream.windows(file, 'here', 3):
      found += window
      # What the queue holds, one block that waits to enter it, and one that
      # is partly used.
      used = 3 * len(found)
      assert os.lseek(file.fileno(), 0, os.SEEK_CUR) <= used + 4 * 8
  assert found == texts


def test_a_signal_while_the_reader_starts_is_the_only_error(pipe, monkeypatch):
  file, target = pipe
  start, uncaught, ended = _thread.start_new_thread, [], threading.Event()

  def run(function, *arguments):
    try:
      function(*arguments)
    finally:
      ended.set()

  def interrupted(function, arguments):
    start(run, (function, *arguments))
    raise Interrupted('SIGINT')

  monkeypatch.setattr(_thread, 'start_new_thread', interrupted)
  # What `threading.Thread` calls, in Python 3.12 and before.
  monkeypatch.setattr(
    threading, '_start_new_thread', interrupted, raising=False
  )
  monkeypatch.setattr(sys, 'unraisablehook', uncaught.append)
  with pytest.raises(Interrupted):
    next(text_stream.windows(file, 'pipe', 3))
  os.close(target)
  assert ended.wait(20)
  time.sleep(0.05)  # until the error, if any, is reported
  assert uncaught == []
