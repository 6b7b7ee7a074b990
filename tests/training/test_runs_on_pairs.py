"""Pairs of texts in a model: types, positions, and runs from end to end."""

import json
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from conftest import draw, make_small_config

from experiments import predict
from experiments.command.signals import Signals
from experiments.data import encoding
from experiments.data.batches import Batch
from experiments.data.vocabularies import UNK, Word, add_separator
from experiments.learning import gradients
from experiments.learning.hparams import HParams
from experiments.settings.settings import from_config
from experiments.training import build, sources
from experiments.training import run as run_lib
from selfattn.classifier import TextClassifier
from selfattn.contract import Encoder
from selfattn.pools import POOLS
from selfattn.positions.sampling import Consecutive, RandomOffset
from selfattn.tokens import Tokens

pytestmark = pytest.mark.usefixtures('shared_programs')
WORDS = ['the', 'film', 'is', 'good']
PAIRS = [('the film', 'good'), ('film', 'is good the film'), ('good', '')]


class Recorder(Encoder):
  """Sows what it reads."""

  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    tokens = Tokens.of(tokens).with_defaults(x_BLD.shape[1])
    self.sow('intermediates', 'x', x_BLD)
    self.sow('intermediates', 'positions', tokens.positions)
    return x_BLD


def read(pool='mean', **fields):
  """(vectors, positions, types, lengths) of PAIRS, and the tokenizer."""
  tokenizer = Word().train([' '.join(WORDS)])
  add_separator(tokenizer)
  examples, _ = encoding.encode(tokenizer, PAIRS, 64)
  batch = examples.batch(np.arange(len(PAIRS)), len(PAIRS), 9)
  size = tokenizer.get_vocab_size()
  model = TextClassifier(
    size, 2, 6, Recorder(), POOLS[pool](), separator=size - 1, **fields
  )
  mask = np.arange(9)[None] < batch.lengths[:, None]
  variables = jax.jit(model.init)(jax.random.key(0), batch.tokens, mask)
  _, sown = model.apply(variables, batch.tokens, mask, mutable='intermediates')
  (x_BLD,) = sown['intermediates']['encoder']['x']
  (positions,) = sown['intermediates']['encoder']['positions']
  params = nn.meta.unbox(variables['params'])
  lengths = batch.lengths + (pool == 'cls')
  positions_BL = np.broadcast_to(positions, x_BLD.shape[:2])
  return x_BLD, positions_BL, params, lengths, tokenizer


def type_ids(tokenizer, cls):
  """Of the library, for PAIRS."""
  ids = [
    (name, tokenizer.token_to_id(name) or 0) for name in ('[SEP]', '[UNK]')
  ]
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
    single='$A',
    pair=f'{"[UNK]:0 " if cls else ""}$A:0 [SEP]:0 $B:1 [SEP]:1',
    special_tokens=ids,
  )
  return [one.type_ids for one in tokenizer.encode_batch(PAIRS)]


@pytest.mark.slow
@pytest.mark.parametrize('pool', ['mean', 'cls'])
def test_the_vector_of_its_type_is_added_to_each_token(pool):
  x_BLD, _, params, lengths, tokenizer = read(pool)
  has_cls = pool == 'cls'
  for row, types in enumerate(type_ids(tokenizer, has_cls)):
    words = tokenizer.encode(*PAIRS[row]).ids
    expected = params['embed']['embedding'][jnp.array(words)]
    if has_cls:
      expected = expected.at[0].set(params['cls'])
    expected += params['token_type']['embedding'][jnp.array(types)]
    assert len(types) == lengths[row]
    np.testing.assert_array_equal(x_BLD[row, : len(types)], expected)


@pytest.mark.slow
@pytest.mark.parametrize('pool', ['mean', 'cls'])
@pytest.mark.parametrize('sampling', [Consecutive(), RandomOffset()])
def test_positions_run_on_or_restart_at_the_second_text(pool, sampling):
  _, run_on, _, lengths, tokenizer = read(pool, sampling=sampling)
  _, restarted, *_ = read(pool, sampling=sampling, restarts=True)
  has_cls = pool == 'cls'
  for row, types in enumerate(type_ids(tokenizer, has_cls)):
    length, second = lengths[row], types.index(1)
    index = list(range(length))
    assert run_on[row, :length].tolist() == index
    second_index = [n - second + has_cls for n in index[second:]]
    assert restarted[row, :length].tolist() == index[:second] + second_index


