"""Training reads more and more tokens of a text, by step."""

import numpy as np
import pytest
from conftest import make_small_config

from experiments.command.errors import Interrupted, UserError
from experiments.command.signals import Signals
from experiments.data.batches import Batch
from experiments.learning import curricula
from experiments.settings.settings import from_config
from experiments.training import evaluation
from experiments.training import run as run_lib
from experiments.workdir.checkpoints import leaves

pytestmark = pytest.mark.usefixtures('shared_programs')


class Odd(curricula.Whole):
  """It returns no length."""

  def longest(self, progress, most):
    return 2.5


class Grows(curricula.Whole):
  """It knows the shares of runs of eight steps alone."""

  def longest(self, progress, most):
    return np.int64({n / 8: 3 for n in range(8)}[progress])


@pytest.mark.parametrize(
  ('longer', 'most', 'want'),
  [
    ({'start': 8, 'over': 0.5}, 32, [8, 8, 16, 16, 32, 32, 32, 32]),
    ({'start': 8, 'over': 1.0}, 20, [8, 8, 8, 8, 16, 16, 16, 16]),
    ({'start': 64, 'over': 0.5}, 32, [32] * 8),
  ],
)
def test_lengths_double_for_as_many_steps_each(longer, most, want):
  curriculum = curricula.Longer(**longer)
  got = [curricula.longest(curriculum, step, 8, most) for step in range(8)]
  assert got == want


def test_a_cut_batch_has_the_first_tokens_of_each_text():
  tokens = np.arange(12).reshape(2, 6)
  batch = Batch(tokens, np.array([6, 2]), np.zeros(2), np.ones(2))
  cut = curricula.cut(batch, 4)
  np.testing.assert_array_equal(cut.tokens, tokens[:, :4])
  assert cut.lengths.tolist() == [4, 2]
  assert curricula.cut(batch, 6) is batch


def config_of(curriculum, **changes):
  config = make_small_config()
  config.train.steps, config.train.eval_every = 8, 8
  config.train.curriculum = curriculum
  config.update_from_flattened_dict(changes)
  return config


def params_of(path):
  return leaves(evaluation.restore_params(str(path), 'last').params)


class Stops(Signals):
  """A signal after some checks."""

  count = 0

  def check(self):
    self.count += 1
    if self.count > 6:
      raise Interrupted('a signal')


@pytest.mark.slow
def test_a_run_is_the_same_after_an_interruption(tmp_path):
  config = config_of('longer(start=3, over=0.75)')
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  run_lib.run(config, str(whole))
  with pytest.raises(Interrupted):
    run_lib.run(config, str(parts), Stops())
  run_lib.run(config, str(parts))
  run_lib.run(config_of('whole'), str(tmp_path / 'other'))
  other = params_of(tmp_path / 'other')
  for name, leaf in params_of(whole).items():
    np.testing.assert_array_equal(params_of(parts)[name], leaf)
  assert any(
    (other[name] != leaf).any() for name, leaf in params_of(whole).items()
  )


class HalfFirst(curricula.Whole):
  """Half of the longest text for half of the steps."""

  def longest(self, progress, most):
    return most if progress >= 0.5 else most // 2


@pytest.mark.slow
@pytest.mark.parametrize(
  ('curriculum', 'said'),
  [
    # The longest text has 16 tokens, fewer than config.data.max_length.
    (f'{__name__}:HalfFirst', 'at most: 8 from step 1 on, 16 from step 5 on'),
    ('longer(start=64)', 'longer(start=64) cuts no text: the longest has 16'),
  ],
)
def test_the_log_says_how_texts_are_cut(curriculum, said, tmp_path, capfd):
  run_lib.run(config_of(curriculum), str(tmp_path))
  assert said in capfd.readouterr().err


@pytest.mark.parametrize(
  ('curriculum', 'changes', 'said'),
  [
    ('longer(start=0)', {}, 'start = 0 must be at least 1'),
    ('longer(over=2.0)', {}, 'over = 2.0 must be above 0'),
    (
      'longer',
      {'data.source': 'text', 'data.dir': 'a', 'data.text.join': 'pair',
       'data.text.format': 'lines'},
      'curriculum = .* must be whole for pairs',
    ),
  ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(curriculum, changes, said):
  with pytest.raises(UserError, match=said):
    from_config(config_of(curriculum, **changes))


def test_a_length_is_a_positive_integer(tmp_path):
  config = config_of(f'{__name__}:Odd')
  with pytest.raises(UserError, match=r'longest\(\) returns 2.5'):
    run_lib.run(config, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('curriculum', 'said'),
  [
    ('longer(start=3)', 'to other lengths'),
    (f'{__name__}:Grows', rf'{__file__} line \d+: KeyError: 0.0625'),
  ],
)
def test_more_steps_may_not_change_lengths(curriculum, said, tmp_path):
  fixed = {'optimizer.schedule': 'constant', 'optimizer.warmup_steps': 0}
  run_lib.run(config_of(curriculum, **fixed), str(tmp_path))
  more = config_of(curriculum, **fixed, **{'train.steps': 16})
  with pytest.raises(UserError, match=said):
    run_lib.run(more, str(tmp_path))
