"""Labels of tokens: how they are read, and what is refused."""

import json
import re
import tracemalloc

import numpy as np
import pytest
import tokenizers

from experiments.command.errors import UserError
from experiments.data import encoding, loading
from experiments.data.batches import Examples
from experiments.data.labels import LabelFacts
from experiments.data.text_files import Text
from experiments.data.token_labels import TokenLabels, of_tokens, words_of
from experiments.learning.classify_tokens import ClassifyTokens
from experiments.settings.settings import from_config

ROWS = ['text\tlabel', 'the cat saw it\t_ B _ A', 'a-b c\tA _', 'no\t_']


def settings_of(config, folder, lines, vocabulary):
  (folder / 'rows.tsv').write_text('\n'.join(lines))
  config.task = 'classify_tokens'
  config.data.source, config.data.dir = 'text', str(folder)
  config.data.vocabulary = vocabulary
  for split in ('train', 'validation', 'test'):
    setattr(config.data.text, split, ('rows.tsv',))
  return from_config(config).data


def test_labels_are_a_token_a_class_and_a_word(small_config, tmp_path):
  words = 'word(split_punctuation=False)'
  settings = settings_of(small_config, tmp_path, ROWS, words)
  loaded = loading.load(settings, '', labels=TokenLabels())
  assert loaded.label_facts.names == ('A', 'B')
  empty = [-1, -1, -1]
  np.testing.assert_array_equal(
    loaded.splits['test'].labels,
    [[[1, 1, 1], [3, 0, 3]], [[0, 0, 0], empty], [empty, empty]],
  )


@pytest.mark.parametrize('vocabulary', ['word', 'bpe(size=300)', 'byte'])
def test_the_first_token_of_a_word_has_its_label(
  small_config, tmp_path, vocabulary
):
  settings = settings_of(small_config, tmp_path, ROWS, vocabulary)
  loaded = loading.load(settings, '', labels=TokenLabels())
  test, names = loaded.splits['test'], loaded.label_facts.names
  tokenizer = tokenizers.Tokenizer.from_str(loaded.files['tokenizer.json'])
  for row, line in enumerate(ROWS[1:]):
    text, labels = line.split('\t')
    begins = [match.start() for match in re.finditer(r'\S+', text)]
    words = zip(begins, labels.split(), strict=True)
    want = {begin: name for begin, name in words if name != '_'}
    found = {}
    for index, name, _ in test.labels[row]:
      if index >= 0:
        # A token of byte-level BPE may begin with the space before.
        begin, end = tokenizer.encode(text).offsets[index]
        found[begin + (text[begin:end][0] == ' ')] = names[name]
    assert found == want


def test_a_word_that_has_no_token_has_no_label(small_config, tmp_path):
  """A normaliser leaves out what is not seen; no other word has its label."""
  rows = ['text\tlabel', 'a \u200b b\tA B A', 'a\tB', 'b\u00a0c\tA']
  settings = settings_of(small_config, tmp_path, rows, 'word')
  loaded = loading.load(settings, '', labels=TokenLabels())
  tokenizer = tokenizers.Tokenizer.from_str(loaded.files['tokenizer.json'])
  tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
  texts = ['a \u200b b', '', '\u200b a']
  begun = encoding.words_begun(tokenizer, texts, 9)
  assert [of_text.tolist() for of_text in begun] == [[0, 2], [], [1]]
  labels = of_tokens(
    [np.array([[0, 5], [1, 6], [2, 7]][:count]) for count in (3, 1, 2)],
    np.concatenate(begun),
    np.array([0, 2, 2]),
    np.array([2, 0, 1]),
  )
  none = [-1] * 3
  # No text has more labels than tokens.
  assert labels.tolist() == [
    [[0, 5, 0], [1, 7, 2]], [none] * 2, [[0, 6, 1], none],
  ]  # fmt: skip


def test_words_that_are_truncated_have_no_label(small_config, tmp_path):
  rows = ['text\tlabel', 'a-b c d e\tA B A B', 'a\tB', 'b\tA']
  small_config.data.max_length = 4
  settings = settings_of(small_config, tmp_path, rows, 'word')
  labels = (
    loading.load(settings, '', labels=TokenLabels()).splits['test'].labels
  )
  np.testing.assert_array_equal(labels[0], [[0, 0, 0], [3, 1, 1]])


