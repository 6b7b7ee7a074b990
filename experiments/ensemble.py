"""Evaluates the trials of a sweep together: the mean of what they predict.

    bash scripts/run.sh experiments.sweep --config=configs/sst2.py \\
        --config.data.dir=PATH --sweep=seeds --workdir=runs/sst2
    bash scripts/run.sh experiments.ensemble --workdir=runs/sst2

Members of an ensemble differ in one key only, by default their seed; its
probabilities are the mean of theirs (Lakshminarayanan et al. 2017, section
2.4). With --size, members are taken so many at a time, in their order. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import numpy as np
import scipy.special

from experiments import data, evaluate, launch, remote
from experiments import workdir as workdir_lib
from experiments.benchmark import table
from experiments.choices import UserError
from experiments.sweeps import folder, results
from experiments.sweeps.plan import Spec


def combine(
  labels: np.ndarray, logits: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Loss of every example, and logits, of the mean of the probabilities.

  Args:
    logits: (examples, classes) of each member.
  """
  log_probs = scipy.special.log_softmax(np.stack(logits), axis=-1)
  mean = scipy.special.logsumexp(log_probs, axis=0) - np.log(len(logits))
  return -mean[np.arange(len(labels)), labels], mean


def _define(values) -> None:
  flags = launch.flags
  for name, default, text in (
    ('workdir', None, 'Folder of a sweep.'),
    ('over', 'seed', 'Key that members differ in.'),
    ('checkpoint', 'best', 'Of each member: best, last, or a step.'),
    ('data_dir', None, 'Where the data is, if not where it was.'),
  ):
    flags.DEFINE_string(name, default, text, flag_values=values)
  flags.DEFINE_enum(
    'split', 'test', data.datasets.SPLITS, 'Which one.', flag_values=values
  )
  flags.DEFINE_integer(
    'size',
    0,
    'Members of an ensemble; 0: all there are.',
    0,
    flag_values=values,
  )


def main(values) -> None:
  """Evaluates every trial, and every ensemble of them."""
  workdir = launch.required(values, 'workdir')
  if workdir.startswith(remote.SCHEMES):
    raise UserError(f'--workdir={workdir}: a sweep is in a file system')
  settings = _by_setting(folder.read(workdir), values)
  rows = []
  for name, specs in settings.items():
    size = values.size or len(specs)
    found = [_predict(spec, values) for spec in specs]
    for start in range(0, len(specs) - size + 1, size):
      chosen = slice(start, start + size)
      rows.append(
        {'setting': name} | _scores(specs[chosen], found[chosen], values)
      )
  launch.log(table([{k: _short(v) for k, v in row.items()} for row in rows]))
  launch.print_result({'split': values.split, 'ensembles': rows})


def _by_setting(specs: list[Spec], values) -> dict[str, list[Spec]]:
  """Trials that are done, by what they have in common.

  Raises:
    UserError: no setting has enough of them, or they read different data.
  """
  found: dict[str, list[Spec]] = {}
  for spec in specs:
    if workdir_lib.read_status(spec.path).get('status') == 'DONE':
      name, _ = results.setting_of(spec, values.over)
      found.setdefault(name, []).append(spec)
  least = values.size or 2
  enough = {name: specs for name, specs in found.items() if len(specs) >= least}
  if not enough:
    raise UserError(
      f'--workdir={values.workdir} has no setting with {least} trials that are '
      f'done and differ in config.{values.over}'
    )
  for name, specs in enough.items():
    kinds = {repr(data.read_facts(spec.path)) for spec in specs}
    if len(kinds) > 1:
      raise UserError(f'the trials of {name} were made from different data')
  return enough


def _predict(spec: Spec, values) -> tuple[np.ndarray, np.ndarray]:
  """Labels and logits of a trial, in the order of the split."""
  settings, program, state = evaluate.restore_run(spec.path, values.checkpoint)
  loaded = evaluate.load_data(settings, spec.path, values.data_dir)
  examples = loaded.splits[values.split]
  _, logits = evaluate.evaluate(
    program,
    state.params,
    examples,
    settings.train.eval_batch_size,
    loaded.bucket_lengths,
  )
  return examples.labels, logits


def _scores(specs, found, values) -> dict:
  """Of an ensemble, beside the mean accuracy of its members."""
  labels = found[0][0]
  logits = [of_member for _, of_member in found]
  alone = [np.mean(x.argmax(axis=-1) == labels) for x in logits]
  return {
    'members': [spec.overrides.get(values.over) for spec in specs],
    'accuracy_of_members': float(np.mean(alone)),
    **evaluate.summarize(labels, *combine(labels, logits)),
    'count': len(labels),
  }


def _short(value):
  return f'{value:.4f}' if isinstance(value, float) else value


if __name__ == '__main__':
  launch.run(main, _define, __doc__)
