"""Patterns over layers, methods on some heads and blocks, in a config."""

import jax
import numpy as np
import pytest

from experiments.command.errors import UserError
from experiments.settings import settings
from experiments.training import build
from selfattn.blocks import Parallel
from tests.conftest import make_small_config


def read(**changes):
  config = make_small_config()
  config.model.num_layers = 4
  config.model.num_heads = 4
  for key, value in changes.items():
    config.model[key] = value
  return settings.from_config(config)


def test_a_pattern_is_one_position_and_one_normaliser_a_layer():
  run = read(
    position='rotary(base=500),none,t5+kerple',
    normaliser='softmax,differential',
    encoder='attention(window=((3, 3), ()), scan=True)',
    block='parallel(feed_forward=swiglu, norm=rms)',
  )
  encoder = build.model(run, 31, 2).encoder
  layers = [encoder._attention(n, embed_dim=12, num_heads=4,
            position=encoder.position.of_layer(n), parent=None)
            for n in range(4)]  # fmt: skip
  assert [[name for name, _ in layer.position.parts] for layer in layers] == [
    ['rotary'], ['none'], ['t5', 'kerple'], ['rotary']
  ]  # fmt: skip
  kinds = [type(layer.normaliser).__name__ for layer in layers]
  assert kinds == ['Softmax', 'Differential'] * 2
  assert [layer.window for layer in layers] == [(3, 3), None] * 2
  assert isinstance(encoder.block, Parallel)


def test_a_pattern_of_equal_entries_is_the_run_of_one():
  one = read(position='rotary', normaliser='sinks')
  several = read(position='rope,rotary(base=10000)', normaliser='sinks,sinks')
  assert several.digest() == one.digest()
  assert several.flat() == one.flat()
  assert read(position='rotary,none').digest() != one.digest()


def test_the_text_of_a_pattern_is_read_again():
  run = read(position='rotary(heads=2)+alibi(heads=2),none', block='post')
  again = read(position=run.flat()['model.position'], block='post')
  assert again == run
  assert run.flat()['model.position'] == ('rotary(heads=2)+alibi(heads=2),none')


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'position': 'rotary,rotray'}, 'did you mean rotary'),
    ({'position': 't5,'}, "config.model.position = 't5,' must have a name"),
    ({'position': 'learned+rotary,rotary'}, 'learned'),
    ({'position': 'rotary(heads=3)+alibi(heads=2)'}, 'heads = 2'),
    ({'position': 'rotary,learned(max_len=2)+none'}, 'learned'),
    ({'position': 'rotary,none,t5,alibi,fire'}, 'num_layers = 4'),
    ({'normaliser': 'softmax,stick_breaking'}, 'StickBreaking'),
    ({'encoder': 'attention(window=((1, 1), (2,)))'}, '(2,)'),
    ({'block': 'parallel(norm=batch)'}, 'norm'),
  ],
)
def test_what_a_pattern_cannot_be_is_said_in_one_line(changes, said):
  with pytest.raises(UserError) as error:
    read(**changes)
  assert said in str(error.value)
  assert '\n' not in str(error.value)


def test_a_model_of_a_pattern_starts():
  model = build.model(read(position='rotary,none', normaliser='entmax'), 31, 2)
  shapes = jax.eval_shape(
    model.init, jax.random.key(0), np.ones((1, 3), int), np.ones((1, 3), bool)
  )
  assert 'block_3' in shapes['params']['encoder']
