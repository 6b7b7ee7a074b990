"""Every wrong config dies in settings, with the key to change."""

import numpy as np
import pytest

from configs import default
from experiments.command.errors import UserError
from experiments.command.values import flat_keys, parse_tuple
from experiments.settings import keys, registry, settings

WRONG = {
  'model.position.name': ('rotray', 'did you mean rotary'),
  'model.encoder.name': ('atention', 'did you mean attention'),
  'model.pool': ('sum', 'cls, max, mean'),
  'model.dtype': ('float16', 'bfloat16, float32'),
  'model.encoder.attention.norm': ('mid', 'post, pre'),
  'model.encoder.attention.activation': ('swish', 'gelu, relu'),
  'model.encoder.attention.backend': (
    'flash',
    'auto, chunked, cudnn, pallas_tpu, reference, xla',
  ),
  'optimizer.name': ('adma', 'did you mean adam'),
  'optimizer.schedule': ('cosin', 'did you mean cosine'),
  'checkpoint.best_metric': ('f1', 'accuracy, loss, macro_f1'),
  'data.name': ('imdb', 'text, word_order'),
  'data.vocabulary.name': ('words', 'did you mean word'),
  'data.vocabulary.word.size': (2, 'at least 3'),
  'data.word_order.test_pairs': (0, 'between 1'),
  'data.dir': ('somewhere', 'must be empty'),
  'model.num_heads': (5, 'try 60 or 65'),
  'model.encoder.attention.num_kv_heads': (3, '0 or a divisor'),
  'model.encoder.attention.window': ((1,), '(left, right)'),
  'model.encoder.attention.softcap': (-1.0, 'at least 0'),
  'model.encoder.attention.output_gate': (
    'channelwise',
    'elementwise, headwise, none',
  ),
  'model.normaliser.name': ('sigmod', 'did you mean sigmoid'),
  'model.num_layers': (0, 'at least 1'),
  'model.dropout_rate': (1.0, 'less than 1'),
  'model.attention_dropout_rate': (-0.1, 'at least 0'),
  'model.word_dropout_rate': (0.99999999, '0.99999994 at most'),
  'model.embed_init_std': (0.0, 'greater than 0'),
  'optimizer.label_smoothing': (float('nan'), 'less than 1'),
  'optimizer.learning_rate': (0.0, 'greater than 0'),
  'optimizer.warmup_steps': (2_001, 'at most config.train.steps = 2000'),
  'optimizer.adamw.b1': (1.0, 'at least 0 and less than 1'),
  'optimizer.adamw.b2': (float('nan'), 'at least 0 and less than 1'),
  'optimizer.adamw.eps': (0.0, 'greater than 0 and finite'),
  'train.grad_accum_steps': (
    7,
    '0 or a divisor of config.train.batch_size = 64',
  ),
  'train.steps': (0, 'at least 1'),
  'seed': (-1, 'at least 0'),
}


def with_changes(**changes):
  config = default.get_config()
  config.update_from_flattened_dict(
    {key.replace('__', '.'): value for key, value in changes.items()}
  )
  return config


@pytest.mark.parametrize('given', [2.5, 2_001, float('inf'), float('nan')])
def test_a_warmup_of_no_whole_updates_is_refused(given):
  with pytest.raises(UserError, match=r'optimizer\.warmup_steps = .* must be'):
    settings.from_config(with_changes(**{'optimizer.warmup_steps': given}))


@pytest.mark.parametrize('key', WRONG)
def test_a_wrong_value_names_its_key_and_what_is_allowed(key):
  value, allowed = WRONG[key]
  with pytest.raises(UserError) as error:
    settings.from_config(with_changes(**{key: value}))
  assert key in str(error.value)
  assert str(value) in str(error.value)
  assert allowed in str(error.value)
  assert '\n' not in str(error.value)


