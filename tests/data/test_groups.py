"""Groups of a column, such as authors: never split, stratified, and said."""

import json
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.data import groups, loading, splits
from experiments.data.rows import Rows
from experiments.settings.settings import from_config


def drawn(rng, count, num_groups, num_labels):
  """Rows without texts; a few groups have most of them."""
  shares = rng.dirichlet(np.full(num_groups, 0.5))
  zeros = np.zeros(count, np.int64)
  return Rows(
    zeros, zeros, zeros, rng.integers(0, num_labels, count), zeros, zeros,
    list(map(str, range(num_labels))), ['f'], {'train': count},
    groups=rng.choice(num_groups, count, p=shares),
  )  # fmt: skip


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
  st.integers(20, 300),
  st.integers(6, 60),
  st.integers(1, 300),
  st.one_of(st.integers(2, 5), st.floats(0.01, 0.95)),
  st.integers(0, 2**31 - 1),
)
def test_no_group_is_split_and_sizes_are_as_asked_but_for_one_group(
  count, num_groups, num_labels, share, seed
):
  rows = drawn(np.random.default_rng(seed), count, num_groups, num_labels)
  chosen = np.arange(count // 10, count)
  sizes = np.bincount(rows.groups[chosen])
  num_folds = share if isinstance(share, int) else 0
  hypothesis.assume(np.count_nonzero(sizes) >= max(num_folds, 2))
  if num_folds:
    parts = [
      splits.fold(rows, chosen, share, n, seed, 'who') for n in range(share)
    ]
    held_out = [part for _, part in parts]
    assert sorted(np.concatenate(held_out)) == chosen.tolist()
  else:
    parts = [splits.hold_out(rows, chosen, share, seed, 'who')]
  for rest, part in parts:
    assert sorted([*rest, *part]) == chosen.tolist()
    assert not {*rows.groups[rest]} & {*rows.groups[part]}
    assert min(len(rest), len(part)) > 0
    asked = len(chosen) * (1 / num_folds if num_folds else share)
    most = sizes.max() * (1 - 1 / (num_folds or 2)) + 1e-6
    is_one = 1 in (len({*rows.groups[p]}) for p in (rest, part))
    assert abs(len(part) - asked) <= most or (is_one and not num_folds)


@pytest.mark.parametrize(
  ('num_groups', 'share'), [(12, 0.1), (12, 0.9), (20, 0.175), (9, 0.5)]
)
def test_groups_of_one_size_are_as_near_to_their_share_as_can_be(
  num_groups, share
):
  rows = drawn(np.random.default_rng(0), 10 * num_groups, 1, 2)
  rows.groups[:] = np.repeat(np.arange(num_groups), 10)
  chosen = np.arange(len(rows))
  for seed in range(20):
    _, part = splits.hold_out(rows, chosen, share, seed, 'who')
    assert abs(len(part) - share * len(rows)) <= 5


@pytest.mark.parametrize('seed', range(3))
def test_labels_have_their_shares_where_groups_are_small(seed):
  """Also where an author writes texts of one label alone."""
  rng = np.random.default_rng(seed)
  rows = drawn(rng, 4_000, 800, 1)
  of_group = rng.choice(3, 800, p=[0.7, 0.25, 0.05])
  rows.names[:] = 'abc'
  rows.labels[:] = of_group[rows.groups]
  whole = np.bincount(rows.labels) / 4_000
  chosen = np.arange(4_000)
  held_out = [
    splits.hold_out(rows, chosen, 0.1, s, 'who')[1] for s in (seed, seed + 1)
  ]
  assert held_out[0].tolist() != held_out[1].tolist()
  for part in [*held_out, splits.fold(rows, chosen, 5, 2, seed, 'who')[1]]:
    shares = np.bincount(rows.labels[part], minlength=3) / len(part)
    assert abs(shares - whole).max() < 0.02
    # And not the small groups alone.
    sizes = np.bincount(rows.groups)
    mean = np.mean(sizes[np.unique(rows.groups[part])])
    assert 0.6 < mean / sizes[sizes > 0].mean() < 1.6


def test_folds_of_groups_of_one_row_are_as_large_as_each_other():
  """Though few rows have the same label."""
  rows = drawn(np.random.default_rng(0), 37, 1, 9)
  rows.groups[:] = chosen = np.arange(37)
  for seed in range(60):
    parts = [splits.fold(rows, chosen, 3, n, seed, 'who')[1] for n in range(3)]
    assert max(map(len, parts)) - min(map(len, parts)) == 1


def test_a_seed_draws_groups_of_different_sizes():
  groups_of = np.repeat(np.arange(40), np.arange(40))
  rows = drawn(np.random.default_rng(0), len(groups_of), 1, 2)
  rows.groups[:] = groups_of
  chosen = np.arange(len(groups_of))
  parts = {
    splits.hold_out(rows, chosen, 0.2, seed, 'who')[1].tobytes()
    for seed in range(5)
  }
  assert len(parts) == 5


AUTHORS = [f'writer {n * n % 23}' for n in range(120)]


@pytest.fixture
def config(tmp_path):
  config = make_small_config()
  write(tmp_path / 'train.tsv', AUTHORS)
  config.data.source, config.data.dir = 'text', str(tmp_path)
  config.data.split_by = 'author'
  config.data.validation_fraction = 0.2
  return config


def write(path, authors):
  lines = [
    f'{author}\tword {n}\t{"xy"[n % 2]}\n' for n, author in enumerate(authors)
  ]
  path.write_text(''.join(['author\ttext\tlabel\n', *lines]))


def load(config, workdir=''):
  return loading.load(from_config(config).data, workdir)


def authors_of(data):
  return {
    split: {AUTHORS[n] for n in part if n < len(AUTHORS)}
    for split, part in data.indices.items()
  }


@pytest.mark.parametrize(
  'how', [{'test_fraction': 0.2}, {'num_folds': 3, 'fold': 1}]
)
def test_a_run_has_the_same_whole_groups_each_time(
  how, config, tmp_path, capsys, monkeypatch
):
  config.data.update(how)
  data = load(config)
  said = capsys.readouterr().err
  authors = authors_of(data)
  assert sum(map(len, authors.values())) == len({*AUTHORS})
  assert len(set.union(*authors.values())) == len({*AUTHORS})
  assert f"config.data.split_by = 'author': {len({*AUTHORS})} groups" in said
  assert 'the share of a label in a split differs from' in said
  # What evaluates or resumes it, from the cache or not, says nothing more.
  for name, content in data.files.items():
    (tmp_path / name).write_text(content)
  monkeypatch.setenv('SELFATTN_CACHE', str(tmp_path / 'cache'))
  for _ in range(2):
    again = load(config, str(tmp_path))
    assert authors_of(again) == authors
  assert capsys.readouterr().err == ''
  settings = from_config(config).data
  loading.check_unchanged(settings, [str(tmp_path)], loading.CLASSES)
  config.data.split_by = 'text'
  with pytest.raises(UserError, match='the data has changed'):
    load(config, str(tmp_path))


def test_files_of_test_stay_and_their_groups_in_train_are_counted(
  config, tmp_path, capsys
):
  of_test = [*AUTHORS[:9], *['new'] * 5]
  write(tmp_path / 'test.tsv', of_test)
  config.data.text.test = ('test.tsv',)
  data = load(config)
  assert len(data.splits['test']) == len(of_test)
  said = capsys.readouterr().err
  for split in ('train', 'validation'):
    count = sum(author in authors_of(data)[split] for author in of_test)
    assert count
    assert f'test texts of groups that are also in {split}: {count} of' in said
  # Of what was split: test was not.
  assert said.splitlines()[-1].endswith(('in validation)', 'in train)'))


@pytest.mark.parametrize(
  'content', ['text\tlabel\n', 'author\ttext\tlabel\n\t']
)
def test_files_that_are_not_split_need_no_groups(
  content, config, tmp_path, capsys
):
  (tmp_path / 'test.tsv').write_text(f'{content}a\tx\n')
  config.data.text.test = ('test.tsv',)
  data = load(config)
  assert data.rows.groups[data.indices['test']].tolist() == [-1]
  said = capsys.readouterr().err
  assert f'test texts without a group: 1 of 1 ({tmp_path}/test.tsv:1)' in said
  assert 'test texts of groups' not in said


def test_a_row_without_a_group_hides_no_others(config, tmp_path, capsys):
  rows = 'author\ttext\tlabel\nAnn\tb\tx\n\tc\tx\n'
  (tmp_path / 'test.tsv').write_text(rows)
  config.data.text.test = ('test.tsv',)
  write(tmp_path / 'train.tsv', ['Ann', 'Bob', 'Cy'] * 4)
  load(config)
  said = capsys.readouterr().err
  assert f'test texts without a group: 1 of 2 ({tmp_path}/test.tsv:2)' in said
  assert re.search('test texts of groups that are also in .*: 1 of 2', said)


def test_white_space_around_a_value_is_no_part_of_it(config, tmp_path):
  spaced = [f'{author}{" " * (n % 3)}' for n, author in enumerate(AUTHORS)]
  write(tmp_path / 'train.tsv', spaced)
  config.data.test_fraction = 0.2
  assert len({*load(config).rows.groups}) == len({*AUTHORS})


@pytest.mark.parametrize(
  ('data', 'said'),
  [
    ({'source': 'word_order', 'dir': ''}, "'author' must be 'text' or 'sent"),
    ({'source': 'stream'}, "'author' must be 'text' or 'sentence' for data"),
    ({'text.format': 'lines'}, "'author' must be 'text' or 'sentence' for"),
    ({'text.format': 'conll'}, "'author' must be 'text' or 'sentence' for"),
    ({'text.format': 'class_folders'}, 'must be'),
    ({'split_by': 'who'}, "no column 'who' in .*config.data.split_by"),
    (
      {'num_folds': 13},
      '13 .* of 120 texts need as many groups, and the texts have 12',
    ),
  ],
)
def test_what_cannot_be_split_is_one_line(data, said, config):
  with config.unlocked():
    config.data.update_from_flattened_dict(data)
  with pytest.raises(UserError, match=said) as error:
    load(config)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('value', [None, '', ' ', ['a', 'b'], {}])
def test_each_row_has_one_group(value, config, tmp_path):
  records = [
    {'author': author, 'text': f'word {n}', 'label': 'xy'[n % 2]}
    for n, author in enumerate(AUTHORS)
  ]
  config.data.text.format, config.data.text.train = 'json', ('train.json',)
  path = tmp_path / 'train.json'
  path.write_text('\n'.join(map(json.dumps, records)))
  config.data.test_fraction = 0.2
  assert len(load(config).splits) == 3
  records[6]['author'] = value
  path.write_text('\n'.join(map(json.dumps, records)))
  with pytest.raises(UserError, match=r'row 7: .*split_by') as error:
    load(config)
  assert "column 'author' is" in str(error.value)


def test_other_rows_than_those_of_the_files_are_refused(
  config, monkeypatch, tmp_path
):
  monkeypatch.setenv('SELFATTN_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(groups, '_values', lambda *_: iter([(1, 'a'), (3, 'b')]))
  config.data.test_fraction = 0.2
  with pytest.raises(UserError, match='the rows of the files as they are'):
    load(config)
