"""Texts that find each other: the loss, the metrics, the data, and a run."""

import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from conftest import make_small_config, normal

from experiments import predict
from experiments.command.errors import UserError
from experiments.data import loading
from experiments.data.batches import Batch, TrainBatches
from experiments.learning.contrastive import Contrastive
from experiments.learning.tasks import Targets
from experiments.settings.settings import from_config
from experiments.training import run as run_lib


def targets_of(fingerprints, belongs=True):
  fingerprints = jnp.asarray(fingerprints, jnp.uint32)
  tokens = jnp.zeros((fingerprints.size, 1), jnp.int32)
  lengths = jnp.ones(fingerprints.size, jnp.int32)
  weights = np.ones(fingerprints.shape) * np.reshape(belongs, (-1, 1))
  return Targets(tokens, lengths, fingerprints, weights)


def distinct(num_texts):
  return 1 + np.arange(6 * num_texts).reshape(6, num_texts)


def expected(task, vectors, fingerprints, belongs):
  """(losses, whether right) (examples, 2), written out, in float64."""
  count, num_texts, _ = vectors.shape
  if task.similarity == 'cosine':
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    vectors = vectors / np.maximum(norms, 1e-12)
  losses, correct = np.zeros((count, 2)), np.zeros((count, 2), bool)
  for row in range(count):
    for own, other in ((0, 1), (1, 0))[: 1 + task.symmetric]:
      scores = [vectors[row, own] @ vectors[row, other] / task.temperature]
      for there in range(count):
        for text in range(1, num_texts) if own == 0 else [0]:
          one = fingerprints[there, text]
          is_right_too = (
            text == other
            and belongs[there]
            and fingerprints[there, own] == fingerprints[row, own]
          )
          if one in (0, *fingerprints[row, :2]) or is_right_too:
            continue
          product = vectors[row, own] @ vectors[there, text]
          scores.append(product / task.temperature)
      losses[row, own] = scipy.special.logsumexp(scores) - scores[0]
      correct[row, own] = scores[0] > max(scores[1:])
  return losses, correct