def test_a_text_of_more_words_than_labels_is_one_line(small_config, tmp_path):
  rows = [*ROWS, 'one more\tA']
  settings = settings_of(small_config, tmp_path, rows, 'word')
  said = r'rows.tsv row 4: 1 labels of words must be 2, one for each word'
  with pytest.raises(UserError, match=said):
    loading.load(settings, '', labels=TokenLabels())


COLUMNS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


@pytest.mark.parametrize(
  ('format', 'labels'),
  [('conll', ['B-ORG O', 'B-PER I-PER']),
   ('conll(label=1)', ['NNP VBZ', 'NNP NNP'])],
)  # fmt: skip
def test_columns_are_read_with_a_text_between_blank_lines(
  format, labels, small_config, tmp_path
):
  (tmp_path / 'rows.txt').write_text(COLUMNS)
  text = Text.of(format=format, train='rows.txt')
  rows = list(text.read(str(tmp_path), 0)['train'])
  assert [row.text for row in rows] == ['EU rejects', 'Peter Blackburn']
  assert [row.label for row in rows] == labels


UNIVERSAL = """# sent_id = 1
# text = Don't go

1-2\tDon't\t_\t_
1\tDo\tdo\tAUX
2\tn't\tnot\tPART
2.1\tyou\tyou\tPRON
3\tgo\tgo\tVERB
"""


@pytest.mark.parametrize(
  ('format', 'content'),
  [
    ('conllu', UNIVERSAL.replace('\n\n', '\n')),
    ('conllu', UNIVERSAL),
    ('conll(comments=True)', "# id 7\nDo AUX\nn't PART\ngo VERB\n"),
  ],
)
def test_comments_ranges_and_empty_nodes_are_no_words(
  format, content, tmp_path
):
  (tmp_path / 'rows.txt').write_text(content)
  text = Text.of(format=format, train='rows.txt')
  (row,) = text.read(str(tmp_path), 0)['train']
  assert (row.text, row.label) == ("Do n't go", 'AUX PART VERB')


@pytest.mark.parametrize(
  ('format', 'content', 'words'),
  [
    ('conllu', '1\t10 000\t_\tNUM\n2\tkm\t_\tNOUN', ['10\u00a0000', 'km']),
    ('conll', '\u00a0\tO\nis\tO', ['\u00a0', 'is']),
    ('conll', 'is O\n\u00a0 O', ['is', '\u00a0']),
    ('conll', 'is\u00a0 O\n\u2028 O', ['is\u00a0', '\u2028']),
  ],
)
def test_a_token_is_a_word_also_with_spaces(format, content, words, tmp_path):
  (tmp_path / 'rows.txt').write_text(content)
  text = Text.of(format=format, train='rows.txt')
  (row,) = text.read(str(tmp_path), 0)['train']
  assert words_of(row.text) == words
  assert len(words_of(row.label)) == len(words)


@pytest.mark.parametrize(
  ('lines', 'said'),
  [
    ('EU', "'EU' of a token has 1 columns in place of 2"),
    ('EU NNP\nrejects', "'rejects' of a token has 1 columns in place of 2"),
    ('EU NNP B-ORG\nmet VBD\nus PRP O', "'met VBD' .* 2 .* place of 3"),
    ('# text = EU met\nEU NNP', "'# text = EU met' .*comments=True"),
    ('New York\tB-LOC', "'New York B-LOC' .* has a space"),
  ],
)
def test_a_line_that_is_not_as_the_others_is_refused(lines, said, tmp_path):
  (tmp_path / 'rows.txt').write_text(lines)
  text = Text.of(format='conll', train='rows.txt')
  with pytest.raises(UserError, match=f'rows.txt row 1: the line {said}'):
    list(text.read(str(tmp_path), 0)['train'])


def test_a_class_that_train_lacks_is_one_line(small_config, tmp_path):
  settings = settings_of(small_config, tmp_path, ROWS, 'byte')
  (tmp_path / 'more.tsv').write_text('text\tlabel\nno\tC\n')
  text = small_config.data.text
  text.test = ('more.tsv',)
  settings = from_config(small_config).data
  with pytest.raises(UserError, match="label 'C' is not '_' or one of"):
    loading.load(settings, '', labels=TokenLabels())


