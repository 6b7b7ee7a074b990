"""Vocabularies by the tokenizers library have the requested properties."""

import sys
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers
from conftest import make_small_config

from experiments.command import modules
from experiments.command.errors import UserError
from experiments.data import encoding, loading
from experiments.data.vocabularies import (
  PAD,
  UNK,
  VOCABULARIES,
  Byte,
  BytePair,
  Vocabulary,
  Word,
)
from experiments.settings.settings import from_config

TEXTS = ['The film is good .', 'the plot is bad', 'Good plot , good film']


TRAINED = [n for n, v in VOCABULARIES.items() if not v.is_published]


@pytest.mark.parametrize('name', TRAINED)
def test_special_ids_and_range(name):
  tokenizer = VOCABULARIES[name]().train(TEXTS)
  assert tokenizer.to_str() == VOCABULARIES[name]().train(TEXTS).to_str()
  assert tokenizer.token_to_id('[PAD]') == PAD == 0
  assert tokenizer.token_to_id('[UNK]') == UNK == 1
  ids, _ = encoding.token_ids(tokenizer, [*TEXTS, 'zebra \u00e9 \U0001f600'])
  assert ids.max() < tokenizer.get_vocab_size()


def test_words_are_counted_lowered_and_bounded():
  tokens = set(Word().train(TEXTS).get_vocab())
  assert {'the', 'good', '.', ','} < tokens
  assert 'Good' not in tokens
  assert 'Good' in Word(lowercase=False).train(TEXTS).get_vocab()
  frequent = set(Word(min_count=3).train(TEXTS).get_vocab())
  assert frequent == {'[PAD]', '[UNK]', 'good'}
  assert Word(size=4).train(TEXTS).get_vocab_size() == 4
  encoded = Word().train(TEXTS).encode('the zebra')
  assert encoded.tokens == ['the', '[UNK]']
  assert encoded.ids[1] == UNK


@pytest.mark.parametrize('vocabulary', [Word(), BytePair()])
def test_a_word_is_the_same_in_every_unicode_normal_form(vocabulary):
  composed, decomposed = 'caf\u00e9', 'cafe\u0301'
  tokenizer = vocabulary.train([composed] * 5)
  assert tokenizer.encode(decomposed).ids == tokenizer.encode(composed).ids


def test_words_of_tokenised_texts_keep_their_punctuation():
  text = "it does n't bore , well-made -lrb- 3-d -rrb-"
  splits = Word().train([text]).encode(text).tokens
  assert splits[:6] == ['it', 'does', 'n', "'", 't', 'bore']
  whole = Word(split_punctuation=False).train([text]).encode(text).tokens
  assert whole == text.split()


def test_names_of_special_tokens_in_a_text_are_no_words():
  vocabulary = Word(lowercase=False, split_punctuation=False)
  tokenizer = vocabulary.train(['a [UNK] b [PAD]'])
  tokens = [tokenizer.id_to_token(index) for index in range(4)]
  assert tokens == ['[PAD]', '[UNK]', 'a', 'b']


TOKENIZERS = {
  'bpe': BytePair(lowercase=False, size=300).train(TEXTS),
  'byte': Byte().train(TEXTS),
}


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.text(st.characters(exclude_categories=['Cs'])))
@hypothesis.example('not [PAD] but [UNK]')
def test_bytes_hold_any_text(text):
  for name, tokenizer in TOKENIZERS.items():
    ids = encoding.token_ids(tokenizer, [text])[0].tolist()
    assert not {PAD, UNK} & {*ids}
    if name == 'byte':
      # A space is added before a text that does not begin with one.
      assert len(ids) - len(text.encode()) in (0, 1)
    else:
      composed = unicodedata.normalize('NFC', text)
      assert len(ids) <= len(composed.encode()) + 1