@pytest.mark.slow
def test_word_dropout_keeps_what_is_between_the_texts(tmp_path):
  config = pairs_config(tmp_path)
  config.model.word_dropout_rate = 0.999
  settings = from_config(config)
  model = build.model(settings, 9, 2)
  hparams = HParams.of(settings)
  params = draw(lambda: build.init_state(settings, model, hparams).params)
  batch = Batch(
    np.tile(np.int32([2, 3, 8, 4, 8]), (4, 1)), np.full(4, 5, np.int32),
    np.zeros(4, np.int32), np.ones(4, np.float32),
  )  # fmt: skip
  _, grads = jax.jit(
    lambda params: gradients.gradients(
      params, batch, hparams, 0, classifier=model, num_microbatches=lambda _: 1
    )
  )(params)
  assert jnp.abs(grads['token_type']['embedding'][1]).max() > 0


def write_table(folder):
  """Texts whose label is whether both are the same one."""
  rows = []
  for n in range(120):
    first = f'{WORDS[n % 4]} {WORDS[n // 4 % 4]}'
    second = first if n % 2 else f'{WORDS[n // 2 % 4]} film'
    rows.append(f'{first}\t{second}\t{"same" if n % 2 else "other"}')
  (folder / 'a.tsv').write_text('\n'.join(['a\tb\tlabel', *rows]) + '\n')


def pairs_config(folder):
  config = make_small_config()
  config.data.source = 'text'
  config.data.dir = str(folder)
  config.data.test_fraction = 0.2
  config.data.text.train = ('a.tsv',)
  config.data.text.text_columns = ('a', 'b')
  config.data.text.join = 'pair'
  return config


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('pairs')
  write_table(folder)
  config = pairs_config(folder)
  config.model.word_dropout_rate = 0.1
  config.model.pair_positions = 'restart'
  run_lib.run(config, str(folder / 'run'), Signals())
  return folder / 'run'


def test_pairs_are_predicted_from_tuples_alone(run):
  classify = predict.load(str(run), batch_size=2)
  one, empty, other = classify(
    [('the film', 'the film'), ('', ''), ('the', '')]
  )
  assert empty == (None, None, False, None)
  (alone,) = classify([('the film', 'the film')])
  assert one.probabilities == pytest.approx(alone.probabilities, rel=1e-5)
  assert other.label in ('same', 'other')
  wrong: Any
  for wrong in (['the film'], [['the', 'film']], [('the', 'film', 'is')]):
    with pytest.raises(TypeError, match='a tuple of two texts'):
      classify(wrong)
  wrong = [('the', 3)]
  with pytest.raises(TypeError, match='a text must be a str'):
    classify(wrong)


def test_the_order_of_a_pair_matters_and_so_does_what_is_between(run):
  classify = predict.load(str(run))
  texts = [('the film', 'good'), ('good', 'the film'), ('the', 'film good')]
  probabilities = [answer.probabilities or {} for answer in classify(texts)]
  assert len({round(one['same'], 6) for one in probabilities}) == 3


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('texts', 'the film\tthe good\n\ngood\tgood\n'),
    ('rows.jsonl', '{"a": "the film", "b": "the good"}\n\n'
     '{"b": "good", "a": "good"}\n'),
    ('rows.tsv', 'b\ta\nthe good\tthe film\n\ngood\tgood\n'),
  ],
)  # fmt: skip
def test_lines_and_columns_are_pairs(
  run, tmp_path, call_command, name, content
):
  (tmp_path / name).write_text(content)
  code, out, _ = call_command(
    'predict', f'--workdir={run}', f'--input={name}', '--json', cwd=tmp_path
  )
  assert code == 0
  answers = [json.loads(line)['probabilities'] for line in out.splitlines()]
  classify = predict.load(str(run))
  expected = classify([('the film', 'the good'), ('', ''), ('good', 'good')])
  assert answers == [
    one.probabilities and pytest.approx(one.probabilities, rel=1e-5)
    for one in expected
  ]


def test_a_line_that_is_no_pair_is_one_line(run, tmp_path, call_command):
  (tmp_path / 'texts').write_text('a\tb\nno tab\n')
  for flag in ('--input=texts', '--text=no tab'):
    code, _, err = call_command(
      'predict', f'--workdir={run}', flag, cwd=tmp_path
    )
    assert code == 2
    (line,) = [line for line in err.splitlines() if 'is no pair' in line]
    assert 'no tab' in line
    assert 'Traceback' not in err


def test_the_separator_begins_as_an_unknown_word_of_a_run_without_pairs():
  table = np.arange(12.0).reshape(4, 3)
  found = sources._with_separator(table, np.zeros((5, 3)))
  np.testing.assert_array_equal(found, table[[0, 1, 2, 3, UNK]])
