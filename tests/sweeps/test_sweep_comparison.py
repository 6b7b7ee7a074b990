"""Comparison of settings: ranks by validation, over seeds, with intervals."""

import numpy as np
import pytest
import scipy.stats
from conftest import make_small_config

from experiments.command.errors import UserError
from experiments.learning.classify import Classify
from experiments.sweeps import comparison, names, plan, results, tables

RATE, POSITION = 'optimizer.learning_rate', 'model.position'


def compared(
  tmp_path,
  scores,
  key=RATE,
  metric='',
  baseline='',
  over='seed',
  best_metric='accuracy',
):
  """Compares {value: [(validation, test) of each seed]}; None: not done."""
  base = make_small_config()
  base.checkpoint.best_metric = best_metric
  trials, rows = [], []
  for value, pairs in scores.items():
    for seed, pair in enumerate(pairs):
      trials.append({key: value, over: seed})
      validation, test = pair or (None, None)
      status = 'DONE' if pair else 'PENDING'
      row = {'trial': len(rows), 'name': str(len(rows)), 'status': status}
      for name in Classify.metrics:
        row |= {
          f'best/validation/{name}': validation,
          f'best/test/{name}': test,
        }
      rows.append(row)
  specs = plan.make(base.to_dict(), trials, str(tmp_path / 'sweep'))
  found = comparison.compare(rows, specs, metric, baseline)
  return found, results.best_run(rows, specs, found.metric)


def of_test(*values):
  return [(value, value) for value in values]


def settings(found):
  return [entry['setting'].partition('=')[2] for entry in found.table]


def test_scores_of_different_tasks_are_not_ranked(tmp_path):
  trials = [{'task': name} for name in ('classify', 'masked_tokens')]
  base = make_small_config().to_dict()
  specs = plan.make(base, trials, str(tmp_path / 'sweep'))
  with pytest.raises(UserError, match='is classify, masked_tokens: scores of'):
    comparison.check(specs, 'accuracy', '')
  comparison.check(specs[1:], 'accuracy', '')


def test_settings_are_ranked_by_the_mean_on_validation(tmp_path):
  found, run = compared(
    tmp_path,
    {
      0.1: [(0.95, 0.91), (0.61, 0.93)],  # the luckiest run, the best on test
      0.2: [(0.84, 0.72), (0.86, 0.74)],
      0.3: [(0.70, 0.80), (0.71, 0.81)],
    },
  )
  assert settings(found) == ['0.2', '0.1', '0.3']
  best = found.table[0]
  assert best['validation']['mean'] == pytest.approx(0.85)
  assert best['test']['mean'] == pytest.approx(0.73)
  assert best['test']['values'] == {'0': [0.72], '1': [0.74]}
  assert (run['trial'], run['validation'], run['test']) == (0, 0.95, 0.91)
  assert (run[RATE], run['seed']) == (0.1, 0)


def test_tasks_whose_scores_are_of_the_same_thing_are_compared(tmp_path):
  scores = {'classify': [(0.5, 0.4)], 'classify(focal=2.0)': [(0.6, 0.5)]}
  found, _ = compared(tmp_path, scores, key='task')
  assert [row['task'] for row in found.table] == [
    'classify(focal=2)',
    'classify',
  ]
  with pytest.raises(UserError, match='make one sweep per task'):
    compared(tmp_path, scores | {'masked_tokens': [(0.9, 0.9)]}, key='task')


def test_losses_of_the_next_token_are_compared_over_offsets(tmp_path):
  base = make_small_config()
  base.model.encoder = 'attention(causal=True)'
  trials = [{'task': f'next_token(offsets={n})'} for n in (1, 2, 3)]
  specs = plan.make(base.to_dict(), trials, str(tmp_path / 'sweep'))
  assert {'loss', 'loss_2', 'loss_3'} <= comparison.metrics(specs).keys()
  trials.append({'task': 'next_token(tied=False)'})
  specs = plan.make(base.to_dict(), trials, str(tmp_path / 'other'))
  with pytest.raises(UserError, match='make one sweep per task'):
    comparison.metrics(specs)


