"""Streams: texts one after another, in windows that predict each token once."""

import gzip
import json

import numpy as np
import pytest
import tokenizers
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.data import encoding, loading, streams
from experiments.data.batches import TrainBatches
from experiments.settings.settings import from_config

TEXTS = ['a first text', 'zwei Sätze . und noch einer', 'x' * 30, 'the end']
SPLITS = ('train', 'validation', 'test')


def make_config(folder, source='stream', **changes):
  config = make_small_config()
  config.task = 'next_token'
  config.model.encoder = 'attention(causal=True)'
  config.checkpoint.best_metric = 'loss'
  config.data.source = source
  config.data.dir = str(folder)
  config.data.vocabulary = 'byte'
  config.data.max_length = 8
  config.data.text.format = 'json'
  config.data.text.train = ('train.jsonl',)
  config.data.test_fraction = config.data.validation_fraction = 0.3
  config.update_from_flattened_dict(changes)
  return config


def load(config):
  return loading.load(from_config(config).data, '', labels=None)


def write(folder, texts=TEXTS, name='train.jsonl'):
  lines = ''.join(json.dumps({'text': text}) + '\n' for text in texts)
  (folder / name).write_text(lines)


def text_of(loaded, split):
  tokenizer = tokenizers.Tokenizer.from_str(loaded.files['tokenizer.json'])
  return tokenizer.decode(loaded.splits[split].tokens.tolist())


@pytest.mark.parametrize(
  'text',
  ['', ' ', 'word', 'a ' * 9_000, 'x' * 9_000, 'ä\n' * 5_000, ' ' * 9_000],
)
def test_pieces_are_the_text(text):
  parts = list(streams.parts(text))
  assert ''.join(parts) == text
  assert max(map(len, parts)) <= 4_096


@pytest.mark.parametrize('vocabulary', ['byte', 'bpe(lowercase=False)'])
def test_splits_are_the_stream_one_after_another(tmp_path, vocabulary):
  write(tmp_path, TEXTS * 50)
  loaded = load(make_config(tmp_path, **{'data.vocabulary': vocabulary}))
  whole = ''.join(text_of(loaded, split) for split in SPLITS)
  assert whole == ''.join(f'{text}\n' for text in TEXTS * 50)
  sizes = np.array([loaded.num_bytes[split] for split in SPLITS])
  assert sizes.sum() == len(whole.encode())
  # Test is the last 30 percent, validation 30 percent of the rest.
  np.testing.assert_allclose(sizes / sizes.sum(), [0.49, 0.21, 0.3], atol=0.02)


def test_splits_of_the_end_of_a_stream_say_in_which_files_they_are(
  tmp_path, capsys
):
  names = ('a.jsonl', 'b.jsonl', 'c.jsonl')
  for name in names:
    write(tmp_path, TEXTS * 50, name)
  for _ in range(2):  # Also where the stream is in the cache.
    load(make_config(tmp_path, **{'data.text.train': names}))
    said = capsys.readouterr().err
    assert 'test is the end of the stream, in 1 of 3 files of train' in said
    assert 'validation is the end of the stream, in 2 of 3 files' in said
  load(make_config(tmp_path, **{'data.text.train': names[:1]}))
  assert 'end of the stream' not in capsys.readouterr().err


@pytest.mark.parametrize('size', [1, 13, 14, 40])
def test_the_first_bytes_of_a_split(tmp_path, size):
  write(tmp_path)
  write(tmp_path, name='test.jsonl')
  config = make_config(tmp_path, f'stream(test_bytes={size})')
  config.data.text.test = ('test.jsonl',)
  if size == 1:
    with pytest.raises(UserError, match='test split has no token'):
      load(config)
    return
  loaded = load(config)
  whole = ''.join(f'{text}\n' for text in TEXTS).encode()
  assert text_of(loaded, 'test').encode() == whole[:size]
  assert loaded.num_bytes['test'] == size


def test_another_file_is_a_whole_stream_in_windows(tmp_path):
  write(tmp_path, TEXTS * 50)
  write(tmp_path, name='other.jsonl')
  config = make_config(tmp_path, 'stream(train_bytes=900)')
  data, run = from_config(config).data, tmp_path / 'run'
  run.mkdir()
  for name, text in loading.load(data, '', labels=None).files.items():
    (run / name).write_text(text)
  other = str(tmp_path / 'other.jsonl')
  loaded = loading.load_file(data, str(run), other, {}, None)
  whole = ''.join(f'{text}\n' for text in TEXTS).encode()
  assert loaded.num_bytes == {'test': len(whole)}
  windows = loaded.splits['test']
  expected = streams.windows(windows.tokens, data.max_length)
  np.testing.assert_array_equal(windows.starts, expected.starts)
  np.testing.assert_array_equal(windows.lengths, expected.lengths)
  tokenizer = encoding.read_tokenizer(str(run))
  assert tokenizer.decode(windows.tokens.tolist()).encode() == whole


