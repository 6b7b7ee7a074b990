"""Other tools can drive experiments.train: its flags and its last line."""

import pathlib
import re
import textwrap

import pytest
from conftest import ROOT

SMALL = {
  'config.optimizer.learning_rate': '0.00123',
  'config.train.steps': '2',
  'config.train.eval_every': '2',
  'config.optimizer.warmup_steps': '0',
  'config.data.source': (
    'word_order(train_pairs=20, validation_pairs=5, test_pairs=5)'
  ),
  'config.data.num_buckets': '1',
  'config.model.num_layers': '1',
}


def test_the_optuna_function_of_the_page_runs(tmp_path, monkeypatch):
  optuna = pytest.importorskip('optuna', reason='pip install optuna')
  text = (ROOT / 'docs/sweeps.md').read_text()
  block = re.search(r'```python\n(  import json.*?)```', text, re.DOTALL)
  code = textwrap.dedent(block.group(1))
  small = ''.join(f", '--{k}={v}'" for k, v in SMALL.items())
  assert "'experiments.train']" in code
  code = code.replace(
    "'experiments.train']", f"'experiments.train'{small}]"
  ).replace('runs/optuna', str(tmp_path))
  names: dict = {}
  exec(code, names)
  monkeypatch.chdir(ROOT)
  study = optuna.create_study(direction='maximize')
  study.optimize(names['objective'], n_trials=2)
  assert 0 <= study.best_value <= 1
  assert {p.name for p in pathlib.Path(tmp_path).iterdir()} == {'0', '1'}