TOGETHER = {
  'cls under a causal mask of linear attention': (
    {
      'model.pool': 'cls',
      'model.encoder.name': 'linear_attention',
      'model.encoder.linear_attention.causal': True,
    },
    'attends to itself alone with config.model.encoder.linear_attention.causal',
  ),
  'linear attention with dropout on weights': (
    {
      'model.encoder.name': 'linear_attention',
      'model.attention_dropout_rate': 0.1,
    },
    'config.model.attention_dropout_rate = 0.0 is needed: linear attention',
  ),
  'linear attention with a bias': (
    {
      'model.encoder.name': 'linear_attention',
      'model.position.name': 'sinusoidal+t5',
    },
    'config.model.position = Combined is unsupported: .* bias hook is for; '
    'choose one that embeds or rotates',
  ),
  'cls in a bag of words': (
    {'model.pool': 'cls', 'model.encoder.name': 'bow'},
    'attends to no token .*encoder.name = .bow.*; use mean, max or attentive',
  ),
  'cls under a causal mask': (
    {'model.pool': 'cls', 'model.encoder.attention.causal': True},
    'attends to itself alone',
  ),
  'cls in a window': (
    {'model.pool': 'cls', 'model.encoder.attention.window': (-1, 5)},
    r'attends to only 5 of the tokens .*window = \(-1, 5\).* use mean, max or',
  ),
  'xla with sinks': (
    {
      'model.encoder.attention.backend': 'xla',
      'model.normaliser.name': 'sinks',
    },
    'attention.backend = .xla. .*its weights are a softmax, not Sinks; auto',
  ),
  'pairs of an odd number of heads': (
    {'model.normaliser.name': 'differential', 'model.num_heads': 1},
    r'config\.model\.num_heads = 1 must be even with Differential',
  ),
  'a value residual in one layer': (
    {'model.encoder.attention.value_residual': True, 'model.num_layers': 1},
    r'attention\.value_residual = True must be False with config\.model\.num_l',
  ),
  'xla with dropout on weights': (
    {
      'model.encoder.attention.backend': 'xla',
      'model.attention_dropout_rate': 0.1,
    },
    'it has no dropout on the weights; auto, reference and chunked',
  ),
  'a table shorter than the texts': (
    {
      'model.position.name': 'learned',
      'model.position.learned.max_len': 64,
      'model.pool': 'cls',
    },
    'supports at most 64 positions, and texts may need 65; raise .*max_len',
  ),
}


@pytest.mark.parametrize('name', TOGETHER)
def test_values_that_do_not_go_together_are_refused(name):
  changes, message = TOGETHER[name]
  with pytest.raises(UserError, match=message):
    settings.from_config(with_changes(**changes))
  # Each of the two alone is fine, so it is their meeting that is refused.
  for key, value in changes.items():
    settings.from_config(with_changes(**{key: value}))


@pytest.mark.parametrize('window', [(), (8, -1), (0, 64), (-1, 1_000)])
def test_cls_goes_with_a_window_that_lets_it_see_the_whole_text(window):
  changes = {'model.pool': 'cls', 'model.encoder.attention.window': window}
  settings.from_config(with_changes(**changes, **{'data.max_length': 64}))


def test_a_missing_key_an_extra_key_and_a_wrong_type_are_refused():
  values = default.get_config().to_dict()
  del values['train']['steps']
  with pytest.raises(UserError, match=r'config\.train\.steps is missing'):
    settings.from_config(values)
  values = default.get_config().to_dict()
  values['model']['positions'] = 'none'
  with pytest.raises(UserError, match=r'positions is not a key; .* position\?'):
    settings.from_config(values)
  values = default.get_config().to_dict()
  values['train']['steps'] = '10'
  with pytest.raises(UserError, match="'10' is a str, not a int"):
    settings.from_config(values)
  values['train']['steps'] = True
  with pytest.raises(UserError, match='True is a bool, not a int'):
    settings.from_config(values)


@pytest.mark.parametrize(
  ('given', 'steps', 'updates'),
  [
    (0.05, 2_000, 100),
    (0.05, 60, 3),
    (0.05, 7, 0),
    (1 / 7, 700, 100),
    (100, 700, 100),
    (100.0, 100, 100),
    (1, 700, 1),
    (0, 700, 0),
  ],
)
def test_warmup_is_a_share_of_the_run_or_a_number_of_updates(
  given, steps, updates
):
  changes = {'optimizer.warmup_steps': given, 'train.steps': steps}
  wanted = settings.from_config(with_changes(**changes))
  assert wanted.optimizer.warmup_steps == updates
  assert type(wanted.optimizer.warmup_steps) is int
  # Whichever way it is given, it is the same run.
  changes['optimizer.warmup_steps'] = updates
  assert settings.from_config(with_changes(**changes)) == wanted


def test_validation_asks_for_no_file(tmp_path):
  """What a command does not read may be gone: it is asked for where it is."""
  changes = {
    'data.name': 'text',
    'data.dir': str(tmp_path / 'gone'),
    'data.text.test': ('gone.tsv',),
    'train.init_from': str(tmp_path / 'gone_as_well'),
  }
  for format in ('csv', 'class_files', 'class_folders'):
    changes['data.text.format'] = format
    changes['data.text.train'] = ('label=gone.tsv',)
    changes['data.text.test'] = ('label=gone.tsv',)
    settings.from_config(with_changes(**changes))