def test_the_metric_and_its_direction_are_those_of_checkpoints(
  tmp_path,
):
  scores = {0.1: [(0.5, 0.4)], 0.2: [(0.3, 0.6)]}
  found, run = compared(tmp_path, scores, best_metric='loss')
  assert (found.metric, settings(found)) == ('loss', ['0.2', '0.1'])
  assert run['trial'] == 1
  losses = {0.1: of_test(0.7, 0.6, 0.6), 0.2: of_test(0.5, 0.401, 0.4)}
  found, _ = compared(tmp_path, losses, best_metric='loss')
  assert 'loss on test -0.1997 ± 0.0014, better' in tables.conclusion(found)
  found, _ = compared(tmp_path, scores, best_metric='loss', metric='accuracy')
  assert settings(found) == ['0.1', '0.2']
  with pytest.raises(UserError, match=r"--metric = 'acc' .* mean accuracy"):
    compared(tmp_path, scores, metric='acc')


def test_incomplete_settings_rank_behind_complete_ones(tmp_path):
  found, _ = compared(
    tmp_path,
    {
      0.1: [None, (0.9, 0.9)],
      0.2: [(0.7, 0.7), (0.8, 0.8)],
      0.3: [None, None],
    },
  )
  assert settings(found) == ['0.2', '0.1', '0.3']
  assert [row[1] for row in tables.cells(found)[1]] == [
    '2',
    '1 of 2',
    '0 of 2',
  ]


@pytest.mark.parametrize(
  ('key', 'scores', 'baseline', 'expected'),
  [
    (POSITION, {'t5': 0.8, 'none': 0.7, 'shaw': 0.9}, '', 'none'),
    (POSITION, {'t5': 0.8, 'shaw': 0.9}, '', 't5'),
    (POSITION, {'t5': 0.8, 'none': 0.7}, 't5', 't5'),
    (RATE, {0.3: 0.8, 0.1: 0.9}, '', 'learning_rate=0.3'),
    (RATE, {0.3: 0.8}, '', None),
    (POSITION, {'none': None, 't5': 0.8, 'shaw': 0.9}, '', 't5'),
  ],
)
def test_differences_are_to_no_positions_or_to_the_first_setting(
  key, scores, baseline, expected, tmp_path
):
  scores = {k: [score and (score, score)] for k, score in scores.items()}
  found, _ = compared(tmp_path, scores, key=key, baseline=baseline)
  assert found.baseline == expected
  others = [e for e in found.table if e['setting'] != found.baseline]
  assert all('difference' in e for e in others if expected and e['n'])


@pytest.mark.parametrize(
  ('first', 'second', 'over', 'said'),
  [
    (
      of_test(0.5, 0.5, 0.5), of_test(0.57, 0.71, 0.64), 'seed',
      '+0.1400 ± 0.1739, no significant difference with 3 seeds',
    ),
    (
      of_test(0.5, 0.6, 0.7), of_test(0.8, 0.9, 0.98), 'data.seed',
      '+0.2933 ± 0.0287, better with 3 data seeds',
    ),
    (
      of_test(0.5, 0.5, 0.5), of_test(0.9, 0.9, 0.9), 'seed',
      '+0.4000 ± ?, no interval from the same difference in 3 seeds',
    ),
    (
      of_test(0.1, 0.7, 0.2), of_test(0.1, 0.7, 0.2), 'seed',
      '+0.0000 ± ?, equal in 3 seeds',
    ),
    (
      of_test(0.5), of_test(0.9), 'seed',
      '+0.4000, no interval with 1 seed (3 are needed)',
    ),
    (
      of_test(0.5, 0.5), of_test(0.57, 0.71), 'seed',
      '+0.1400, no interval with 2 seeds (3 are needed)',
    ),
    # The best is the baseline: the second best is compared with it.
    (
      of_test(0.9, 0.91, 0.93), of_test(0.5, 0.52, 0.53), 'seed',
      '-0.3967 ± 0.0143, worse with 3 seeds',
    ),
  ],
)  # fmt: skip
def test_a_sentence_says_what_the_interval_means(
  first, second, over, said, tmp_path
):
  found, _ = compared(tmp_path, {0.1: first, 0.2: second}, over=over)
  settings = 'learning_rate=0.2 against learning_rate=0.1'
  expected = f'{settings}: accuracy on test {said}'
  assert tables.conclusion(found) == expected


