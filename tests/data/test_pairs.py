"""Pairs of texts: their ids, their data, and their rows to predict."""

import io
import itertools

import numpy as np
import pytest
import tokenizers
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.data import encoding, input_rows, loading, readers
from experiments.data.contract import Dataset
from experiments.data.rows import Row, gather, parted
from experiments.data.text_files import Text
from experiments.data.vocabularies import VOCABULARIES, Word, add_separator
from experiments.settings.settings import from_config

WORDS = ['the', 'film', 'is', 'a', 'good', 'one', 'of', 'few']
PAIRS = [
  (' '.join(WORDS[:first]), ' '.join(WORDS[:second]))
  for first, second in itertools.product(range(len(WORDS) + 1), repeat=2)
]


def with_separator(vocabulary):
  tokenizer = vocabulary.train([' '.join(WORDS)])
  add_separator(tokenizer)
  return tokenizer


@pytest.mark.parametrize('max_length', [4, 5, 6, 9, 12, 64])
def test_the_longer_text_is_truncated_first(max_length):
  tokenizer = with_separator(Word())
  room = max_length - 2
  ids, lengths, is_truncated = encoding.special_ids(
    tokenizer, PAIRS[1:], max_length
  )
  assert is_truncated.tolist() == [
    len(f'{first} {second}'.split()) > room for first, second in PAIRS[1:]
  ]
  starts = np.cumsum(lengths)[:-1]
  for pair, part in zip(PAIRS[1:], np.split(ids, starts), strict=True):
    first, second = (text.split() for text in pair)
    shorter, longer = sorted((first, second), key=len)
    kept = min(len(shorter), room // 2)
    del longer[room - kept :], shorter[kept:]
    words = [*first, '[SEP]', *second, '[SEP]']
    assert part.tolist() == list(map(tokenizer.token_to_id, words))
  assert tokenizer.truncation is None


def test_a_pair_of_empty_texts_has_no_tokens():
  ids, lengths, is_truncated = encoding.special_ids(
    with_separator(Word()), [('', ''), ('film', ' ')], 8
  )
  assert (lengths.tolist(), is_truncated.tolist()) == ([0, 3], [False] * 2)
  assert len(ids) == 3


@pytest.mark.parametrize('name', ['word', 'bpe', 'byte'])
def test_the_separator_is_the_last_id_and_no_text_has_it(name):
  tokenizer = with_separator(VOCABULARIES[name]())
  index = tokenizer.token_to_id('[SEP]')
  assert index == tokenizer.get_vocab_size() - 1
  ids, _ = encoding.token_ids(tokenizer, ['a [SEP] b'])
  assert index not in ids


def test_a_separator_that_is_not_the_last_id_is_one_line():
  tokenizer = with_separator(Word())
  tokenizer.add_tokens(['more'])
  with pytest.raises(UserError, match=r'config\.data\.vocabulary .*\[SEP\]'):
    add_separator(tokenizer)


def test_pairs_are_equal_if_they_differ_by_white_space():
  written = [('a', 'b c'), ('a ', 'b  c'), ('a b', 'd'), ('\x1fa', 'b c')]
  rows = gather({'train': [Row(p, 'x', 'f', 1) for p in written]})
  assert rows.hashes[0] == rows.hashes[1] == rows.hashes[3] != rows.hashes[2]
  (texts,) = rows.stream()
  assert [parted(text) for text in texts][:3] == written[:3]
  assert parted(texts[3]) == (' a', 'b c')


def pairs_config(tmp_path):
  rows = [
    f'{n % 2}\tthe film {n} is\tgood {"film" if n % 2 else "plot"} {n}'
    for n in range(40)
  ]
  (tmp_path / 'a.tsv').write_text('\n'.join(['label\ta\tb', *rows]) + '\n')
  config = make_small_config()
  config.data.source = 'text'
  config.data.dir = str(tmp_path)
  config.data.test_fraction = 0.2
  config.data.text.train = ('a.tsv',)
  config.data.text.text_columns = ('a', 'b')
  config.data.text.join = 'pair'
  return config


def decoded(loaded):
  tokenizer = tokenizers.Tokenizer.from_str(loaded.files['tokenizer.json'])
  train = loaded.splits['train']
  return [
    tokenizer.decode(train.tokens[start : start + length], False)
    for start, length in zip(train.starts, train.lengths, strict=True)
  ]


def test_a_run_reads_two_columns_as_pairs_and_counts_truncated_ones(
  tmp_path, capfd
):
  config = pairs_config(tmp_path)
  loaded = loading.load(from_config(config).data, '')
  assert all(
    text.startswith('the film ') and text.count('[SEP]') == 2
    for text in decoded(loaded)
  )
  assert loaded.vocabulary.size - 1 == loaded.splits['train'].tokens.max()
  for max_length in (9, 8, 4):
    config.data.max_length = max_length
    loaded = loading.load(from_config(config).data, '')
    assert loaded.splits['train'].lengths.max() == max_length
    lines = capfd.readouterr().err
    assert ('truncated' in lines) == (max_length < 9)
  config.data.text.join = 'space'
  loaded = loading.load(from_config(config).data, '')
  assert '[SEP]' not in loaded.files['tokenizer.json']


def test_lines_of_pairs_have_a_tab_between(tmp_path):
  text = Text.of(format='lines', join='pair', label_column='')
  (tmp_path / 'a').write_text('a b\tc\td\n\ne\tf\n')
  rows = list(text.read_file(str(tmp_path / 'a'), None, 'train'))
  assert [row.text for row in rows] == [('a b', 'c\td'), ('e', 'f')]
  (tmp_path / 'a').write_text('a\tb\nno tab\n')
  with pytest.raises(UserError, match=r'a row 2: .*no tab.*tab'):
    list(text.read_file(str(tmp_path / 'a'), None, 'train'))


@pytest.mark.parametrize(
  ('key', 'value'),
  [
    ('data.text.text_columns', ('a',)),
    ('data.text.text_columns', ('a', 'b', 'label')),
    ('task', 'masked_tokens'),
    ('data.max_length', 3),
  ],
)
def test_what_does_not_go_with_pairs_is_one_line(tmp_path, key, value):
  config = pairs_config(tmp_path)
  config.update_from_flattened_dict({key: value})
  with pytest.raises(UserError, match=rf'config\.{key} = .*pair'):
    from_config(config)


@pytest.mark.parametrize(
  ('name', 'content'),
  [('a.json', '{"a": "x y", "b": "z"}'), ('a.tsv', 'b\ta\nz\tx y\n')],
)
def test_rows_to_predict_are_pairs_of_the_columns(name, content):
  trained = Text.of(text_columns=('a', 'b'), join='pair', format='lines')
  options = input_rows.options_of(trained, name, {})
  file = io.BytesIO(content.encode())
  rows = readers.rows(options, name, options.text_columns, True, file)
  assert [options.text_of(texts or ()) for _, texts, _ in rows] == [
    ('x y', 'z')
  ]


class Twins(Dataset):
  """Rows that are pairs."""

  has_pairs = True

  def read(self, directory, seed):
    texts = [f'film {n}' for n in range(40)]
    rows = [
      Row((text, text if n % 2 else 'plot'), str(n % 2), 'made', n)
      for n, text in enumerate(texts)
    ]
    return {'train': rows[:20], 'validation': rows[20:30], 'test': rows[30:]}


class Unsaid(Twins):
  """Rows that are pairs, which it does not say."""

  has_pairs = False


class Single(Twins):
  """Rows that are no pairs, which it says."""

  def read(self, directory, seed):
    return {'train': [Row('film', 'good', 'made', 1)]}


@pytest.mark.parametrize('name', ['Unsaid', 'Single'])
def test_rows_that_are_not_what_their_class_says_are_one_line(name):
  config = make_small_config()
  config.data.source = f'{__name__}:{name}'
  with pytest.raises(UserError, match=rf'made row \d: .* of {name} say'):
    loading.load(from_config(config).data, '')


def test_a_data_set_of_ones_own_may_have_pairs():
  config = make_small_config()
  config.data.source = f'{__name__}:Twins'
  settings = from_config(config)
  loaded = loading.load(settings.data, '')
  assert decoded(loaded)[:2] == [
    'film 0 [SEP] plot [SEP]',
    'film 1 [SEP] film 1 [SEP]',
  ]
  assert settings.data.further().text_of(['a\tb']) == ('a', 'b')
