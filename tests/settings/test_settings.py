"""Every wrong config dies in settings, with the key to change."""

import functools

import pytest

from configs import default
from experiments.command import fields
from experiments.command.errors import UserError
from experiments.command.values import parse_tuple
from experiments.settings import settings
from selfattn.positions import POSITIONS

# A key, a wrong value, and what its message has beside the key.
WRONG = [
  ('model.position', 'rotray', 'did you mean rotary'),
  ('model.encoder', 'atention', 'did you mean attention'),
  ('model.pool', 'sum', 'cls, first, last, max, mean'),
  ('model.dtype', 'float16', "'float32', 'bfloat16'"),
  ('optimizer.method', 'adma', 'did you mean adam'),
  ('optimizer.schedule', 'cosin', 'did you mean cosine'),
  ('checkpoint.best_metric', 'f1', 'accuracy, loss, macro_f1'),
  ('data.source', 'imdb', 'text, word_order'),
  ('data.vocabulary', 'words', 'did you mean word'),
  ('data.dir', 'somewhere', 'must be empty'),
  ('model.num_heads', 5, 'try 60 or 65'),
  ('model.normaliser', 'sigmod', 'did you mean sigmoid'),
  ('model.num_layers', 0, 'at least 1'),
  ('model.dropout_rate', 1.0, 'less than 1'),
  ('model.attention_dropout_rate', -0.1, 'at least 0'),
  ('model.word_dropout_rate', 0.99999999, '0.99999994 at most'),
  ('model.embed_init_std', 0.0, 'greater than 0'),
  ('optimizer.label_smoothing', float('nan'), 'less than 1'),
  ('optimizer.learning_rate', 0.0, 'greater than 0'),
  ('optimizer.warmup_steps', 2_001, 'at most config.train.steps = 2000'),
  ('optimizer.warmup_steps', 2.5, 'at most config.train.steps = 2000'),
  ('optimizer.warmup_steps', float('nan'), 'at least 0'),
  ('train.grad_accum_steps', 7, '0 or a divisor of config.train.batch_size'),
  ('train.steps', -1, 'at least 0'),
  ('train.steps', '10', 'an integer'),
  ('train.steps', True, 'an integer'),
  ('seed', -1, 'at least 0'),
  ('model.block', 'pre(norm=mid)', 'norm.*layer, .*rms'),
  ('model.block', 'post(feed_forward=x)', 'feed_forward.*geglu, .*gelu'),
  ('model.encoder', 'attention(backend=flash)', 'backend.*auto, chunked'),
  ('model.encoder', 'attention(num_kv_heads=3)', 'num_kv_heads.*0 or a div'),
  ('model.encoder', 'attention(window=(1,))', r'window.*\(left, right\)'),
  ('model.encoder', 'attention(window=((1, 0), 3))', r'\(left, right\)'),
  ('model.encoder', 'attention(window=3)', r'a list, as a,b or \(1, 2'),
  ('model.encoder', 'attention(softcap=-1.0)', 'softcap.*at least 0'),
  ('model.encoder', 'attention(output_gate=x)', 'output_gate.*headwise, non'),
  ('model.encoder', 'rnn(cell=elman)', 'cell.*gru, lstm'),
  ('model.encoder', 'cnn(kernel_size=0)', 'kernel_size.*at least 1'),
  ('model.encoder', 'cnn(dilation=0)', 'dilation.*at least 1'),
  ('model.pool', 'attentive(num_hops=-1)', 'num_hops.*at least 1'),
  ('model.head', 'mlp(hidden_dim=0)', 'hidden_dim.*at least 1'),
  ('model.position', 'rotary(factor=0.5)', 'factor.*at least 1'),
  ('model.position', 'rotary(factor=2)', 'factor.*1 without a scaling'),
  ('model.normaliser', 'differential(highest=1.0)', 'highest.*below 1'),
  ('model.position_sampling', 'randomised(max_position=60)', 'max_position.*m'),
  ('model.position_sampling', 'random_offset(max_offset=-1)', 'max_offset.*1'),
  ('data.vocabulary', 'word(size=2)', 'size.*at least 3'),
  ('data.source', 'word_order(test_pairs=0)', 'test_pairs.*between 1'),
  ('data.source', 'stream(join=pair)', "no option 'join'; it has separator"),
  ('optimizer.method', 'adamw(b1=1.0)', 'b1.*at least 0 and less than 1'),
  ('optimizer.method', 'adamw(eps=0.0)', 'eps.*greater than 0 and finite'),
  ('model', {'encoder': 'rnn', 'embed_dim': 63}, 'bidirectional = .* 63'),
  ('optimizer', {'method': 'muon'}, r'matrices\(optimizer=muon\)'),
  (
    'optimizer.groups', 'matrices(optimizer=adm)',
    r'matrices\.optimizer.*did you mean adam',
  ),
  (
    'optimizer.groups', 'embeddings(learning_rate_scale=-1.0)',
    'learning_rate_scale.*at least 0 and finite',
  ),
  ('optimizer', {'groups': 'embeddings(optimizer=muon)'}, 'matrices alone'),
  (
    'optimizer.groups', 'matrices(optimizer=muon(ns_steps=0))',
    'ns_steps = 0 must be at least 1',
  ),
  ('task', 'masked_tokens(share=0.0)', 'share.*greater than 0'),
  ('task', 'masked_tokens(keep=0.3)', 'mask = .*sum'),
  ('task', 'next_token', 'needs a causal encoder'),
  ('task', 'next_token(offsets=0)', 'offsets = 0 must be from 1 to 64'),
  ('task', 'next_token(offsets=2000000000)', 'offsets = .* from 1 to 64'),
  ('model.pair_positions', 'restart', "'run_on' where texts are no pairs"),
]  # fmt: skip