def of_folds(tmp_path, count):
  """(config, trials) of two rates, and of as many folds as seeds."""
  base = make_small_config()
  base.data.source, base.data.dir = 'text', str(tmp_path)
  base.data.num_folds = count
  return base.to_dict(), [
    {RATE: rate, 'data.fold': fold, 'seed': seed}
    for rate in (0.1, 0.2)
    for fold in range(count)
    for seed in range(count)
  ]


def test_seeds_of_all_folds_are_repetitions_of_one_setting(tmp_path):
  base, trials = of_folds(tmp_path, 3)
  rows = [
    {
      'best/validation/accuracy': trial[RATE],
      'best/test/accuracy': trial[RATE] + trial['seed'] / 100,
    }
    for trial in trials
  ]
  specs = plan.make(base, trials, str(tmp_path / 'sweep'))
  found = comparison.compare(rows, specs, 'accuracy', '')
  assert found.over == ('seed', 'data.fold')
  assert [entry['n'] for entry in found.table] == [9, 9]
  assert 'over folds' in tables.caption(found)
  assert 'in 3 folds' in tables.conclusion(found)
  # Seeds of a fold are not independent: the interval is that of folds.
  difference = found.table[0]['difference']
  assert difference['mean'] == pytest.approx(0.1)
  assert (difference['n'], difference['std']) == (3, 0)
  said = 'no interval from the same difference in 3 folds'
  assert said in tables.conclusion(found)


def test_a_fold_is_paired_by_the_seeds_that_both_settings_have(tmp_path):
  base, trials = of_folds(tmp_path, 2)
  rows = []
  for trial in trials:
    is_done = trial[RATE] < 0.2 or trial['seed'] < 1
    score = trial['seed'] / 10 if is_done else None
    row = {f'best/{split}/accuracy': score for split in comparison.SPLITS}
    rows.append(row | {'status': 'DONE' if is_done else 'PENDING'})
  specs = plan.make(base, trials, str(tmp_path / 'sweep'))
  found = comparison.compare(rows, specs, 'accuracy', '')
  (difference,) = (
    entry['difference'] for entry in found.table if 'difference' in entry
  )
  assert (difference['n'], difference['mean']) == (2, 0)


def test_settings_with_commas_have_names_of_their_own(tmp_path):
  key = 'optimizer.weight_decay_names'
  trials = [{key: ('a,b',)}, {key: ('a', 'b')}]
  specs = plan.make(make_small_config().to_dict(), trials, str(tmp_path / 's'))
  assert len({*names.of_specs(specs).names}) == 2


def test_a_trial_with_the_default_seed_is_paired_with_that_seed(tmp_path):
  trials = [{RATE: 0.1}, {RATE: 0.2, 'seed': 0}, {RATE: 0.2, 'seed': 1}]
  rows = [
    {f'best/{split}/accuracy': score for split in comparison.SPLITS}
    for score in (0.5, 0.7, 0.8)
  ]
  base = make_small_config().to_dict()
  specs = plan.make(base, trials, str(tmp_path / 'sweep'))
  found = comparison.compare(rows, specs, 'accuracy', '')
  entry = next(e for e in found.table if e[RATE] == 0.2)
  assert entry['difference']['n'] == 1
  assert entry['difference']['mean'] == pytest.approx(0.2)


