"""Word vectors of GloVe, word2vec and fastText files."""

import codecs
import gzip
import lzma

import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.data import encoding, vectors, vocabularies

IDS = {'[PAD]': 0, '[UNK]': 1, 'the': 2, 'cat': 3, '. .': 4, 'Ünïcode': 5}
LINES = 'the 1 2 3\ndog 4 5 6\n. . 7 8 9\nÜnïcode -1e-1 0.5 0\nthe 0 0 0\n'


@pytest.mark.parametrize('header', ['', '5 3\n'])
@pytest.mark.parametrize('ending', ['', '.gz'])
@pytest.mark.parametrize('end_of_line', ['\n', '\r\n', ' \n', '\n\n'])
def test_words_of_the_vocabulary_are_read(
  tmp_path, header, ending, end_of_line
):
  content = (header + LINES).replace('\n', end_of_line).encode()
  path = tmp_path / f'vectors.txt{ending}'
  content = codecs.BOM_UTF8 + content.replace(b' 2 ', b'  2 ')
  path.write_bytes(gzip.compress(content) if ending else content)
  ids, values = vectors.File(path=str(path)).read(IDS, 3)
  assert ids.tolist() == [2, 4, 5]
  expected = [[1, 2, 3], [7, 8, 9], [-0.1, 0.5, 0]]
  np.testing.assert_array_equal(values, np.array(expected, np.float32))


@pytest.mark.parametrize(
  ('content', 'dim', 'message'),
  [
    (LINES, 4, 'row 1: .* 4 finite .*config.model.embed_dim'),
    (LINES, 2, 'no vector of 2 numbers .*config.model.embed_dim'),
    ('the 1 2 x\n', 3, 'row 1: .* 3 finite'),
    ('the 1 2 3\ncat 1 nan 3\n', 3, 'row 2: .*finite'),
    ('the 1 2 3\ncat 1 2\n', 3, 'row 2: .* 3 finite'),
    ('dog 1 2 3\n', 3, 'no vector of 3 numbers'),
    ('', 3, 'no vector of 3 numbers'),
  ],
)
def test_what_is_no_file_of_vectors_is_one_line(
  tmp_path, content, dim, message
):
  path = tmp_path / 'vectors.txt'
  path.write_text(content)
  with pytest.raises(UserError, match=message):
    vectors.File(path=str(path)).read(IDS, dim)


def test_a_missing_or_truncated_file_is_one_line(tmp_path):
  path = tmp_path / 'vectors.txt.gz'
  with pytest.raises(UserError, match='No such file'):
    vectors.File(path=str(path)).read(IDS, 3)
  path.write_bytes(gzip.compress(LINES.encode())[:-10])
  with pytest.raises(UserError, match='vectors'):
    vectors.File(path=str(path)).read(IDS, 3)
  damaged = tmp_path / 'vectors.txt.xz'
  damaged.write_bytes(lzma.compress(LINES.encode())[:-40] + bytes(40))
  with pytest.raises(UserError, match=r'vectors\.txt\.xz: '):
    vectors.File(path=str(damaged)).read(IDS, 3)


def test_vectors_are_of_words_and_not_of_pieces_inside():
  texts = ['cat concat café'] * 5
  tokenizer = vocabularies.BytePair(size=300, min_count=1).train(texts)
  words, ids = encoding.words(tokenizer), tokenizer.get_vocab()
  assert words['cat'] == ids['Ġcat']
  assert 'café' in words
  assert 'a' not in words
  assert encoding.words(vocabularies.Byte().train([])) == {}