@pytest.mark.parametrize(
  'num_texts', [2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
  'task',
  [
    Contrastive(),
    Contrastive(symmetric=False, temperature=0.3),
    Contrastive(similarity='dot', temperature=2.0),
  ],
)
def test_losses_are_those_written_out(task, num_texts):
  vectors = np.array(normal(0, (6, num_texts, 5)), float)
  fingerprints = distinct(num_texts)
  # An equal second text, equal first ones, a first one that is a second one,
  # and an empty text. The texts of the first example do not belong together.
  fingerprints[3, 1] = fingerprints[1, 1]
  fingerprints[4, 0] = fingerprints[5, 0]
  fingerprints[1, 0] = fingerprints[0, 0]
  belongs = np.arange(6) > 0
  fingerprints[2, 0] = fingerprints[3, 1]
  fingerprints[2, num_texts - 1] = vectors[2, num_texts - 1] = 0
  losses, correct = task.losses(
    jnp.asarray(vectors.reshape(6 * num_texts, 5), jnp.float32),
    targets_of(fingerprints, belongs),
  )
  assert losses.shape == correct.shape == (6, num_texts)
  wanted, is_right = expected(task, vectors, fingerprints, belongs)
  np.testing.assert_allclose(losses[:, :2], wanted, atol=2e-5)
  np.testing.assert_array_equal(correct[:, :2], is_right)
  assert not np.asarray(losses[:, 2:]).any()


@pytest.mark.slow
def test_a_vector_of_0_has_no_gradient():
  task, targets = Contrastive(), targets_of(distinct(2))
  vectors = normal(0, (12, 4)).at[3].set(0)
  gradient = jax.grad(lambda x: task.losses(x, targets)[0].sum())(vectors)
  assert np.isfinite(gradient).all()
  assert not np.asarray(gradient[3]).any()
  assert abs(gradient).max() < 1e3


def test_texts_without_a_right_one_only_give_negatives():
  task = Contrastive(positive=2.0)
  tokens = np.arange(10, dtype=np.int32).reshape(10, 1) % 5
  labels = np.array([3, 1, np.nan, 5, 3], np.float32)
  weights = np.array([1, 1, 1, 0, 1], np.float32)
  lengths = np.array([1] * 9 + [0], np.int32)
  targets = task.targets(Batch(tokens, lengths, labels, weights), 9, None)
  np.testing.assert_array_equal(
    targets.weights, [[1, 1], [0, 0], [1, 1], [0, 0], [0, 0]]
  )
  same = tokens.reshape(5, 2) == tokens[0]
  np.testing.assert_array_equal(targets.labels == targets.labels[0, 0], same)
  assert (
    targets.labels[4, 1] == 0 < np.asarray(targets.labels).ravel()[:9].min()
  )


# --- metrics -----------------------------------------------------------------


def scores(task, vectors, fingerprints, labels):
  flat, belongs = vectors.reshape(len(vectors), -1), ~(labels < task.positive)
  return task.scores((flat, fingerprints, belongs), labels)


def test_metrics_are_those_of_every_text_counted():
  task = Contrastive(similarity='dot', positive=3.0)
  rng = np.random.default_rng(0)
  # Few distinct texts, equal texts with equal vectors.
  fingerprints = rng.integers(0, 8, (40, 3))
  fingerprints[:, :2] = np.maximum(fingerprints[:, :2], 1)
  vectors = np.array(normal(1, (8, 3)))[fingerprints]
  labels = rng.uniform(0, 5, 40)
  found = scores(task, vectors, fingerprints, labels)
  right = {}
  for row in np.flatnonzero(labels >= 3):
    asks, finds, _ = fingerprints[row]
    right.setdefault(asks, set()).add(finds)
  others, reciprocal, recall = set(fingerprints[:, 1:].ravel()) - {0}, [], []
  table = dict(zip(fingerprints.ravel(), vectors.reshape(-1, 3), strict=True))
  for asks, finds in right.items():
    order = sorted(others, key=lambda text, q=asks: -table[q] @ table[text])
    order = [text for text in order if text != asks or text in finds]
    ranks = [order.index(text) + 1 for text in finds]
    reciprocal.append(1 / min(ranks))
    recall.append(np.mean([rank <= 1 for rank in ranks]))
  np.testing.assert_allclose(found['mrr'], np.mean(reciprocal))
  np.testing.assert_allclose(found['recall_1'], np.mean(recall))
  alike = (vectors[:, 0] * vectors[:, 1]).sum(axis=1)
  expected = scipy.stats.spearmanr(alike, labels).statistic
  np.testing.assert_allclose(found['spearman'], expected)


def test_equal_vectors_of_all_texts_find_nothing():
  vectors, labels = np.ones((21, 2, 3)), np.full(21, np.nan)
  fingerprints = 1 + np.arange(42).reshape(21, 2)
  found = scores(Contrastive(), vectors, fingerprints, labels)
  assert found == {
    'mrr': pytest.approx(1 / 11),
    'recall_1': 0.0,
    'recall_10': 0.0,
    'spearman': None,
  }


def test_metrics_without_texts_that_belong_together_are_undefined():
  vectors = np.ones((3, 2, 4))
  found = scores(Contrastive(), vectors, distinct(2)[:3], np.zeros(3))
  assert set(found.values()) == {None}


# --- other libraries ---------------------------------------------------------


@pytest.mark.oracle
@pytest.mark.parametrize('num_texts', [2, 3])
def test_loss_and_gradient_are_those_of_sentence_transformers(num_texts):
  torch = pytest.importorskip('torch')
  losses = pytest.importorskip(
    'sentence_transformers.sentence_transformer.losses'
  )
  vectors = np.array(normal(0, (6, num_texts, 5)))
  for symmetric in (False, True):
    task = Contrastive(symmetric=symmetric)

    def loss(flat, task=task):
      targets = targets_of(distinct(num_texts))
      of_texts = task.losses(flat, targets)[0][:, : 1 + task.symmetric]
      return of_texts.mean()

    ours = jax.value_and_grad(loss)(vectors.reshape(-1, 5))
    theirs = [
      torch.tensor(vectors[:, n], requires_grad=True) for n in range(num_texts)
    ]
    directions = ('query_to_doc', 'doc_to_query')[: 1 + symmetric]
    module = losses.MultipleNegativesRankingLoss(
      torch.nn.Identity(), directions=directions, partition_mode='per_direction'
    )
    value = module.compute_loss_from_embeddings(theirs, None)
    value.backward()
    gradient = np.stack([t.grad.numpy() for t in theirs], axis=1)
    np.testing.assert_allclose(ours[0], value.item(), rtol=1e-5)
    np.testing.assert_allclose(
      ours[1].reshape(gradient.shape), gradient, atol=1e-5
    )


@pytest.mark.oracle
def test_metrics_are_those_of_its_evaluators():
  torch = pytest.importorskip('torch')
  evaluation = pytest.importorskip(
    'sentence_transformers.sentence_transformer.evaluation'
  )
  vectors = np.array(normal(0, (40, 2, 5)))
  labels = np.array(normal(1, 40))
  fingerprints = 1 + np.arange(80).reshape(40, 2)
  # A text that asks for two others.
  vectors[1, 0], fingerprints[1, 0] = vectors[0, 0], fingerprints[0, 0]
  found = scores(Contrastive(positive=-9.0), vectors, fingerprints, labels)
  table = dict(
    zip(map(str, fingerprints.ravel()), vectors.reshape(-1, 5), strict=True)
  )

  class Model:
    similarity_fn_name = 'cosine'

    def similarity(self, x, y):
      x, y = (torch.nn.functional.normalize(v) for v in (x, y))
      return x @ y.T

    def encode(self, texts, **_):
      return torch.tensor(np.stack([table[text] for text in texts]))

    encode_query = encode_document = encode
    model_card_data = mock.Mock()

  asked, given = (list(map(str, column)) for column in fingerprints.T)
  relevant = {}
  for one, other in zip(asked, given, strict=True):
    relevant.setdefault(one, set()).add(other)
  retrieval = evaluation.InformationRetrievalEvaluator(
    dict(zip(asked, asked, strict=True)),
    dict(zip(given, given, strict=True)),
    relevant,
    mrr_at_k=[40],
    precision_recall_at_k=[1, 10],
    score_functions={'cosine': Model().similarity},
    write_csv=False,
  )
  theirs = retrieval.compute_metrices(Model())['cosine']
  np.testing.assert_allclose(found['mrr'], theirs['mrr@k'][40])
  for cut in (1, 10):
    np.testing.assert_allclose(
      found[f'recall_{cut}'], theirs['recall@k'][cut], err_msg=str(cut)
    )
  similarity = evaluation.EmbeddingSimilarityEvaluator(
    asked, given, labels.tolist(), write_csv=False, main_similarity='cosine'
  )
  theirs = similarity(Model())['spearman_cosine']
  np.testing.assert_allclose(found['spearman'], theirs, rtol=1e-6)


# --- data and runs -----------------------------------------------------------


@pytest.fixture
def config(tmp_path):
  rows = [f'film {n}\ta film that is {n}\tno plot {n}' for n in range(40)]
  (tmp_path / 'a.tsv').write_text('\n'.join(['a\tb\tc', *rows]) + '\n')
  config = make_small_config()
  config.task = 'contrastive'
  config.data.source = 'text'
  config.data.dir = str(tmp_path)
  config.data.test_fraction = 0.2
  config.data.text.train = ('a.tsv',)
  config.data.text.text_columns = ('a', 'b', 'c')
  config.data.text.label_column = ''
  config.data.text.join = 'apart'
  return config


def test_the_texts_of_an_example_are_encoded_apart(config):
  loaded = loading.load(from_config(config).data, '', labels=Contrastive.labels)
  train = loaded.splits['train']
  assert train.lengths.shape == train.starts.shape == (len(train), 3)
  words = loaded.vocabulary.tokens
  batch = TrainBatches(train, 8, 0, loaded.bucket_lengths)(0)
  assert len(batch.tokens) == len(batch.lengths) == 3 * len(batch.weights)
  texts = [
    ' '.join(words[token] for token in tokens[:length])
    for tokens, length in zip(batch.tokens, batch.lengths, strict=True)
  ]
  for row in range(8):
    number = texts[3 * row].removeprefix('film ')
    assert texts[3 * row + 1] == f'a film that is {number}'
    assert texts[3 * row + 2] == f'no plot {number}'
  assert np.isnan(batch.labels).all()
  assert len(train.apart()) == 3 * len(train)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'data.text.join': 'space'}, "data.text.join = 'space' must be 'apart'"),
    ({'task': 'classify', 'data.text.label_column': 'c'}, 'task = .*contrast'),
    ({'data.text.text_columns': ('a',)}, 'must be 2 or 3 columns'),
    ({'train.grad_accum_steps': 2}, 'grad_accum_steps = 2 must be 0 or 1'),
    ({'train.batch_size': 1}, 'batch_size = 1 must be at least 2'),
    ({'data.text.label_columns': ('c',)}, 'label_columns = .* must be empty'),
    ({'task': 'contrastive(temperature=0)'}, 'temperature = 0.* greater than'),
  ],
)
def test_what_does_not_fit_is_one_line(config, changes, message):
  config.update_from_flattened_dict(changes)
  with pytest.raises(UserError, match=message):
    from_config(config)


