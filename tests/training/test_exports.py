"""An exported run predicts the same in a process without this project."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from conftest import draw, make_small_config

from experiments.data import loading
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary, add_separator
from experiments.learning.hparams import HParams
from experiments.settings.settings import from_config
from experiments.training import build, compiled, exports
from experiments.training.evaluation import Evaluated
from experiments.training.prediction import Predictor
from selfattn.positions.absolute import Sinusoidal

TEXTS = [
  'the dog bites the man',
  'the',
  'an unknown word and more words than a text of this length may have ' * 2,
  'the man bites [PAD] the dog',
]

# In one process, since jax takes seconds to start.
READER = """
import importlib.util, json, os, runpy, sys
for name in ('selfattn', 'experiments'):
  assert importlib.util.find_spec(name) is None, name
texts = json.loads(sys.argv[1])
answers = {}
for folder in sys.argv[2:]:
  predict = runpy.run_path(os.path.join(folder, 'predict.py'))['predict']
  answers[folder] = [
    predict(texts).tolist(), predict(texts[:1]).tolist()
  ]
print(json.dumps(answers))
"""


def read(folders, texts=TEXTS):
  """What predict.py of each folder answers to all texts, and to the first."""
  done = subprocess.run(
    [sys.executable, '-I', '-c', READER, json.dumps(texts), *folders],
    capture_output=True,
    text=True,
    cwd='/',
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@dataclasses.dataclass(frozen=True)
class OneByOne(Sinusoidal):
  """A position method whose program is written out for a known length."""

  def encoding(self, params, tokens):
    P_BLD = super().encoding(params, tokens)
    ranks_L = np.array([1.0 + index for index in range(P_BLD.shape[1])])
    return P_BLD * ranks_L[None, :, None]


@pytest.fixture(scope='module')
def data():
  return loading.load(from_config(make_small_config()).data, '')


def restored(data, changes, facts=None, fit=None):
  """A run with drawn parameters, as if it were restored; and its tokenizer."""
  config = make_small_config()
  config.data.max_length = 20
  config.update_from_flattened_dict(changes)
  settings, facts = from_config(config), facts or data.label_facts
  tokenizer = tokenizers.Tokenizer.from_str(data.files['tokenizer.json'])
  if settings.data.pair_length:
    add_separator(tokenizer)
  vocabulary = Vocabulary.of(tokenizer)
  classifier = build.model(settings, vocabulary.size, len(facts.names))
  params = draw(
    lambda: build.init_state(settings, classifier, HParams.of(settings)).params
  )
  program = compiled.make(settings, vocabulary, facts)
  return Evaluated(settings, program, 7, params, fit or {}), tokenizer


def made(data, folder, changes, facts=None, fit=None):
  """An exported run with drawn parameters; and its Predictor."""
  run, tokenizer = restored(data, changes, facts, fit)
  names = list((facts or data.label_facts).names)
  folder.mkdir()
  written = exports.write(run, tokenizer, names, str(folder))
  assert json.loads((folder / 'settings.json').read_text()) == written
  return written, Predictor([run], tokenizer, 64)


@pytest.mark.slow
def test_an_export_predicts_what_predict_does(data, tmp_path):
  expected = {}
  for number, changes in enumerate(
    (
      {},
      {
        'model.pool': 'cls',
        'model.encoder': 'attention(scan=True)',
        # Eigenvalues, by a library of the platform.
        'model.position': 'lie_re',
      },
      {'model.position': 'path', 'model.encoder': 'attention(causal=True)'},
      {'model.position': 'recurrent(window=3)'},
      {'model.encoder': 'linear_attention(causal=True)'},
      # It needs a known length, to which texts are padded.
      {'model.position': f'{__name__}:OneByOne'},
    )
  ):
    folder = tmp_path / str(number)
    written, predictor = made(data, folder, changes)
    assert written['length'] == ('any' if number < 5 else 'max_length')
    expected[str(folder)] = [
      list(prediction.probabilities.values()) for prediction in predictor(TEXTS)
    ]
  for folder, (answers, alone) in read(list(expected)).items():
    np.testing.assert_allclose(answers, expected[folder], atol=1e-5)
    np.testing.assert_allclose(alone, expected[folder][:1], atol=1e-5)


@pytest.mark.slow
def test_pairs_sets_and_numbers_are_exported(data, tmp_path):
  pairs = [(one, two) for one in [*TEXTS, ''] for two in [*TEXTS[::-1], '']]
  of_pairs = {
    'data.source': 'text',
    'data.dir': 'absent',
    'data.text.format': 'lines',
    'data.text.join': 'pair',
    'model.pair_positions': 'restart',
    'checkpoint.best_metric': 'loss',
  }
  sets, numbers = tmp_path / 'sets', tmp_path / 'numbers'
  facts, fit = LabelFacts(('a', 'b', 'c')), {'temperature': 2.0}
  fit['thresholds'] = [0.1, 0.2, 0.3]
  changes = of_pairs | {'task': 'multilabel'}
  written, of_sets = made(data, sets, changes, facts, fit)
  assert (written['output'], written['thresholds']) == (
    'probabilities', [0.1, 0.2, 0.3],
  )  # fmt: skip
  facts = LabelFacts(('value',), mean=3.0, std=10.0)
  changes = of_pairs | {'task': 'regression'}
  written, of_numbers = made(data, numbers, changes, facts)
  assert (written['output'], written['labels']) == ('values', ['value'])
  answers = read([str(sets), str(numbers)], pairs)
  # The last pair has no tokens, and predict no answer for it.
  assert np.isnan(answers[str(sets)][0][-1]).all()
  np.testing.assert_allclose(
    answers[str(sets)][0][:-1],
    [list(one.probabilities.values()) for one in of_sets(pairs)[:-1]],
    atol=1e-5,
  )
  np.testing.assert_allclose(
    np.ravel(answers[str(numbers)][0])[:-1],
    [one.label for one in of_numbers(pairs)[:-1]],
    atol=1e-4,
  )