def test_encode_truncates_long_texts_and_keeps_empty_ones(caplog):
  tokenizer = Word().train(TEXTS)
  texts = ['the plot is bad', '', 'film']
  examples, is_truncated = encoding.encode(tokenizer, texts, 2)
  assert is_truncated.tolist() == [True, False, False]
  with caplog.at_level('INFO'):
    encoding.log_truncated(is_truncated[1:], 2, 'train texts')
    assert not caplog.messages
    encoding.log_truncated(is_truncated, 2, 'train texts')
  (said,) = caplog.messages
  assert said.startswith('1 of 3 train texts are truncated to 2 tokens')
  assert examples.lengths.tolist() == [2, 0, 1]
  batch = examples.batch(np.array([2, 1, 0]), 4, 3)
  assert batch.lengths.tolist() == [1, 0, 2, 0]
  ids = {word: tokenizer.token_to_id(word) for word in ('the', 'plot', 'film')}
  assert batch.tokens.tolist() == [
    [ids['film'], 0, 0],
    [0, 0, 0],
    [ids['the'], ids['plot'], 0],
    [0, 0, 0],
  ]


@pytest.mark.parametrize(
  ('vocabulary', 'option'),
  [
    (Word(size=2), 'size = 2'),
    (Word(min_count=0), 'min_count = 0'),
    (BytePair(size=257), 'size = 257'),
  ],
)
def test_sizes_without_room_are_refused(vocabulary, option):
  with pytest.raises(ValueError, match=option):
    vocabulary.check()


def test_a_corrupt_vocabulary_is_refused(tmp_path):
  text = Word().train(TEXTS).to_str()
  (tmp_path / 'tokenizer.json').write_text(text[: len(text) // 2])
  with pytest.raises(UserError, match='is not a vocabulary'):
    encoding.read_tokenizer(str(tmp_path))


def test_a_vocabulary_of_other_first_ids_is_refused(tmp_path, monkeypatch):
  (tmp_path / 'bare.py').write_text("""import dataclasses
import tokenizers
from experiments.data.contract import Tokenization

@dataclasses.dataclass(frozen=True)
class Bare(Tokenization):
  def train(self, texts):
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0, 'b': 1}))
""")
  monkeypatch.setattr(modules, '_folders', [str(tmp_path)])
  monkeypatch.setattr(sys, 'path', list(sys.path))
  config = make_small_config()
  config.data.vocabulary = 'bare:Bare'
  with pytest.raises(UserError, match=r"vocabulary = bare:Bare: .*'a', 'b'"):
    loading.load(from_config(config).data, '')


def test_a_published_tokenizer_keeps_its_last_token_in_truncated_texts(
  published_bert,
):
  tokenizer = VOCABULARIES['published'](path=published_bert).train(())
  text = 'the script looked dull but the idea felt fresh'
  examples, is_truncated = encoding.encode(tokenizer, [text, 'the'], 5)
  assert is_truncated.tolist() == [True, False]
  rows = [
    examples.tokens[start : start + length].tolist()
    for start, length in zip(examples.starts, examples.lengths, strict=True)
  ]
  first = [tokenizer.token_to_id(word) for word in text.split()[:3]]
  assert rows == [[1, *first, 2], [1, tokenizer.token_to_id('the'), 2]]


def test_pairs_are_as_a_published_tokenizer_writes_them(published_bert):
  tokenizer = VOCABULARIES['published'](path=published_bert).train(())
  examples, _ = encoding.encode(tokenizer, [('the idea', 'the script')], 9)
  ids = [tokenizer.token_to_id(word) for word in ('the', 'idea', 'script')]
  the, idea, script = ids
  assert examples.tokens[:-1].tolist() == [1, the, idea, 2, the, script, 2]
  vocabulary = Vocabulary.of(tokenizer)
  assert (vocabulary.separator, vocabulary.mask) == (2, 4)
  assert vocabulary.special == (0, 1, 2, 3, 4)


def test_a_length_without_room_for_a_token_is_one_line(published_bert):
  tokenizer = VOCABULARIES['published'](path=published_bert).train(())
  with pytest.raises(UserError, match='max_length = 2 must be at least 3'):
    encoding.encode(tokenizer, ['the idea'], 2)


def test_special_tokens_are_known_whatever_their_order(published_bert):
  text = VOCABULARIES['published'](path=published_bert).train(()).to_str()
  for name in ('[UNK]', '[CLS]'):
    text = text.replace(f'"{name}"', f'"<{name}>"')
  text = text.replace('"<[UNK]>"', '"[CLS]"').replace('"<[CLS]>"', '"[UNK]"')
  vocabulary = Vocabulary.of(tokenizers.Tokenizer.from_str(text))
  assert vocabulary.tokens[:2] == ('[PAD]', '[UNK]')
  assert vocabulary.mask == 4
  assert vocabulary.special == (0, 1, 2, 3, 4)
