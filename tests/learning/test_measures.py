"""Measures of what layers sow are metrics of a run."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import draw, make_small_config

from experiments.command.errors import UserError
from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.inspection.head_analysis import sown, sown_weights
from experiments.learning.measures import MEASURES, Measure
from experiments.settings.settings import from_config
from experiments.sweeps import comparison
from experiments.training import compiled
from experiments.training import run as run_lib
from experiments.workdir.metrics import read_rows

pytestmark = pytest.mark.usefixtures('shared_programs')
NAMES = ('attention_entropy', 'attention_distance')


def make_config(**changes):
  config = make_small_config()
  config.train.measures = '+'.join(NAMES)
  config.model.num_layers = 2
  config.model.position = 'alibi'
  config.update_from_flattened_dict(changes)
  return config


def expected(weights, count):
  """Both measures of a text in float64, query by query.

  Args:
    weights: of all layers and heads, (N, H, L, L).
    count: its tokens.
  """
  entropies, distances = [], []
  for layer, head, query in np.ndindex(*weights.shape[:2], count):
    shares = [abs(w) for w in weights[layer, head, query].tolist()]
    total = math.fsum(shares) or 1.0
    shares = [share / total for share in shares]
    entropies.append(-math.fsum(p * math.log(p) for p in shares if p))
    distances.append(
      math.fsum(p * abs(key - query) for key, p in enumerate(shares))
    )
  return [math.fsum(x) / max(len(x), 1) for x in (entropies, distances)]


BATCH = Batch(
  np.arange(21, dtype=np.int32).reshape(3, 7) + 2,
  np.array([7, 4, 0], np.int32),
  np.zeros(3, np.int32),
  np.ones(3, np.float32),
)
VOCABULARY = Vocabulary(30)


@pytest.mark.parametrize(
  'changes',
  [
    {
      'model.pool': 'cls',
      'model.normaliser': 'differential',
      'model.encoder': 'attention(scan=True, remat=True)',
    },
    {'model.encoder': 'attention(backend=xla)'},
    {'model.encoder': 'linear_attention', 'model.position': 'rotary'},
  ],
  ids=str,
)
def test_measures_are_those_of_the_weights_in_float64(changes):
  settings = from_config(make_config(**changes))
  program = compiled.make(settings, VOCABULARY, LabelFacts(('a', 'b')))
  hparams = program.hparams([settings])
  params = draw(lambda: program.init(hparams).params)
  *_, entropy, distance = program.eval_step(params, BATCH)
  weights = sown_weights(sown(program.classifier, params, BATCH))
  weights = np.asarray(weights, np.float64)
  extra = int(program.classifier.has_cls)
  want = [
    expected(weights[:, row], count + extra)
    for row, count in enumerate(BATCH.lengths.tolist())
  ]
  got = np.stack([entropy, distance], axis=-1)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_measures_are_metrics_of_each_evaluation_and_of_the_result(
  tmp_path, finished_run
):
  """And change no metric of the task."""
  config = make_small_config()
  config.train.measures = '+'.join(NAMES)
  config.checkpoint.best_metric = 'attention_entropy'
  result = run_lib.run(config, str(tmp_path))
  rows = read_rows(str(tmp_path / 'metrics.jsonl'))
  without = read_rows(str(finished_run / 'metrics.jsonl'))
  for row, other in zip(rows, without, strict=True):
    assert {name: row[name] for name in other} == pytest.approx(other, rel=1e-5)
  scores = {
    row['step']: row['validation/attention_entropy']
    for row in rows
    if 'validation/attention_entropy' in row
  }
  assert len(scores) > 1
  assert scores[result['step']] == min(scores.values())
  assert 0 < result['attention_entropy'] < math.log(20)
  assert result['attention_distance'] > 0


def test_a_sweep_ranks_by_a_measure_as_its_class_says():
  @dataclasses.dataclass(frozen=True)
  class Greatest(Measure):
    best = max

  settings = from_config(make_config())
  call = settings.train.measures[0]
  own = dataclasses.replace(call, name='ideas:Greatest', entry=Greatest)
  train = dataclasses.replace(settings.train, measures=(own,))
  changed = dataclasses.replace(settings, train=train)
  specs = [types.SimpleNamespace(settings=s) for s in (settings, changed)]
  metrics = comparison.metrics(specs)
  assert metrics['attention_distance'] is min
  assert metrics['Greatest'] is max
  assert metrics['accuracy'] is max


def test_a_measure_with_the_name_of_a_metric_is_refused(monkeypatch):
  monkeypatch.setitem(MEASURES, 'accuracy', MEASURES['attention_entropy'])
  with pytest.raises(UserError, match=r'train\.measures = accuracy'):
    from_config(make_config(**{'train.measures': 'accuracy'}))


def test_a_measure_of_another_shape_is_refused(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Scalar(Measure):
    def __call__(self, sown, padding_mask_BL):
      return jnp.zeros(())

  monkeypatch.setitem(MEASURES, 'scalar', Scalar)
  settings = from_config(make_config(**{'train.measures': 'scalar'}))
  program = compiled.make(settings, VOCABULARY, LabelFacts(('a', 'b')))
  with pytest.raises(UserError, match=r'Scalar returns shape \(\)'):
    jax.eval_shape(program.eval_step, program.template.params, BATCH)