DEVICES = """
import json, sys

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.data import loading
from experiments.data.batches import TrainBatches
from experiments.settings.settings import from_config
from experiments.training import compiled

settings = from_config(ConfigDict(json.load(open(sys.argv[1]))))
loaded = loading.load(settings.data, '', labels=settings.task.entry.labels)
metrics = []
for count, trials in ((1, None), (2, None), (8, None), (8, 2)):
  program = compiled.make(
    settings, loaded.vocabulary, loaded.label_facts, trials,
    jax.devices()[:count],
  )
  batches = TrainBatches(
    loaded.splits['train'], 12, 0, loaded.bucket_lengths, program.share
  )
  hparams = program.hparams([settings] * (trials or 1))
  state = program.init(hparams)
  for step in range(3):
    batch = program.put_train([batches(step)])
    state, found = program.train_step(state, batch, hparams)
  metrics.append([float(np.ravel(found[name])[-1]) for name in sorted(found)])
print(json.dumps(metrics))
"""


@pytest.mark.slow
def test_negatives_are_those_of_all_devices(config, eight_devices, tmp_path):
  config.train.batch_size = 12
  config.model.attention_dropout_rate = 0.1
  path = tmp_path / 'config.json'
  path.write_text(config.to_json())
  one, *others = json.loads(eight_devices(DEVICES, path))
  assert np.isfinite(one).all()
  for other in others:
    np.testing.assert_allclose(other, one, rtol=2e-5)