def with_changes(**changes):
  config = default.get_config()
  config.update_from_flattened_dict(
    {key.replace('__', '.'): value for key, value in changes.items()}
  )
  return config


@pytest.mark.parametrize(
  ('key', 'value', 'said'), WRONG, ids=lambda part: str(part)[:40]
)
def test_what_is_wrong_is_named_with_its_key_and_what_is_allowed(
  key, value, said
):
  values = value if isinstance(value, dict) else {'': value}
  changes = {f'{key}.{name}'.strip('.'): v for name, v in values.items()}
  values = default.get_config().to_dict()
  for name, changed in changes.items():
    *sections, last = name.split('.')
    functools.reduce(dict.get, sections, values)[last] = changed
  with pytest.raises(UserError, match=rf'config\.{key}.*{said}') as error:
    settings.from_config(values)
  assert '\n' not in str(error.value)


def test_a_missing_and_an_unknown_key_are_refused():
  values = default.get_config().to_dict()
  del values['train']['steps']
  with pytest.raises(UserError, match=r'config\.train\.steps is missing'):
    settings.from_config(values)
  values['model']['positions'] = 'none'
  with pytest.raises(UserError, match=r'positions is not a key; .* position\?'):
    settings.from_config(values)


TOGETHER = {
  'linear attention with a bias': (
    {
      'model.encoder': 'linear_attention',
      'model.position': 'sinusoidal+t5',
    },
    'config.model.position = Combined is unsupported: .* bias hook is for; '
    'choose one that embeds or rotates',
  ),
  'cls in a bag of words': (
    {'model.pool': 'cls', 'model.encoder': 'bow'},
    'attends to no token .*encoder = bow.*; use mean, max, first, last or',
  ),
  'real position ids for a bias of integers': (
    {'model.position_sampling': 'augmented', 'model.position': 'sinusoidal+t5'},
    'no integers, which .* = t5 does',
  ),
  'cls in a window': (
    {'model.pool': 'cls', 'model.encoder': 'attention(window=(-1, 5))'},
    r'attends to only 5 of the tokens .*window = \(-1, 5\).* use mean,',
  ),
  'xla with sinks': (
    {
      'model.encoder': 'attention(backend=xla)',
      'model.normaliser': 'sinks',
    },
    'backend = .xla. .*its weights are a softmax, not Sinks; auto',
  ),
  'a metric of another task': (
    {'task': 'masked_tokens', 'checkpoint.best_metric': 'macro_f1'},
    'config.checkpoint.best_metric = .macro_f1. is not one of',
  ),
  'a measure of weights that are none': (
    {'train.measures': 'attention_entropy', 'model.encoder': 'bow'},
    'config.train.measures = attention_entropy: it reads attention weights',
  ),
  'vectors beside parameters of another run': (
    {'model.embeddings': "file(path='x')", 'train.init_from': 'somewhere'},
    r'config.model.embeddings.*init_from',
  ),
  'a table shorter than the texts': (
    {
      'model.position': 'learned(max_len=64)',
      'model.pool': 'cls',
    },
    'supports at most 64 positions, and texts may need 65; raise .*max_len',
  ),
}