def test_the_interval_is_students():
  values = [0.81, 0.84, 0.80, 0.86, 0.83]
  found = comparison.interval(values)
  low, high = scipy.stats.t.interval(
    0.95, 4, loc=np.mean(values), scale=scipy.stats.sem(values)
  )
  assert found['mean'] - found['half_width'] == pytest.approx(low)
  assert found['mean'] + found['half_width'] == pytest.approx(high)
  assert found['n'] == 5
  assert found['std'] == pytest.approx(np.std(values, ddof=1))
  assert comparison.interval([0.5])['half_width'] is None


def test_differences_are_paired_by_seed(tmp_path):
  # Seeds differ by far more than the two settings do.
  found, _ = compared(
    tmp_path,
    {0.1: of_test(0.1, 0.5, 0.9), 0.2: of_test(0.12, 0.53, 0.91)},
    baseline='learning_rate=0.1',
  )
  first = found.table[0]
  assert first['setting'] == 'learning_rate=0.2'
  assert first['test']['mean'] == pytest.approx(0.52)
  assert first['difference']['mean'] == pytest.approx(0.02)
  assert first['difference']['std'] == pytest.approx(0.01)
  assert first['test']['half_width'] > 10 * first['difference']['half_width']
  shown = tables.markdown(found)
  assert '| learning_rate=0.2 | 3 | 0.5200 ' in shown
  assert '+0.0200 ± 0.0248' in shown
  with pytest.raises(UserError, match=r'is not one of learning_rate=0\.2'):
    compared(tmp_path, {0.2: of_test(1), 0.3: of_test(1)}, baseline='lr=1')


def test_tables_hold_validation_and_test(tmp_path):
  found, _ = compared(
    tmp_path,
    {'none': [(0.6, 0.5), (0.7, 0.6)], 'shaw': [(0.8, 0.7), (0.7, 0.9)]},
    key=POSITION,
  )
  lines = tables.markdown(found).splitlines()
  assert lines[0] == ('| setting | n | validation | test | test - baseline |')
  assert lines[2] == (
    '| shaw | 2 | 0.8000, 0.7000 | 0.7000, 0.9000 | +0.2500 |'
  )
  assert lines[3].endswith('| baseline |')
  assert tables.conclusion(found) in lines


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    ([{POSITION: 'none'}, {POSITION: 't5'}], ['none', 't5']),
    ([{RATE: 0.1}, {RATE: 0.2}], ['learning_rate=0.1', 'learning_rate=0.2']),
    # What all agree in is left out.
    ([{POSITION: 't5', RATE: 0.1}, {POSITION: 't5', RATE: 0.2}],
     ['learning_rate=0.1', 'learning_rate=0.2']),
    ([{POSITION: 't5', RATE: 0.1}, {POSITION: 'none', RATE: 0.2}],
     ['t5, learning_rate=0.1', 'none, learning_rate=0.2']),
    # Texts of two keys, or none, would not say of which key they are.
    ([{POSITION: 'none', 'model.pool': 'max'},
      {POSITION: 't5', 'model.pool': 'mean'}],
     ['position=none, pool=max', 'position=t5, pool=mean']),
    ([{'train.init_from': ''}, {'train.init_from': 'runs/a'}],
     ['init_from=', 'init_from=runs/a']),
    ([{'seed': 0, 'data.seed': 1}, {'seed': 1, 'data.seed': 2}],
     ['seed=0, data.seed=1', 'seed=1, data.seed=2']),
    ([{'a.names': ['x', 'y']}, {'a.names': []}], ['names=[x,y]', 'names=[]']),
    ([{RATE: 0.1}], ['all']),
    ([], []),
  ],
)  # fmt: skip
def test_settings_are_named_by_what_differs(settings, expected):
  assert names.of(settings) == expected


