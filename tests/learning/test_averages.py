"""Averages of parameters: against a loop in float64, and what reads them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import last_json, make_small_config
from test_train import StopAt, restored

from experiments.command.errors import Interrupted
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.data.batches import TrainBatches
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.learning import steps
from experiments.settings.settings import from_config
from experiments.training import compiled, evaluation
from experiments.training import run as run_lib
from experiments.workdir import checkpoints

pytestmark = pytest.mark.usefixtures('shared_programs')


def averaged_config():
  config = make_small_config()
  config.train.ema_decay = 0.8
  return config


def in_float64(values, decay):
  """An average that starts at zero, over what its weights sum to."""
  average = 0.0
  for value in values:
    average = decay * average + (1 - decay) * np.asarray(value, np.float64)
  return average / (1 - decay ** len(values))


@pytest.mark.parametrize('decay', [0.5, 0.999, 0.99999])
def test_the_average_equals_a_loop_in_float64(decay):
  values = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
  update = jax.jit(steps.averaged)
  average = {'x': jnp.full(3, 7.0)}  # which the first update forgets
  for step, value in enumerate(values, 1):
    average = update(average, {'x': value}, step, np.float32(decay))
    if step == 1:
      assert (average['x'] == value).all()
  # As float32 has it.
  wanted = in_float64(values, float(np.float32(decay)))
  np.testing.assert_allclose(average['x'], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_each_trial_has_an_average_by_its_own_decay():
  settings = []
  for decay in (0.8, 0.95):
    config = averaged_config()
    config.train.ema_decay = decay
    settings.append(from_config(config))
  assert compiled.key(settings[0]) == compiled.key(settings[1])
  loaded = loading.load(settings[0].data, '')
  batches = TrainBatches(loaded.splits['train'], 16, 0, loaded.bucket_lengths)
  program = compiled.make(settings[0], loaded.vocabulary, loaded.label_facts, 2)
  hparams = program.hparams(settings)
  state, seen = program.init(hparams), []
  for step in range(5):
    state, _ = program.train_step(state, batches(step), hparams)
    seen.append(jax.device_get(state.params))
  for trial, decay in enumerate((0.8, 0.95)):
    found = checkpoints.leaves(state.average)
    values = [checkpoints.leaves(params) for params in seen]
    for name, leaf in found.items():
      wanted = in_float64([value[name][trial] for value in values], decay)
      np.testing.assert_allclose(leaf[trial], wanted, rtol=1e-4, atol=1e-6)
  assert program.is_finite(state).tolist() == [True, True]
  head = state.average['head']
  wrong = head | {'bias': head['bias'].at[1, 0].set(jnp.nan)}
  state = state.replace(average=state.average | {'head': wrong})
  assert program.is_finite(state).tolist() == [True, False]


def test_without_a_decay_state_and_program_have_no_average():
  none, some = make_small_config(), averaged_config()
  keys = [compiled.key(from_config(config)) for config in (none, some)]
  assert keys[0] != keys[1]
  template = compiled.make(
    from_config(none), Vocabulary(30), LabelFacts(('a', 'b'))
  ).template
  assert template.average is None
  names = {name.partition('/')[0] for name in checkpoints.leaves(template)}
  assert names == {'step', 'params', 'optimizer', 'sums'}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Workdir and result of a run with an average."""
  path = tmp_path_factory.mktemp('average') / 'run'
  return path, run_lib.run(averaged_config(), str(path), Signals())


def scores(program, params, loaded):
  found = evaluation.evaluate(
    program, params, loaded.splits['test'], 256, loaded.bucket_lengths
  )
  return program.task.scores(found, loaded.splits['test'].labels)


@pytest.mark.slow
def test_every_command_uses_the_average(trained, tmp_path, call_command):
  path, result = trained
  settings, program, step, average, _ = evaluation.restore_params(
    str(path), 'best'
  )
  params = restored(path, averaged_config(), step).params
  loaded = loading.load(settings.data, str(path))
  wanted = scores(program, average, loaded)
  last = scores(program, params, loaded)
  assert abs(wanted['loss'] - last['loss']) > 1e-4
  assert result['loss'] == pytest.approx(wanted['loss'], abs=1e-7)
  workdir = f'--workdir={path}'
  code, stdout, stderr = call_command('evaluate', workdir, cwd=tmp_path)
  assert code == 0, stderr
  assert last_json(stdout)['loss'] == pytest.approx(wanted['loss'], abs=1e-7)

  text = 'the plot was dull but the acting was fine'
  shown = {}
  # What predict and inspect hand to the model.
  with pytest.MonkeyPatch.context() as patch:
    make = compiled.make

    def watched(*args, **options):
      made = make(*args, **options)

      def eval_step(params, batch):
        shown.setdefault('params', params)
        return made.eval_step(params, batch)

      return compiled.dataclasses.replace(made, eval_step=eval_step)

    patch.setattr(compiled, 'make', watched)
    for name, *more in (
      ('predict', f'--text={text}', '--json'),
      ('inspect', '--num_examples=2'),
    ):
      shown.clear()
      code, _, stderr = call_command(name, workdir, *more, cwd=tmp_path)
      assert code == 0, stderr
      jax.tree.map(np.testing.assert_array_equal, shown['params'], average)


def test_a_resumed_run_equals_the_uninterrupted_one(trained, tmp_path):
  path, result = trained
  config = averaged_config()
  settings = from_config(config)
  loaded = loading.load(settings.data, '')
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  runs = [(config.to_dict(), settings, str(tmp_path))]
  with pytest.raises(Interrupted):
    run_lib.run_group(runs, loaded, program, StopAt(look=12))
  again = run_lib.run(config, str(tmp_path), Signals())
  assert {**again, 'workdir': None} == {**result, 'workdir': None}
  ours, theirs = (restored(run, config, 12) for run in (tmp_path, path))
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
def test_a_run_begins_with_the_averages_of_another(trained, tmp_path):
  path, result = trained
  config = averaged_config()
  config.train.init_from = str(path)
  config.train.steps = 1
  config.optimizer.warmup_steps = 0
  config.optimizer.learning_rate = 1e-9  # parameters stay what they were
  run_lib.run(config, str(tmp_path), Signals())
  source = restored(path, averaged_config(), result['step'])
  ours = restored(tmp_path, config, 1)
  for tree in (ours.params, ours.average):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
      tree,
      source.average,
    )