@pytest.mark.parametrize('kind', ['lines', 'tsv', 'gzip', 'class_folders'])
def test_every_format_is_the_same_stream_without_labels(tmp_path, kind):
  texts = TEXTS * 50
  config = make_config(tmp_path)
  config.data.text.format = 'json' if kind == 'gzip' else kind
  config.data.text.train = ('train.gz' if kind == 'gzip' else 'train',)
  file = tmp_path / config.data.text.train[0]
  if kind == 'gzip':
    lines = (json.dumps({'text': text}) + '\n' for text in texts)
    file.write_bytes(gzip.compress(''.join(lines).encode()))
  elif kind == 'class_folders':
    file.mkdir()
    for number, text in enumerate(texts):
      (file / f'{number:03}').write_text(text)
  else:
    file.write_text('\n'.join([*['text'] * (kind == 'tsv'), *texts]) + '\n')
  loaded = load(config)
  whole = ''.join(text_of(loaded, split) for split in SPLITS)
  assert whole == ''.join(f'{text}\n' for text in texts)


@pytest.mark.parametrize('length', [1, 3, 8, 50])
@pytest.mark.parametrize('stride', [0, 1, 2])
@pytest.mark.parametrize('size', [2, 9, 10, 25])
def test_windows_predict_each_token_once(size, length, stride):
  stride = min(stride, length)
  tokens = np.arange(size)
  predicted = []
  for index, (start, count) in enumerate(
    zip(*_bounds(streams.windows(tokens, length, stride)), strict=True)
  ):
    assert 2 <= count <= length + 1
    first = 0 if index == 0 else length - (stride or length)
    predicted += tokens[start + 1 : start + count][first:].tolist()
  assert predicted == list(range(1, size))


def _bounds(examples):
  return examples.starts, examples.lengths


def test_batches_are_windows_of_the_stream_and_a_function_of_the_step(tmp_path):
  write(tmp_path, [f'{number} is a number' for number in range(200)])
  loaded = load(make_config(tmp_path))
  stream = loaded.splits['train'].tokens.tolist()
  batches = TrainBatches(
    loaded.splits['train'], 16, 0, loaded.bucket_lengths, max_shift=8
  )
  firsts = set()
  for step in range(3 * batches.steps_per_epoch):
    batch = batches(step)
    for row, length in zip(batch.tokens, batch.lengths, strict=True):
      window = row[:length].tolist()
      assert _is_part(window, stream)
      firsts.add(tuple(window))
  # Each epoch has windows of its own.
  assert len(firsts) > 1.5 * len(loaded.splits['train'])
  np.testing.assert_array_equal(batches(3).tokens, batches(3).tokens)


def _is_part(window, stream):
  text, whole = map(bytes, (np.uint16(window), np.uint16(stream)))
  return text in whole


def test_loss_in_nats_is_bits_per_byte_of_the_text():
  # 100 tokens of 2 nats each, 250 bytes.
  bits = streams.bits_per_byte(2.0, 100, 250)
  assert bits == pytest.approx(100 * 2.0 / np.log(2) / 250)


def test_a_stream_without_a_byte_is_refused(tmp_path):
  write(tmp_path)
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / 'empty').touch()
  changes = {
    'data.text.format': 'class_folders',
    'data.text.train': ('folder',),
    'data.source': "stream(separator='')",
    'data.test_fraction': 0.1,
  }
  with pytest.raises(UserError, match='the train split is empty'):
    load(make_config(tmp_path, **changes))


@pytest.mark.parametrize(
  ('changes', 'key'),
  [
    ({'task': 'classify'}, 'config.task'),
    ({'data.source': 'stream(test_bytes=-1)'}, 'config.data.source'),
    ({'data.source': 'stream(test_bytes=9)'}, 'config.data.text.test'),
    ({'train.eval_lengths': (0,)}, 'config.train.eval_lengths'),
    ({'model.position': 'learned(max_len=16)', 'train.eval_lengths': (16, 32),
      'checkpoint.best_metric': 'bits_per_byte_32'},
     'config.checkpoint.best_metric'),
    ({'data.test_fraction': 0.0}, 'config.data.test_fraction'),
    ({'data.num_folds': 2, 'data.test_fraction': 0.0},
     'config.data.num_folds = 2 must'),
  ],
)  # fmt: skip
def test_what_a_stream_cannot_be_is_refused(tmp_path, changes, key):
  write(tmp_path)
  config = make_config(tmp_path, **changes)
  with pytest.raises(UserError, match=key.replace('.', r'\.')):
    load(config)