def test_a_setting_that_changes_less_is_named_by_its_defaults(tmp_path):
  trials = [{RATE: 0.1}, {POSITION: 't5', RATE: 0.1}]
  trials += [{POSITION: 'rotary(base=7)', RATE: 0.1, 'seed': 3}]
  base = make_small_config()
  base.model.position = 'rotary(base=7.0)'
  specs = plan.make(base.to_dict(), trials, str(tmp_path))
  naming = names.of_specs(specs)
  assert naming.names == ['rotary(base=7)', 't5', 'rotary(base=7)']
  assert naming.over == ('seed',)


def test_lengths_have_the_intervals_of_the_metric(tmp_path):
  """Seeds of one split of the data are one value."""
  base = make_small_config()
  base.task, base.data.source = 'next_token', 'stories'
  base.model.encoder = 'attention(causal=True)'
  base.checkpoint.best_metric = 'bits_per_byte_8'
  base.train.eval_lengths = (8,)
  pairs = [(split, seed) for split in range(3) for seed in range(2)]
  trials = [{'data.seed': split, 'seed': seed} for split, seed in pairs]
  rows = [
    {'trial': index, 'name': str(index), 'status': 'DONE'}
    | {
      f'best/{part}/bits_per_byte_8': split + seed / 10
      for part in ('validation', 'test')
    }
    for index, (split, seed) in enumerate(pairs)
  ]
  specs = plan.make(base.to_dict(), trials, str(tmp_path / 'sweep'))
  (entry,) = comparison.compare(rows, specs, '', '').table
  assert entry['by_length'] == {'8': entry['test']}
  assert (entry['n'], entry['test']['n']) == (6, 3)


def test_a_stream_is_compared_by_length_of_the_window(tmp_path):
  """A setting that cannot read a length has nothing there."""
  base = make_small_config()
  base.task, base.data.source = 'next_token', 'stories'
  base.model.encoder = 'attention(causal=True)'
  base.checkpoint.best_metric = 'bits_per_byte_8'
  base.train.eval_lengths = (8, 64)
  base.train.measures = 'attention_to_first'
  bits = {'alibi': [(2.0, 3.0), (2.2, 3.4)], 'none': [(1.0, None)] * 2}
  trials, rows = [], []
  for position, of_seeds in bits.items():
    for seed, (short, long) in enumerate(of_seeds):
      trials.append({POSITION: position, 'seed': seed})
      scores = {'bits_per_byte_8': short, 'bits_per_byte_64': long}
      scores |= {'attention_to_first_8': 0.5, 'attention_to_first_64': None}
      rows.append(
        {'trial': len(rows), 'name': str(len(rows)), 'status': 'DONE'}
        | {
          f'best/{split}/{name}': value
          for name, value in scores.items()
          for split in ('validation', 'test')
        }
      )
  specs = plan.make(base.to_dict(), trials, str(tmp_path / 'sweep'))
  found = comparison.compare(rows, specs, '', '')
  assert [entry['setting'] for entry in found.table] == ['none', 'alibi']
  by_64 = comparison.compare(rows, specs, 'bits_per_byte_64', '')
  alibi, none = by_64.table
  assert (alibi['n'], none['n'], none['missing']) == (2, 0, 0)
  assert 'no bits_per_byte_64' in tables.caption(by_64)
  none, alibi = (entry['by_length'] for entry in found.table)
  assert list(none) == ['8']
  (measure,) = found.table[0]['measures_by_length'].items()
  assert measure[0] == 'attention_to_first'
  assert [(n, one['mean']) for n, one in measure[1].items()] == [('8', 0.5)]
  assert alibi['64']['mean'] == pytest.approx(3.2)
  assert alibi['64']['values'] == {'0': [3.0], '1': [3.4]}
  header, body = tables.cells(found)
  assert header[-2:] == ['8 tokens', '64 tokens']
  assert [row[-1] for row in body] == ['', '3.0000, 3.4000']