@pytest.mark.parametrize(
  'window', ['()', '(8, -1)', '(0, 64)', '((2, 2), ())', '((), (2, 2))']
)
def test_cls_goes_with_a_window_that_lets_it_see_the_whole_text(window):
  encoder = f'attention(window={window})'
  changes = {'model.pool': 'cls', 'model.encoder': encoder}
  settings.from_config(with_changes(**changes, **{'data.max_length': 64}))


@pytest.mark.parametrize('name', TOGETHER)
def test_values_that_do_not_go_together_are_refused(name):
  changes, message = TOGETHER[name]
  with pytest.raises(UserError, match=message):
    settings.from_config(with_changes(**changes))
  # Each of the two alone is fine, so it is their meeting that is refused.
  for key, value in changes.items():
    settings.from_config(with_changes(**{key: value}))


@pytest.mark.parametrize(
  ('written', 'steps', 'updates'),
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
  written, steps, updates
):
  changes = {'optimizer.warmup_steps': written, 'train.steps': steps}
  expected = settings.from_config(with_changes(**changes))
  assert expected.optimizer.warmup_steps == updates
  assert type(expected.optimizer.warmup_steps) is int
  # Whichever way it is given, it is the same run.
  changes['optimizer.warmup_steps'] = updates
  assert settings.from_config(with_changes(**changes)) == expected


def test_validation_asks_for_no_file(tmp_path):
  """What a command does not read may be gone: it is asked for where it is."""
  changes = {
    'data.source': 'text',
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
    ('0=no,1=yes', ('0=no', '1=yes')),
    (' a , b ', ('a', 'b')),
    ('part-*.tsv,[de]v.tsv', ('part-*.tsv', '[de]v.tsv')),
    ('"[a-c].tsv"', ('[a-c].tsv',)),
    ('8,-1', (8, -1)),
    ('7', (7,)),
    ('+1,-1', ('+1', -1)),
    ('1.50,2', ('1.50', 2)),
    ('007,-0', ('007', '-0')),
    ('0x1,1e3,None,True', ('0x1', '1e3', 'None', 'True')),
    ('a,', ('a',)),
    ('7,', (7,)),
    ('a,,b', ('a', '', 'b')),
    ('"a,b",c', ('a,b', 'c')),
    ("it's,b", ("it's", 'b')),
    ('', ()),
    ('()', ()),
    ("('a,b', 'c')", ('a,b', 'c')),
    ("['kernel']", ('kernel',)),
    ('(1.5, 2)', (1.5, 2)),
  ],
)
def test_a_tuple_may_be_written_with_commas_alone(text, value):
  for parsed in (
    parse_tuple(text),
    fields.typed(text, tuple, 'config.optimizer.weight_decay_names'),
  ):
    assert parsed == value
    assert list(map(type, parsed)) == list(map(type, value))


@pytest.mark.parametrize(
  'text',
  ["('a', 'b'", '(', '(1)', "('a')", '(a, b)', '[a-c].tsv', '"a,b'],
)
def test_a_tuple_with_a_torn_bracket_or_quote_is_refused(text):
  with pytest.raises(
    UserError, match=r'optimizer\.weight_decay_names = .* a,b'
  ):
    fields.typed(text, tuple, 'config.optimizer.weight_decay_names')


@pytest.mark.parametrize(
  ('task', 'metric'),
  [
    ('classify', 'accuracy'),
    ('multilabel', 'micro_f1'),
    ('regression', 'rmse'),
    ('masked_tokens', 'loss'),
  ],
)
def test_the_first_metric_of_a_task_selects_the_best_checkpoint(task, metric):
  unnamed = settings.from_config(with_changes(task=task))
  assert unnamed.checkpoint.best_metric == metric
  changes = {'task': task, 'checkpoint.best_metric': metric}
  named = settings.from_config(with_changes(**changes))
  assert named.digest() == unnamed.digest()


def test_a_method_with_a_last_position_names_the_option_that_moves_it():
  for name, cls in POSITIONS.items():
    is_limited = cls(8, 2, False, vocab_size=5).max_length() is not None
    assert is_limited == (cls.length_option in fields.options(cls)), name


def test_the_digest_is_of_what_differs_from_the_defaults():
  digest = settings.from_config(default.get_config()).digest()
  for changes, is_same in (
    ({'model.position': 'sinusoidal(base=10000)'}, True),
    ({'model.position': 'sinusoidal(base=99)'}, False),
    ({'data.dir': ''}, True),
    ({'train.log_every': 7}, True),
    ({'train.steps': 7}, False),
  ):
    changed = settings.from_config(with_changes(**changes)).digest()
    assert (changed == digest) == is_same, changes