@pytest.mark.parametrize(
  ('text', 'value'),
  [
    ('billing,bug', ('billing', 'bug')),
    ('billing', ('billing',)),
    ('0=no,1=yes', ('0=no', '1=yes')),
    ('a b, c', ('a b', 'c')),
    (' a , b ', ('a', 'b')),
    ('part-*.tsv,[de]v.tsv', ('part-*.tsv', '[de]v.tsv')),
    ('"[a-c].tsv"', ('[a-c].tsv',)),
    ('8,-1', (8, -1)),
    ('7', (7,)),
    ('0,10', (0, 10)),
    ('+1,-1', ('+1', -1)),
    ('1.50,2', ('1.50', 2)),
    ('1_0,2', ('1_0', 2)),
    ('007,-0', ('007', '-0')),
    ('0x1,1e3,None,True', ('0x1', '1e3', 'None', 'True')),
    ('a,', ('a',)),
    ('7,', (7,)),
    ('a,,b', ('a', '', 'b')),
    ('"a,b",c', ('a,b', 'c')),
    ('a, "b, c"', ('a', 'b, c')),
    ('say "no",b', ('say "no"', 'b')),
    ("it's,b", ("it's", 'b')),
    ('{1: 2}', ('{1: 2}',)),
    ('', ()),
    (' ', ()),
    ('()', ()),
    ('[]', ()),
    ("('a,b', 'c')", ('a,b', 'c')),
    ("['kernel']", ('kernel',)),
    ('(1.5, 2)', (1.5, 2)),
  ],
)
def test_a_tuple_may_be_written_with_commas_alone(text, value):
  for found in (
    parse_tuple(text),
    registry.typed(text, tuple, 'optimizer.weight_decay_names'),
  ):
    assert found == value
    assert list(map(type, found)) == list(map(type, value))


@pytest.mark.parametrize(
  'text',
  ["('a', 'b'", '(', '(1)', "('a')", '(a, b)', '[a-c].tsv', '"a,b', 'a\nb'],
)
def test_a_tuple_with_a_torn_bracket_or_quote_is_refused(text):
  with pytest.raises(
    UserError, match=r'optimizer\.weight_decay_names = .* a,b'
  ):
    registry.typed(text, tuple, 'optimizer.weight_decay_names')


def test_flat_holds_the_chosen_options_only():
  flat = settings.from_config(default.get_config()).flat()
  assert flat['model.position.sinusoidal.base'] == 10_000.0
  assert not any(key.startswith('model.position.learned') for key in flat)
  assert flat['data.name'] == 'word_order'
  assert flat['optimizer.name'] == 'adamw'


def test_options_of_other_choices_do_not_make_another_run():
  digest = settings.from_config(default.get_config()).digest()
  unused = with_changes(**{'model.position.learned.max_len': 99})
  assert settings.from_config(unused).digest() == digest
  used = with_changes(**{'model.position.sinusoidal.base': 99.0})
  assert settings.from_config(used).digest() != digest


def test_numbers_of_numpy_are_those_of_python():
  values = default.get_config().to_dict()
  one = settings.from_config(values)
  values['seed'] = np.int64(values['seed'])
  rate = values['optimizer']['learning_rate']
  values['optimizer']['learning_rate'] = np.float64(rate)
  other = settings.from_config(values)
  assert one == other
  assert type(other.seed) is int


def test_settings_are_hashable_and_survive_json():
  import json

  one = settings.from_config(default.get_config())
  text = json.dumps(default.get_config().to_dict())
  assert settings.from_config(json.loads(text)) == one


def test_a_block_holds_every_option_once():
  table = {name: keys.POSITIONS[name] for name in ('none', 'kerple', 't5')}
  assert registry.block(table, 'none') == {
    'name': 'none',
    'kerple': {'form': 'log'},
    't5': {
      'num_buckets': 32,
      'max_distance': 128,
      'shared': True,
      'init_std': 1.0,
    },
  }


def test_names_joined_by_plus_are_methods_at_once():
  flat = settings.from_config(
    with_changes(**{'model.position.name': 'sinusoidal+t5'})
  ).flat()
  assert flat['model.position.name'] == 'sinusoidal+t5'
  assert flat['model.position.sinusoidal.layout'] == 'interleaved'
  assert flat['model.position.t5.num_buckets'] == 32
  for name, message in (
    ('t5+alibo', "has 'alibo', which is not one of .* did you mean alibi"),
    ('t5+t5', "'t5\\+t5' joins t5 with itself"),
    ('rope+alibi+rotary', "'rope\\+alibi\\+rotary' joins rotary with itself"),
    ('t5+', "name = 't5\\+' has an empty name, which is not one of"),
  ):
    with pytest.raises(UserError, match=message):
      settings.from_config(with_changes(**{'model.position.name': name}))
  with pytest.raises(UserError, match='is not one of'):
    settings.from_config(with_changes(**{'model.encoder.name': 'bow+bow'}))


