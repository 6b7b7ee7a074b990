"""Trials that differ in unused settings only are duplicates, trained once."""

import json

import jax
import jax.numpy as jnp
import pytest
from conftest import ROOT, last_json, make_small_config

from experiments.settings import settings as settings_lib
from experiments.sweeps import distinct, grids, plan
from experiments.training import build
from selfattn.dropout import Dropout
from selfattn.encoders import ENCODERS
from selfattn.positions import POSITIONS

# Another value of every key of the model that some encoders do not use.
CHANGES = {
  'num_layers': 3,
  'num_heads': 3,
  'mlp_dim': 28,
  'embed_dim': 18,
  'dtype': 'bfloat16',
  'attention_dropout_rate': 0.3,
  'dropout_rate': 0.0,
  'pool': 'max',
  'position.name': 'rotary',
  'normaliser.name': 'sigmoid',
  'position_sampling.name': 'random_offset',
}


# Those that linear attention refuses; it reads them all the same.
REFUSED = {'linear_attention': {'attention_dropout_rate'}}


def changed(encoder, position, key=None):
  config = make_small_config()
  config.model.encoder.name = encoder
  config.model.position.name = position
  config.model.encoder.rnn.bidirectional = False
  if key is not None:
    config.update_from_flattened_dict({f'model.{key}': CHANGES[key]})
  return settings_lib.from_config(config)


def lowered(settings):
  """The training computation of the classifier, as text."""
  classifier = build.model(settings, 31, 2)
  tokens = jnp.ones((2, 5), jnp.int32)
  params = jax.eval_shape(
    classifier.init, jax.random.key(0), tokens, tokens == 1
  )

  def logits(params, key):
    def site(rate):
      return Dropout.create(key, rate) if rate else None

    return classifier.apply(
      params,
      tokens,
      tokens == 1,
      site(settings.model.dropout_rate),
      site(settings.model.attention_dropout_rate),
      Dropout.create(key, 0.0),
    )

  return jax.jit(logits).lower(params, jax.random.key(0)).as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('encoder', 'position'),
  [('attention', 'none'), ('attention', 'sinusoidal')]
  + [('linear_attention', 'sinusoidal')]
  + [(name, 'none') for name in ENCODERS if name != 'attention'],
)
def test_unused_settings_change_no_program(encoder, position):
  base = changed(encoder, position)
  known, program = distinct.used(base), lowered(base)
  for key in CHANGES.keys() - REFUSED.get(encoder, set()):
    other = changed(encoder, position, key)
    same = distinct.used(other) == known
    assert same == (lowered(other) == program), key


@pytest.mark.parametrize(
  'name', [n for n, cls in POSITIONS.items() if not cls.uses_positions]
)
def test_position_ids_change_nothing_where_they_are_not_used(name):
  def settings(sampling):
    config = make_small_config()
    config.model.position.name = name
    config.model.position_sampling.name = sampling
    config.model.encoder.attention.causal = POSITIONS[name].causal_only
    return settings_lib.from_config(config)

  plain, other = settings('consecutive'), settings('randomised')
  assert distinct.used(plain) == distinct.used(other)
  assert lowered(plain) == lowered(other)


def specs_of(trials, path):
  return plan.make(make_small_config().to_dict(), trials, str(path))


def test_positions_of_an_encoder_without_any_are_one_trial(tmp_path):
  trials = grids.product(
    [
      [{'model.encoder.name': name} for name in ('attention', 'rnn')],
      [{'model.position.name': name} for name in ('none', 'shaw', 't5')],
      [{'seed': seed} for seed in range(2)],
    ]
  )
  found = distinct.distinct(specs_of(trials, tmp_path))
  assert [spec.index for spec in found] == list(range(8))
  assert [spec.repeats for spec in found[6:]] == [(8, 10), (9, 11)]
  assert not any(spec.repeats for spec in found[:6])
  assert distinct.warning(found) == (
    'WARNING: 4 of 12 trials are duplicates, since config.model.position.name '
    'is not used by them; each is trained and listed once: '
    '8, 10 of 6; 9, 11 of 7'
  )
  assert distinct.warning(found[:6]) is None


def test_options_of_other_choices_are_unused(tmp_path):
  trials = grids.product(
    [
      [{'model.position.name': name} for name in ('t5', 'shaw')],
      [{'model.position.t5.num_buckets': n} for n in (8, 16)],
    ]
  )
  found = distinct.distinct(specs_of(trials, tmp_path))
  assert [(spec.index, spec.repeats) for spec in found] == [
    (0, ()),
    (1, ()),
    (2, (3,)),
  ]
  read = distinct.overrides(found[2])
  assert read == {'model.position.name': 'shaw'}


def test_of_duplicates_the_trained_one_is_kept(tmp_path):
  trials = [{'model.position.t5.num_buckets': n} for n in (8, 16, 24)]
  specs = specs_of(trials, tmp_path)
  for spec, status in zip(specs[1:], ('FAILED', 'DONE'), strict=True):
    (tmp_path / 'trials' / spec.name).mkdir(parents=True)
    text = json.dumps({'status': status, 'step': 12})
    (tmp_path / 'trials' / spec.name / 'status.json').write_text(text)
  (found,) = distinct.distinct(specs)
  assert (found.index, found.repeats) == (2, (0, 1))


def test_a_sweep_lists_its_duplicate_trials(tmp_path, call_command):
  path = tmp_path / 'sweep'
  flags = ['--grid=config.model.encoder.name=bow,cnn', '--dry_run']
  flags += ['--grid=config.model.position.name=none,t5']
  code, printed, said = call_command(
    'sweep', *flags, f'--workdir={path}', cwd=ROOT
  )
  assert code == 0, said
  assert list(last_json(printed)['parameters']) == ['0', '2']
  assert '1 of 0; 3 of 2' in said.splitlines()[0]
  code, printed, said = call_command(
    'sweep', *flags, f'--workdir={path}', '--trial_ids=3', cwd=ROOT
  )
  assert code == 0, said
  assert last_json(printed)['trials'] == 0
  assert 'trial 3 is a duplicate of trial 2' in said
