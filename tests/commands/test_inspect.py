"""Files and pages of experiments.inspect, and wrong input."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, draw, last_json, make_small_config

from experiments.command.signals import Signals
from experiments.data.batches import Examples
from experiments.inspection import (
  figures,
  head_analysis,
  position_figures,
  run_page,
)
from experiments.settings import stored
from experiments.settings.settings import from_config
from experiments.training import build
from experiments.training import run as run_lib
from selfattn import analysis, plots, positions
from selfattn.classifier import TextClassifier
from selfattn.contract import Encoder
from selfattn.encoders import ENCODERS, AttentionEncoder
from selfattn.masks import Tokens
from selfattn.positions.absolute import Sinusoidal

pytestmark = pytest.mark.usefixtures('shared_programs')
TEXT = 'the zebra was dull but the acting was fine'
KNOWN = TEXT.replace('zebra', '[UNK]').split()


def trained(path, **changes):
  config = make_small_config()
  config.train.steps = config.train.eval_every = 3
  config.update_from_flattened_dict(changes)
  run_lib.run(config, str(path), Signals())
  return path


def numbers(folder):
  """By name of a figure, the arrays that it shows, and their labels."""
  return json.loads((folder / 'numbers.json').read_text())


def heading(page):
  return re.findall('<h2>(.*?)</h2>', page.read_text())


@pytest.fixture(scope='module')
def inspected(tmp_path_factory, printed_json):
  """A run, and what the command has printed."""
  path = trained(tmp_path_factory.mktemp('inspect') / 'run')
  result = printed_json('inspect', f'--workdir={path}', f'--text={TEXT}',
    '--num_examples=9',
  )  # fmt: skip
  return path, result


@pytest.mark.slow
def test_a_page_says_which_texts_are_truncated(tmp_path, printed_json):
  path = trained(tmp_path / 'run', **{'data.max_length': 13})
  printed_json('inspect', f'--workdir={path}', f'--text={TEXT} {TEXT}',
    '--num_examples=2',
  )  # fmt: skip
  page = (path / 'inspect/index.html').read_text()
  said = 'truncated to 13 tokens'
  (count,) = re.findall(f'<p>([0-9]+) of 22 texts are {said}', page)
  listed = page.split('<h2>Texts with the greatest loss</h2>')[1]
  listed = listed.split('</section>')[0]
  read = re.findall('<td dir="auto">([0-9]+(?:, truncated)?)</td>', listed)
  assert len(read) == 20
  (data,) = re.findall('<script type="application/json">(.*)</script>', page)
  first, *others = (entry['note'] for entry in json.loads(data))
  assert first.endswith(f'; {said}')
  are_cut = [note.endswith(f'; {said}') for note in others]
  assert are_cut == ['truncated' in tokens for tokens in read]
  assert sum(are_cut) <= int(count) <= sum(are_cut) + 2


def documented():
  """Stems of the names of files on the page about inspecting a model."""
  page = (ROOT / 'docs/interpretability.md').read_text()
  cells = re.findall(r'^\| (`.*?) \|', page, re.MULTILINE)
  return set(re.findall('`([a-z]+)', ' '.join(cells)))


def test_a_figure_is_one_file_and_its_numbers_are_in_another(inspected):
  path, result = inspected
  folder = path / 'inspect'
  assert {path.name for path in folder.glob('[!.]*')} == set(result['files'])
  assert {re.match('[a-z]+', name)[0] for name in result['files']} <= (
    documented()
  )
  found = numbers(folder)
  assert {f'{name}.png' for name in found} == {
    name for name in result['files'] if name.endswith('.png')
  }
  weights = np.array(found['attention-0']['weights'])
  assert found['attention-0']['labels']['tokens'] == KNOWN
  assert weights.shape == (1, 2, len(KNOWN), len(KNOWN))
  np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
  assert [head['head'] for head in result['heads']] == [0, 1]
  assert result['ablation']['examples'] == 9
  assert len(result['ablation']['least_important_first']) == 3


def test_a_page_of_a_run_has_all_its_parts(inspected):
  path, _ = inspected
  page = path / 'inspect/index.html'
  assert heading(page) == [
    'Run',
    'Curves',
    'Results on validation',
    'Texts with the greatest loss',
    'Heads on validation',
    'Attention',
    'Positions',
    'Config',
  ]
  text = page.read_text()
  # The name of the run, not its path.
  assert '<title>run</title>' in text
  for name in ('loss by steps', 'accuracy on 9 texts by heads ablated'):
    assert f'aria-label="{name}"' in text
  assert 'alt="encoding"' in text
  (attempt,) = json.loads((path / 'env.json').read_text())
  # There is no commit without git.
  for fact in ('time', 'commit', 'machine'):
    assert (attempt[fact] or '') in text
  changed = re.findall('<tr class=marked><td.*?>(config.*?)</td>', text)
  assert 'config.model.embed_dim' in changed
  assert 'config.seed' not in changed
  (data,) = re.findall('<script type="application/json">(.*)</script>', text)
  shown = json.loads(data)
  # That of --text, and those with the greatest loss.
  assert (shown[0]['title'], len(shown)) == (TEXT, 21)
  assert re.fullmatch(r'predicted: \w+ \(0\.\d+\)', shown[0]['note'])
  assert shown[1]['note'].startswith('true: ')


def test_a_count_has_its_texts_as_they_stand_in_their_file(inspected):
  text = (inspected[0] / 'inspect/index.html').read_text()
  settings = stored.read_settings(str(inspected[0]))
  rows = settings.data.dataset().read('', settings.data.seed)['validation']
  origins = {f'word_order, row {row.number}': row for row in rows}
  total = 0
  for key, count in re.findall('href="#(classes-.-.)">([0-9]+)<', text):
    shown = text.split(f'id="{key}"')[1].split('</div></div>')[0]
    total += int(count)
    cells = re.findall('<td.*?>(.*?)</td>', shown)
    for _, true, predicted, sentence, tokens, origin in zip(
      *[iter(cells)] * 6, strict=True
    ):
      assert int(tokens) == len(sentence.split())
      row = origins[origin]
      assert (sentence, true) == (row.text, row.label)
      assert key == 'classes-{}-{}'.format(
        *map(('negative', 'positive').index, (true, predicted.split()[0]))
      )
  assert total == len(rows)


def test_a_click_on_a_count_shows_its_texts(inspected, browser):
  browser.get(f'file://{inspected[0]}/inspect/index.html')
  lists = browser.find_elements('css selector', '.texts')
  assert not any(shown.is_displayed() for shown in lists)
  browser.find_element('css selector', '.matrix a').click()
  assert [shown.is_displayed() for shown in lists].count(True) == 1
  assert browser.get_log('browser') == []


def test_two_runs_are_compared(inspected, tmp_path, printed_json):
  path, other = inspected[0], tmp_path / 'other'
  shutil.copytree(path, other)
  output = tmp_path / 'page'
  printed_json('inspect', f'--workdir={path},{other}', f'--output={output}',
    '--num_examples=2',
  )  # fmt: skip
  text = (output / 'index.html').read_text()
  table = text.split('<h2>Runs compared</h2>')[1].split('</table>')[0]
  of_runs = re.findall('<td[^>]*>(run|other)</td>(.*)</tr>', table)
  assert [name for name, _ in of_runs] == ['run', 'other']
  # A copy has the same scores, and the same texts right.
  assert of_runs[0][1] == of_runs[1][1]
  assert re.findall('href="#runs-(.-.)"', text) == ['0-0', '1-1']
  assert 'equal: run, train; other, train' in text


class Uniform(Encoder):
  """Each head attends to all tokens alike, without parameters to gate."""

  num_layers: int
  num_heads: int

  def __call__(self, x_BLD, tokens, dropout=None, attention_dropout=None):
    padding_mask_BL = Tokens.of(tokens).padding_mask
    weights_BL = padding_mask_BL / padding_mask_BL.sum(axis=1, keepdims=True)
    rows, length = padding_mask_BL.shape
    shape = (rows, self.num_heads, length, length)
    for _ in range(self.num_layers):
      weights = jnp.broadcast_to(weights_BL[:, None, None], shape)
      self.sow('intermediates', 'weights', weights)
    return x_BLD + (weights_BL[..., None] * x_BLD).sum(axis=1, keepdims=True)


@pytest.fixture
def uniform(monkeypatch):
  # For one test only: the config of another would seem to register it.
  monkeypatch.setitem(ENCODERS, 'uniform', Uniform)


@pytest.mark.usefixtures('uniform')
def test_heads_that_cannot_be_ablated_have_statistics_and_pools_their_weights(
  call_command, tmp_path
):
  path = trained(
    tmp_path / 'run',
    **{
      'model.encoder': 'uniform',
      'model.pool': 'attentive(num_hops=3)',
    },
  )
  flags = [f'--workdir={path}', f'--text={TEXT}']
  code, stdout, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 0, stderr
  result = last_json(stdout)
  assert result['ablation'] is None
  assert [row['entropy'] for row in result['heads']] == pytest.approx([1, 1])
  assert 'heads are not ablated: every layer needs one selfattn' in stderr
  pooling = numbers(path / 'inspect')['pooling-0']
  weights = np.array(pooling['weights'])
  assert weights.shape == (3, len(KNOWN))
  np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
  assert pooling['labels']['tokens'] == KNOWN


def test_a_run_without_heads_has_a_page_but_no_attention(
  call_command, tmp_path
):
  path = trained(tmp_path / 'run', **{'model.encoder': 'bow'})
  workdir = f'--workdir={path}'
  code, stdout, stderr = call_command('inspect', workdir, cwd=tmp_path)
  assert code == 0, stderr
  assert last_json(stdout)['files'] == ['numbers.json', 'index.html']
  assert heading(path / 'inspect/index.html')[2:] == [
    'Results on validation',
    'Texts with the greatest loss',
    'Config',
  ]
  code, _, stderr = call_command(
    'inspect', workdir, f'--text={TEXT}', cwd=tmp_path
  )
  assert (code, 'config.model.encoder' in stderr) == (2, True)


def drawn(
  name,
  embed_dim=8,
  num_layers=1,
  length=5,
  num_heads=2,
  heads=0,
  causal=False,
):
  """Figures of an untrained encoder, with a position method of some heads."""
  options = {'heads': heads} if heads else {}
  method = positions.make(
    dict.fromkeys(name.split('+'), options), embed_dim, num_heads, causal
  )
  encoder = AttentionEncoder(
    num_layers, num_heads, 8, method, jnp.float32, causal=causal
  )
  model = TextClassifier(3, 2, embed_dim, encoder)
  tokens = jnp.ones((1, length), jnp.int32)
  params = draw(model.init, jax.random.key(0), tokens, tokens == 0)['params']
  found = figures.Figures('')
  position_figures.draw(found, model, params, length, length)
  return found


@pytest.mark.parametrize(
  ('name', 'kinds'),
  [
    ('none', set()),
    ('fire+rotary', {'bias', 'distance', 'encoding', 'gram', 'columns'}),
    pytest.param('cope', {'bias'}, marks=pytest.mark.slow),
    pytest.param(
      *('pope', {'encoding', 'gram', 'columns'}), marks=pytest.mark.slow
    ),
  ],
)
def test_untrained_methods_are_drawn(name, kinds):
  found = drawn(name, num_layers=1 + ('+' in name))
  assert {stem.partition('-')[0] for stem in found.pngs} == kinds
  assert kinds <= documented()
  # Tables and networks of a layer have a separate figure.
  layers = {stem[-1] for stem in found.pngs if 'layer' in stem}
  assert layers == {
    'fire+rotary': {'0', '1'}, 'cope': {'0'}, 'pope': {'0'},
  }.get(name, set())  # fmt: skip


def test_drawn_values_are_those_of_the_method(call_command, tmp_path):
  flags = ['--config.model.embed_dim=8', '--config.model.num_heads=2']
  flags += ['--config.data.max_length=11', f'--output={tmp_path}']
  _, stdout, _ = call_command('inspect', *flags, cwd=tmp_path)
  files = set(last_json(stdout)['files'])
  assert {path.name for path in tmp_path.glob('[!.]*')} == files
  P = np.asarray(
    Sinusoidal(8, 2, False).encoding({}, Tokens().with_defaults(11))
  )
  found = numbers(tmp_path)
  np.testing.assert_array_equal(np.float32(found['encoding']['P']), P)
  np.testing.assert_allclose(
    found['gram']['cosine'][0], analysis.gram(P[0]), rtol=1e-6
  )
  assert found['columns']['labels']['columns'] == [6, 7]


def test_a_bias_is_drawn_to_twice_the_longest_text():
  found = drawn('alibi', length=11)
  curves = found.numbers['distance']
  # On both sides; slopes are 2^-4 and 2^-8.
  assert curves['distance'] == list(range(-22, 23))
  expected = -abs(np.array(curves['distance'])) * [[2.0**-4], [2.0**-8]]
  np.testing.assert_allclose(curves['bias'], expected, rtol=1e-6)
  assert np.shape(found.numbers['bias']['P']) == (1, 2, 11, 11)


@pytest.fixture
def heatmaps(monkeypatch):
  """The arrays of all heat maps that are drawn."""
  arrays, show = [], plots.show_heatmaps

  def keep(matrices, *more, **named):
    arrays.append(np.asarray(matrices))
    return show(matrices, *more, **named)

  monkeypatch.setattr(plots, 'show_heatmaps', keep)
  return arrays


def test_a_causal_encoder_has_no_bias_of_later_keys(heatmaps):
  found = drawn('alibi', length=7, causal=True)
  (shown,) = heatmaps
  is_later = np.triu(np.ones((7, 7), bool), 1)
  assert (np.isnan(shown) == is_later).all()
  # Their numbers are as they were sown, and JSON has no NaN.
  assert np.isfinite(found.numbers['bias']['P']).all()
  figure = plots.distance_curves(np.arange(-4, 1), np.zeros((1, 5)), 'y', 3)
  left, right = figure.axes[0].patches[0].get_extents().get_points()[:, 0]
  ends = figure.axes[0].transData.inverted().transform([(left, 0), (right, 0)])
  np.testing.assert_allclose(ends[:, 0], [-3, 0], atol=1e-9)


@pytest.mark.slow
def test_a_causal_encoder_has_no_vectors_of_later_keys():
  found = drawn('shaw', length=6, causal=True).numbers['encoding-layer0']
  assert np.shape(found['P'])[1] == 6
  assert found['labels']['first'] == -5


def test_a_causal_encoder_has_no_term_of_later_keys(heatmaps):
  P = np.arange(18.0).reshape(2, 3, 3)
  figures.term(figures.Figures(''), 'x', P, ['a', 'b', 'c'], True)
  hidden = np.isnan(heatmaps[0][0])
  assert (hidden == np.triu(np.ones((3, 3), bool), 1)).all()


@pytest.mark.slow
def test_a_bias_of_few_positions_is_drawn_over_these():
  found = drawn('tupe', length=200)
  # The query is in the middle of its 512 positions.
  assert found.numbers['distance']['distance'] == list(range(-255, 256))


@pytest.mark.slow
def test_a_method_of_some_heads_says_which_they_are():
  found = drawn('alibi+transformer_xl', 16, num_heads=4, heads=2)
  (labels,) = (
    numbers['labels']
    for name, numbers in found.numbers.items()
    if name.startswith('encoding-transformer_xl')
  )
  assert labels['first head'] == 2


def test_a_line_shows_where_positions_of_train_end():
  figure = plots.show_heatmaps(np.zeros((1, 1, 6, 6)), 'key', 'query')
  position_figures._mark(4, False, figure, 'xy')
  lines = [line.get_data() for line in figure.axes[0].lines]
  assert lines == [([3.5, 3.5], [0, 1]), ([0, 1], [3.5, 3.5])]
  position_figures._mark(9, False, figure, 'xy')
  assert len(figure.axes[0].lines) == 2


def test_numbers_of_a_large_array_are_left_out(monkeypatch, capfd):
  monkeypatch.setattr(figures, '_MOST_NUMBERS', 2)
  found = figures.Figures('')
  arrays = {'x': np.arange(2), 'y': np.arange(3)}
  found.add('a', plots.plot(np.arange(3.0)), arrays, {'x': ['step']})
  assert found.numbers == {'a': {'x': [0, 1], 'labels': {'x': ['step']}}}
  assert 'a: y is too large' in capfd.readouterr().err


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--text=a'], '--output or --workdir is required'),
    (['--output=OUT', '--text=a'], '--text does not apply to an untrained'),
    (['--workdir=RUN', '--text='], "'' has no tokens"),
    (['--workdir=RUN', '--config.seed=3'], 'drop --config'),
    (['--workdir=RUN', '--length=1'], '--length=1 must be'),
    (['--workdir=RUN', '--checkpoint=5'], "checkpoint = '5'"),
    (['--workdir=RUN', '--metric=loss'], '--metric does not apply to a run'),
    (['--workdir=gs://none/run'], '--output is required'),
    (['--workdir=RUN', '--split=all'], 'split'),
    (['--output='], '--output or --workdir is required'),
    (['--workdir=RUN', '--output=FILE'], '--output: '),
    (['--workdir=RUN', '--text=\udcff'], 'is not UTF-8'),
    (['--workdir=nowhere'], 'nowhere'),
    (
      ['--output=OUT', '--config.model.encoder=cnn'],
      'config.model.encoder',
    ),
    (
      [
        '--output=OUT',
        '--config.model.position=learned',
        '--length=9999',
      ],
      '--length=9999 is more than',
    ),
  ],
)
def test_wrong_input_is_one_line(
  flags, words, inspected, call_command, tmp_path
):
  (tmp_path / 'file').touch()
  paths = {'RUN': inspected[0], 'OUT': tmp_path / 'out'}
  paths['FILE'] = tmp_path / 'file'
  for name, path in paths.items():
    flags = [flag.replace(name, str(path)) for flag in flags]
  code, _, stderr = call_command('inspect', *flags, cwd=tmp_path)
  assert code == 2, stderr
  assert words in stderr.splitlines()[-1]
  assert not (tmp_path / 'out').exists()


def test_parts_are_drawn_with_parameters_of_the_model_and_of_each_layer():
  """Parts with parameters in the model, combined with parts in layers."""
  method = positions.make({'kerple': {}, 't5': {'shared': False}}, 8, 2, False)
  encoder = AttentionEncoder(3, 2, 4, method, jnp.float32)
  x_BLD, padding_mask = jnp.zeros((1, 5, 8)), jnp.ones((1, 5), bool)
  params = draw(encoder.init, jax.random.key(0), x_BLD, padding_mask)['params']
  found = {
    name: (type(part).__name__, params)
    for name, part, params in position_figures._methods(encoder, params)
  }
  assert found.keys() == {'-kerple', *(f'-t5-layer{n}' for n in range(3))}
  assert found['-kerple'] == ('Kerple', params['position']['kerple'])
  for n in range(3):
    kept = params[f'block_{n}']['attention']['position']['t5']
    assert found[f'-t5-layer{n}'] == ('T5', kept)


@pytest.mark.parametrize(
  ('name', 'axes', 'shape'),
  [
    ('alibi+dape', ['head', 'query', 'key'], (2, 4, 4)),
    pytest.param(
      *('convolutional', ['token', 'channel'], (4, 12)),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_what_a_method_makes_of_a_text_is_drawn_with_its_tokens(
  name, axes, shape
):
  config = make_small_config()
  config.model.position = name
  config.model.encoder = f'attention(scan={"+" in name})'
  classifier = build.model(from_config(config), 9, 2)
  ids = np.arange(1, 9, dtype=np.int32)
  examples = Examples(
    ids, np.array([0, 4]), np.array([4, 4]), np.zeros(2, np.int32)
  )
  mask_BL = np.ones((1, 4), bool)
  params = draw(classifier.init, jax.random.key(0), ids[None, :4], mask_BL)
  names = [*'.abcdefgh']
  found = figures.Figures('')
  for number, maps in enumerate(
    head_analysis.attention_maps(classifier, params['params'], examples, names)
  ):
    run_page._draw_text(found, number, maps, False)
  suffix = '-dape-layer0' if '+' in name else ''
  one, other = (found.numbers[f'position-{n}{suffix}'] for n in range(2))
  assert one['labels'] == {'P': axes, 'tokens': [*'abcd']}
  assert np.shape(one['P']) == shape
  # Another text, another term.
  assert abs(np.array(one['P']) - other['P']).max() > 1e-4