def test_a_list_is_no_label_of_tokens(small_config, tmp_path):
  settings_of(small_config, tmp_path, [], 'byte')
  rows = [{'text': 'Ada Rome', 'label': ['PER', 'LOC']}] * 3
  (tmp_path / 'rows.tsv').write_text('\n'.join(map(json.dumps, rows)))
  small_config.data.text.format = 'json'
  settings = from_config(small_config).data
  with pytest.raises(UserError, match=r'one string, .* not the list \["LOC"'):
    loading.load(settings, '', labels=TokenLabels())
  small_config.data.text.label_separator = ' '
  with pytest.raises(UserError, match=r'label_separator = .* must be empty'):
    from_config(small_config)
  small_config.data.text.label_separator = ''
  small_config.data.text.label_depth = 1
  with pytest.raises(UserError, match=r'label_depth = 1 must be 0 for'):
    from_config(small_config)


def test_a_text_that_begins_with_a_comment_is_said(tmp_path, capfd):
  (tmp_path / 'rows.txt').write_text('# id 7 domain=train\nEU _ _ O\n\n' * 2)
  list(
    Text.of(format='conll', train='rows.txt').read(str(tmp_path), 0)['train']
  )
  assert capfd.readouterr().err.count("the line '# id 7 domain=train'") == 1


def test_scores_are_of_words_that_are_read():
  """Labels of a split may be wider than what it is padded to."""
  task = ClassifyTokens(facts=LabelFacts(('B', 'I', 'O')))
  labels = np.full((2, 5, 3), -1)
  labels[0, :2] = [[0, 0, 0], [1, 1, 1]]
  examples = Examples(np.zeros(9, int), np.arange(2), np.array([2, 1]), labels)
  counts = np.array([2.0, 0.0])
  outputs = counts, counts, counts, np.array([[1, 2], [0, 0]])
  report = task.report(outputs, outputs, examples)
  assert report.values['confusion'] == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
  assert task.scores(outputs, labels)['span_f1'] == 1.0


def test_a_word_without_a_label_or_a_token_ends_a_span(small_config, tmp_path):
  """As in what predict answers, where such a word has no class."""
  rows = ['text\tlabel', 'a b c\tB-P _ I-P', 'a \u00a0 c\tB-P I-P I-P']
  rows += ['a b c\tB-P I-P O']
  settings = settings_of(small_config, tmp_path, rows, 'word')
  loaded = loading.load(settings, '', labels=TokenLabels())
  test, ones = loaded.splits['test'], np.ones(3)
  task = ClassifyTokens(facts=loaded.label_facts)
  predicted = test.labels[..., 1] + 1
  predicted[0, 1] = 1 + task.facts.names.index('O')
  scores = task.scores((ones, ones, ones, predicted), test.labels)
  # Four of five spans.
  assert scores['span_f1'] == pytest.approx(8 / 9)


def test_values_take_as_much_memory_as_there_are_labels():
  """A long text does not make those of others as long."""
  strings = ['A B', *['A'] * 99, ' '.join('AB' * 50_000)]
  tracemalloc.start()
  values, _ = TokenLabels().values(strings, ['A', 'B'])
  kept, _ = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert kept < 2_000_000
  assert list(map(len, values)) == [2, *[1] * 99, 100_000]


def test_accuracy_by_length_is_of_texts_with_labels():
  task = ClassifyTokens(facts=LabelFacts(('a', 'b')))
  counts = np.array([2.0, 0.0, 1.0])
  labels = np.zeros((3, 2, 2), int)
  examples = Examples(
    np.zeros(9, int), np.arange(3), np.array([5, 7, 5]), labels
  )
  predicted = np.array([[1, 1], [0, 0], [2, 0]])
  outputs = counts, np.array([2.0, 0.0, 0.0]), counts, predicted
  report = task.report(outputs, outputs, examples)
  assert report.values['mean_over_lengths'] == 0.5
  assert [r['count'] for r in report.values['by_length']] == [2]
  outputs = (*(np.zeros(3),) * 3, predicted)
  assert not task.report(outputs, outputs, examples).values


@pytest.mark.parametrize(
  ('task', 'source', 'said'),
  [
    ('classify', 'mqar', 'labels of tokens .*such as classify_tokens'),
    ('multilabel', 'algorithmic(task=bucket_sort)', 'labels of tokens'),
    ('classify_tokens', 'word_order', 'labels of texts .*such as classify'),
    ('classify_tokens', 'algorithmic', 'labels of texts'),
  ],
)
def test_a_task_that_reads_other_labels_is_refused(
  task, source, said, small_config
):
  small_config.task, small_config.data.source = task, source
  if task == 'multilabel':
    small_config.checkpoint.best_metric = 'macro_f1'
  with pytest.raises(UserError, match=f'config.task = .*{said}'):
    from_config(small_config)