@pytest.mark.slow
def test_a_run_learns_predicts_vectors_and_looks_into_itself(
  config, tmp_path, printed_json, call_command
):
  config.train.steps = 60
  config.train.eval_every = 20
  config.optimizer.learning_rate = 1e-2
  path = str(tmp_path / 'run')
  result = run_lib.run(config, path)
  assert result['recall_1'] > 0.5
  assert result['spearman'] is None
  one, empty = predict.load(path)(['film 3', ''])
  assert len(one.label) == config.model.embed_dim
  assert empty.label is None
  again = printed_json('evaluate', f'--workdir={path}')
  assert again['mrr'] == result['mrr']
  flags = [f'--workdir={path}', f'--output={tmp_path / "page"}']
  looked = printed_json('inspect', *flags, '--text=film 3')
  assert len(looked['heads']) == 2
  assert looked['ablation'] is None
  file = tmp_path / 'vectors.npy'
  texts = ['--text=film 3', '--text=']
  shown = printed_json(
    'predict', f'--workdir={path}', f'--output={file}', *texts
  )
  assert shown['count'] == 2
  found, nothing = np.load(file)
  np.testing.assert_array_equal(found, np.array(one.label, np.float32))
  assert np.isnan(nothing).all()
  assert shown['output'] == str(file)
  code, _, error = call_command(
    'predict', f'--workdir={path}', '--output=a.tsv', *texts, cwd=tmp_path
  )
  assert code == 2
  assert '--output=a.tsv must end in .npy' in error
  with pytest.raises(UserError, match='are not averaged; give one run'):
    predict.load([path, path])