def test_options_of_encoders_and_pools_are_checked_with_their_key():
  for choice, key, value in (
    ('encoder.name=rnn', 'encoder.rnn.cell', 'elman'),
    ('encoder.name=cnn', 'encoder.cnn.kernel_size', 0),
    ('encoder.name=cnn', 'encoder.cnn.dilation', 0),
    ('pool=attentive', 'pool_options.attentive.hidden_dim', 0),
    ('pool=attentive', 'pool_options.attentive.num_hops', -1),
  ):
    name, chosen = choice.split('=')
    changes = {f'model.{name}': chosen, f'model.{key}': value}
    with pytest.raises(UserError) as error:
      settings.from_config(with_changes(**changes))
    assert f'config.model.{key} = {value!r} must be' in str(error.value)
    # What is not chosen is not checked, as nothing reads it.
    settings.from_config(with_changes(**{f'model.{key}': value}))


def test_a_recurrence_of_two_halves_needs_an_even_width():
  changes = {'model.encoder.name': 'rnn', 'model.embed_dim': 63}
  with pytest.raises(UserError) as error:
    settings.from_config(with_changes(**changes))
  assert str(error.value) == (
    'config.model.encoder.rnn.bidirectional = True must be False, or '
    'config.model.embed_dim = 63 even'
  )
  settings.from_config(
    with_changes(**changes, **{'model.encoder.rnn.bidirectional': False})
  )


def test_a_method_with_a_last_position_names_the_option_that_moves_it():
  for name, cls in keys.POSITIONS.items():
    is_limited = cls(8, 2, False, vocab_size=5).max_length() is not None
    assert is_limited == (cls.length_option in registry.options(cls)), name


def test_heads_are_checked_before_the_method_that_they_are_for():
  changes = {'model.num_heads': 7, 'model.position.name': 'rotary'}
  with pytest.raises(UserError, match=r'model\.num_heads = 7; try 63 or 70'):
    settings.from_config(with_changes(**changes))


def test_a_pool_is_its_name_and_its_options_stand_elsewhere():
  option = 'model.pool_options.attentive.num_hops'
  changes = {'model.pool': 'attentive', option: 3}
  wanted = settings.from_config(with_changes(**changes))
  flat = wanted.flat()
  assert flat['model.pool'] == 'attentive'
  assert flat[option] == 3
  assert settings.from_config(with_changes()).flat()['model.pool'] == 'mean'
  plain = with_changes(**{'model.pool': 'attentive'})
  assert settings.from_config(plain).digest() != wanted.digest()
  values = default.get_config().to_dict()
  values['model']['pool_options']['name'] = 'max'
  with pytest.raises(UserError, match=r'pool_options\.name is not a key'):
    settings.from_config(values)


def test_options_of_methods_are_checked_with_their_key():
  for key, value in (
    ('model.position.rotary.factor', 0.5),
    ('model.normaliser.differential.lambda_init', 1.0),
    ('model.position_sampling.randomised.max_position', 0),
    ('model.position_sampling.random_offset.max_offset', -1),
    ('model.position_sampling.randomised.max_position', 60),
  ):
    section, name, _ = key.rsplit('.', 2)
    changes = {f'{section}.name': name, key: value}
    with pytest.raises(UserError, match=f'config.{key} = {value} must be'):
      settings.from_config(with_changes(**changes))


def test_every_key_can_be_read_as_an_attribute():
  """One named like a method of ConfigDict could not be, nor be overridden."""
  config = default.get_config()
  keys = flat_keys(config)
  assert 'model.position.shaw.with_values' in keys
  taken = set(dir(type(config)))
  assert not {key for key in keys if key.rpartition('.')[2] in taken}


@pytest.mark.parametrize(
  ('alias', 'name'),
  [('rope', 'rotary'), ('alibi+cpb', 'alibi+continuous')],
)
def test_a_second_name_is_the_same_setting(alias, name):
  found, want = (
    settings.from_config(with_changes(**{'model.position.name': text}))
    for text in (alias, name)
  )
  assert found == want
  assert found.digest() == want.digest()
  assert found.model.position.name == name


def test_real_position_ids_are_for_methods_that_support_them():
  changes = {'model.position_sampling.name': 'augmented'}
  settings.from_config(with_changes(**changes))
  changes['model.position.name'] = 'sinusoidal+t5'
  with pytest.raises(UserError, match=r"no integers, which 't5' of"):
    settings.from_config(with_changes(**changes))


def test_an_entry_that_is_named_as_an_alias_is_meant_itself(monkeypatch):
  class Mine(keys.POSITIONS['alibi']):
    """A method of one's own."""

  monkeypatch.setitem(keys.POSITIONS, 'rope', Mine)
  config = default.get_config()
  with config.unlocked():
    config.model.position.rope = {'variant': 'symmetric'}
  config.model.position.name = 'rope+cpb'
  found = settings.from_config(config).model.position
  assert found.name == 'rope+continuous'
