"""Language models: their loss by length of the window, and their text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, make_small_config

from experiments import predict
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, streams
from experiments.data.batches import Batch
from experiments.data.vocabularies import VOCABULARIES
from experiments.inspection import head_analysis
from experiments.learning.next_token import NextToken
from experiments.settings.settings import from_config
from experiments.training import evaluation, generation, lengths
from experiments.training import run as run_lib

WINDOW = 16


def make_config(**changes):
  config = make_small_config()
  config.task = 'next_token'
  config.data.source = 'stories(train=20, validation=1, test=1)'
  config.data.vocabulary = 'byte'
  config.data.max_length = WINDOW
  config.model.encoder = 'attention(causal=True)'
  config.model.position = 'alibi'
  config.train.eval_every = 12
  config.checkpoint.best_metric = 'loss'
  config.update_from_flattened_dict(changes)
  return config


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """(workdir, result) of a small language model."""
  path = tmp_path_factory.mktemp('lm') / 'run'
  config = make_config(**{'train.eval_lengths': (8, WINDOW, 40, 10**8)})
  config.train.measures = 'attention_to_first'
  return path, run_lib.run(config, str(path), Signals())


@pytest.fixture(scope='module')
def run(trained):
  return evaluation.restore_params(str(trained[0]), 'best')


@pytest.fixture(scope='module')
def loaded(trained, run):
  return evaluation.load_data(run.settings, str(trained[0]), None)


def loss(run, loaded, length, stride=0):
  tokens = loaded.splits['test'].tokens
  size = loaded.num_bytes['test']
  return lengths.evaluate(run, tokens, size, length, stride, 64)


def test_the_window_of_training_has_the_loss_of_the_run(trained, run, loaded):
  _, result = trained
  measured = loss(run, loaded, WINDOW)
  np.testing.assert_allclose(measured.loss, result['loss'], rtol=1e-5)
  for length in (8, WINDOW, 40, 10**8):
    np.testing.assert_allclose(
      loss(run, loaded, length).bits_per_byte,
      result[f'bits_per_byte_{length}'],
      rtol=1e-5,
    )
  np.testing.assert_allclose(
    measured.bits_per_byte, result['bits_per_byte'], rtol=1e-5
  )


def test_measures_are_those_of_windows_of_each_length(trained):
  _, result = trained
  of = {n: result[f'attention_to_first_{n}'] for n in (8, WINDOW, 40, 10**8)}
  assert of[WINDOW] == pytest.approx(result['attention_to_first'], rel=1e-5)
  # The first token has more of the fewer keys of a short window.
  assert 1 > of[8] > of[WINDOW] > of[40] > of[10**8] > 0


def test_a_stride_of_the_window_is_no_overlap(run, loaded):
  assert loss(run, loaded, 24, 24) == loss(run, loaded, 24)


def test_a_window_longer_than_the_text_is_the_text(run, loaded):
  tokens = loaded.splits['test'].tokens[:30]
  one, other = (
    lengths.evaluate(run, tokens, 30, length, 0, 64) for length in (29, 10**8)
  )
  assert one == other._replace(length=29)


def test_of_bytes_nats_and_bits_are_the_same_loss(trained, run, loaded):
  result = trained[1]
  for loss_of, bits in [
    (result['loss'], result['bits_per_byte']),
    (loss(run, loaded, 8).loss, loss(run, loaded, 8).bits_per_byte),
  ]:
    assert loss_of / np.log(2) == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize('stride', [0, 5])
def test_the_loss_by_position_averages_to_the_loss(run, loaded, stride):
  measured = loss(run, loaded, 24, stride)
  parts = measured.by_position
  counts = [part['count'] for part in parts]
  assert sum(counts) == len(loaded.splits['test'].tokens) - 1
  mean = np.average([part['loss'] for part in parts], weights=counts)
  np.testing.assert_allclose(mean, measured.loss, rtol=1e-6)


def test_sliding_by_one_token_is_decoding_with_the_cache(run, loaded):
  tokens = jnp.asarray(loaded.splits['test'].tokens[:30], jnp.int32)
  cache, total = {}, 0.0

  @jax.jit
  def step(cache, tokens):
    return run.program.classifier.apply(
      {'params': run.params, **cache},
      tokens,
      jnp.ones((1, 1), bool),
      mutable=['cache'],
      cache_len=32,
    )

  for index in range(len(tokens) - 1):
    logits, cache = step(cache, tokens[None, index : index + 1])
    log_probs = logits[0, -1] - jnp.log(jnp.exp(logits[0, -1]).sum())
    total -= float(log_probs[tokens[index + 1]])
  measured = lengths.evaluate(run, np.asarray(tokens), 30, 29, 1, 64)
  np.testing.assert_allclose(total / 29, measured.loss, rtol=1e-5)


def test_no_prediction_reads_a_later_token(run, loaded):
  tokens = np.array(loaded.splits['test'].tokens[:17])
  changed = tokens.copy()
  changed[9:] = tokens[8]
  one, other = (
    lengths._by_index(run, streams.windows(stream, 16), 16, 16, 64)[0]
    for stream in (tokens, changed)
  )
  np.testing.assert_array_equal(one[:8], other[:8])
  assert (one[8:] != other[8:]).all()


@pytest.mark.slow
def test_a_stream_of_one_byte_is_learnt(tmp_path):
  (tmp_path / 'train.txt').write_text('aaaaaaaaaaaaaaa\n' * 99)
  changes = {
    'data.source': "stream(separator='')",
    'data.dir': str(tmp_path),
    'data.text.format': 'lines',
    'data.text.train': ('train.txt',),
    'data.test_fraction': 0.1,
    'train.steps': 60,
    'train.eval_every': 60,
    'optimizer.learning_rate': 0.02,
  }
  result = run_lib.run(make_config(**changes), str(tmp_path / 'run'), Signals())
  assert result['bits_per_byte'] < 0.02


def other_model(trained, run, **changes):
  """The run with another model."""
  settings = from_config(make_config(**changes))
  program = evaluation.program_of(str(trained[0]), settings)
  params = draw(lambda: program.init(program.hparams([settings])).params)
  return run._replace(settings=settings, program=program, params=params)


@pytest.mark.parametrize(
  'changes',
  [
    {'model.position': 'learned(max_len=24)'},
    {'model.position_sampling': 'randomised(max_position=24)'},
  ],
)
def test_a_length_beyond_the_positions_has_a_reason(trained, run, changes):
  other = other_model(trained, run, **changes)
  assert lengths.unsupported(other.program, 24) is None
  assert '24' in lengths.unsupported(other.program, 25)
  # The last token that is drawn is not read.
  generator = generation.Generator(other, None)
  with pytest.raises(UserError, match='max_new_tokens = 23'):
    next(generator.sampled([5, 6, 7], 23, generation.Sampling()))


@pytest.mark.parametrize(
  ('key', 'value'),
  [('position', 'alibi+selective'), ('position_sampling', 'randomised')],
)
def test_the_part_without_a_cache_is_named(trained, run, key, value):
  other = other_model(trained, run, **{f'model.{key}': value})
  name = value.rpartition('+')[2].capitalize()
  generator = generation.Generator(other, None)
  with pytest.raises(UserError, match=f'this model has no cache: .*{name}'):
    next(generator.sampled([5], 1, generation.Sampling()))


@pytest.mark.parametrize('name', ['word', 'bpe', 'byte'])
def test_text_goes_on_from_the_prompt_as_the_vocabulary_joins_it(
  name, monkeypatch
):
  prompt, after = 'one evening', ' the cat'
  tokenizer = VOCABULARIES[name]().of_stream().train([prompt + after])
  drawn, _ = encoding.token_ids(tokenizer, [after])
  generator = generation.Generator(None, tokenizer)
  monkeypatch.setattr(
    generation.Generator, 'sampled', lambda *_: drawn.tolist()
  )
  assert generator.generate(prompt) == after


def test_greedy_text_is_that_of_the_full_pass(run, trained):
  tokenizer = encoding.read_tokenizer(str(trained[0]))
  ids, _ = encoding.token_ids(tokenizer, ['Loru lives'])
  drawn = list(
    generation.Generator(run, tokenizer).sampled(
      ids, 12, generation.Sampling(temperature=0)
    )
  )
  sequence = jnp.array([[*ids.tolist(), *drawn]])
  logits = jax.jit(run.program.classifier.apply)(
    {'params': run.params}, sequence, jnp.ones(sequence.shape, bool)
  )
  best = logits[0, len(ids) - 1 : -1].argmax(axis=-1)
  assert best.tolist() == drawn


def greedy(run, ids, count, ends=()):
  sampling = generation.Sampling(temperature=0)
  generator = generation.Generator(run, None, ends)
  return list(generator.sampled(ids, count, sampling))


def test_text_ends_before_the_token_that_ends_it(run):
  drawn = greedy(run, [5, 6, 7], 8)
  end = drawn[-1]
  before = drawn[: drawn.index(end)]
  assert greedy(run, [5, 6, 7], 8, (end,)) == before


@pytest.mark.slow
def test_longrope_reads_all_tokens_anew_where_its_factors_change(trained, run):
  position = 'rotary(scaling=longrope, original_length=6, factor=4'
  position += ', pair_factors=(9, 8, 7), short_factors=(1, 1, 1))'
  changes = {'model.position': position, 'model.num_layers': 3}
  other = other_model(trained, run, **changes)
  # Logits of this size make the draws of one key depend on them.
  params = jax.tree.map(lambda x: 3 * x, other.params)
  sampling, key = generation.Sampling(), jax.random.key(0)
  generator = generation.Generator(other._replace(params=params), None)
  known = [5, 6, 7]
  drawn = list(generator.sampled(known, 12, sampling))
  apply = jax.jit(other.program.classifier.apply)
  for index in range(len(drawn)):
    tokens = jnp.array([known])
    logits = apply({'params': params}, tokens, jnp.ones(tokens.shape, bool))
    of_token = jax.random.fold_in(key, index)
    known.append(int(generation.draw(logits[0, -1], 1.0, 1.0, of_token)))
  assert known[3:] == drawn


@pytest.mark.slow
def test_heads_are_analysed_on_what_the_model_reads(run, trained):
  tokens = np.random.default_rng(0).integers(2, 200, 4 * WINDOW + 1)
  windows = streams.windows(tokens.astype(np.int32), WINDOW)
  names = head_analysis.names(encoding.read_tokenizer(str(trained[0])))
  found = head_analysis.statistics(
    run.program.classifier,
    run.params,
    windows,
    (WINDOW + 1,),
    names,
    NextToken(),
  )
  weights = head_analysis.sown_weights(
    head_analysis.sown(
      run.program.classifier,
      run.params,
      Batch(tokens[:-1].reshape(4, WINDOW), np.full(4, WINDOW), None, None),
    )
  )
  weights = np.asarray(weights)
  assert weights.shape[-1] == WINDOW
  distance = abs(np.arange(WINDOW) - np.arange(WINDOW)[:, None])
  expected = (weights * distance).sum(-1).mean((1, 3))
  np.testing.assert_allclose(found['distance'], expected, rtol=1e-4)


def test_options_of_sampling_share_a_program(run, trained):
  tokenizer = encoding.read_tokenizer(str(trained[0]))
  generator = generation.Generator(run, tokenizer)
  generator.generate('Loru lives', 5)
  count = generator._step._cache_size()
  generator.generate('Loru lives', 5, temperature=0.5, top_p=0.9, seed=3)
  assert generator._step._cache_size() == count


def test_tokens_are_drawn_by_their_probabilities():
  logits = jnp.log(jnp.array([0.1, 0.5, 0.15, 0.25]))
  keys = jnp.arange(4_000)

  def shares(**options):
    options = {'temperature': 1.0, 'top_p': 1.0} | options
    drawn = jax.vmap(
      lambda n: generation.draw(logits, key=jax.random.key(n), **options)
    )(keys)
    return np.bincount(drawn, minlength=4) / len(keys)

  np.testing.assert_allclose(shares(), [0.1, 0.5, 0.15, 0.25], atol=0.03)
  # The second and the fourth have 0.75 together.
  np.testing.assert_allclose(shares(top_p=0.7), [0, 2 / 3, 0, 1 / 3], atol=0.03)
  np.testing.assert_array_equal(shares(top_p=0.01), [0, 1, 0, 0])
  np.testing.assert_array_equal(shares(temperature=0.0), [0, 1, 0, 0])
  squared = np.array([0.01, 0.25, 0.0225, 0.0625])
  np.testing.assert_allclose(
    shares(temperature=0.5), squared / squared.sum(), atol=0.03
  )


@pytest.mark.parametrize(
  ('arguments', 'flag'),
  [
    ({'prompt': ''}, 'the prompt has no token'),
    ({'prompt': 'a', 'temperature': -1.0}, 'temperature = '),
    ({'prompt': 'a', 'temperature': 1e-38}, 'temperature = '),
    ({'prompt': 'a', 'top_p': 0.0}, 'top_p = '),
    ({'prompt': 'a', 'seed': 2**63}, 'seed = '),
    ({'prompt': 'a', 'max_new_tokens': 0}, 'max_new_tokens = 0'),
  ],
)
def test_what_generates_no_text_is_one_line(run, trained, arguments, flag):
  tokenizer = encoding.read_tokenizer(str(trained[0]))
  with pytest.raises(UserError, match=flag):
    generation.Generator(run, tokenizer).generate(**arguments)


def test_evaluate_prints_the_loss_of_each_length(trained, printed_json):
  path, result = trained
  printed = printed_json(
    'evaluate', f'--workdir={path}', f'--lengths={WINDOW},64', '--stride=8'
  )
  first, second = printed['lengths']
  assert (first['length'], second['length']) == (WINDOW, 64)
  assert first['loss'] != pytest.approx(result['loss'], rel=1e-4)
  assert printed['stride'] == 8


@pytest.mark.parametrize(
  'flags',
  [
    ['--lengths=a'],
    ['--lengths=8', '--stride=9'],
    ['--stride=3'],
    ['--calibrated=False', '--lengths=8'],
  ],
)
def test_wrong_lengths_are_refused(trained, call_command, flags):
  code, _, error = call_command(
    'evaluate', f'--workdir={trained[0]}', *flags, cwd='.'
  )
  assert code == 2
  assert flags[0].partition('=')[0] in error


def test_predict_goes_on_from_a_prompt(trained, printed_json, call_command):
  path, _ = trained
  flags = ['--prompt=Loru lives', '--max_new_tokens=7', '--temperature=0']
  printed = printed_json('predict', f'--workdir={path}', *flags)
  generator = predict.load(str(path))
  assert printed['text'] == generator.generate('Loru lives', 7, temperature=0)
  for wrong in (
    ['--text=a'],
    ['--max_new_tokens=3'],
    ['--prompt=a', '--text=b'],
    ['--prompt=a', '--batch_size=3'],
    ['--prompt=a', '--config.data.text.format=csv'],
    ['--prompt=\udcff'],
  ):
    code, _, error = call_command(
      'predict', f'--workdir={path}', *wrong, cwd='.'
    )
    assert code == 2
    assert '--prompt' in error


@pytest.mark.slow
def test_a_run_of_several_offsets_is_read_as_a_model_of_the_next_token(
  tmp_path, printed_json
):
  path = str(tmp_path / 'run')
  config = make_config(
    **{
      'task': 'next_token(offsets=3)',
      'model.encoder': 'attention(causal=True, remat=True)',
      'train.steps': 4,
      'train.curriculum': 'longer(start=8, over=0.5)',
      'train.grad_accum_steps': 2,
      'train.eval_lengths': (8,),
      'checkpoint.best_metric': 'loss_2',
    }
  )
  result = run_lib.run(config, path, Signals())
  assert np.isfinite([result['loss_2'], result['loss_3']]).all()
  where = f'--workdir={path}'
  printed = printed_json('evaluate', where)
  assert 'loss_2' not in printed
  for name in ('loss', 'accuracy', 'perplexity', 'bits_per_byte', 'step'):
    assert printed[name] == pytest.approx(result[name], rel=1e-5)
  (row,) = printed_json('evaluate', where, '--lengths=8')['lengths']
  assert row['bits_per_byte'] == pytest.approx(result['bits_per_byte_8'])
  flags = ['--prompt=Loru', '--max_new_tokens=1', '--temperature=0']
  printed = printed_json('predict', where, *flags)
  read = evaluation.restore_params(path, 'best')
  assert 'further' not in read.params
  tokenizer = encoding.read_tokenizer(path)
  tokens = jnp.array([encoding.token_ids(tokenizer, ['Loru'])[0]])
  logits = jax.jit(read.program.classifier.apply)(
    {'params': read.params}, tokens, tokens == tokens
  )
  drawn = [int(logits[0, -1].argmax())]
  assert printed['text'] == tokenizer.decode(drawn, skip_special_tokens=False)


def test_a_classifier_goes_on_from_no_prompt(finished_run, call_command):
  code, _, error = call_command(
    'predict', f'--workdir={finished_run}', '--prompt=a', cwd='.'
  )
  assert code == 2
  assert 'next_token' in error
