r"""Predicts labels or numbers for texts with a trained run, or several.

    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --text="not a good film , a great one"
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 < texts
    bash scripts/run.sh experiments.predict --workdir=runs/a,runs/b < texts
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 --json \
        --input=new.tsv > predictions.jsonl
    bash scripts/run.sh experiments.predict --workdir=runs/sst2 \
        --input=new.csv '--config.data.text.format=csv(delimiter=semicolon)'

A row of input is a line, a JSON object, or a row of a table. Each row has one
line of output. With --json, the line is an object with all values of the row,
`prediction`, `probabilities` and `is_truncated`. Otherwise it has label,
probability and the values of the row, separated by tabs, and one JSON object
follows all rows. Of classify_tokens, the prediction has a class for each word,
and JSON also `spans` of words, if classes are such as B-PER. An empty text has
no label: null, or (empty). Answers come in the order of the rows, as soon as
they are known. Memory does not grow with their number, unless the input is one
JSON array, or --output keeps their vectors. The answers of several runs, an
ensemble, are averaged. One process reads, computes and prints.

A language model, a run of next_token, continues a text:

    bash scripts/run.sh experiments.predict --workdir=runs/stories \
        --prompt="One evening" --max_new_tokens=200 --temperature=0.8
"""

from __future__ import annotations

import contextlib
import sys

from experiments.command import app
from experiments.command.calls import Call
from experiments.command.command_line import define, refuse
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import encoding, input_rows
from experiments.data.text_files import Text
from experiments.training import answers, run_flags

# Functions import what imports jax: --help and wrong input do not wait.

# Flags that apply to --prompt alone.
_OF_PROMPT = ('max_new_tokens', 'temperature', 'top_p', 'seed')
_OF_TEXTS = (
  'text', 'input', 'json', 'output', 'calibrated', 'batch_size',
)  # fmt: skip


def load(
  workdir: str | list[str],
  checkpoint: str | int = 'best',
  batch_size: int = 64,
  calibrated: bool = True,
):
  """Trained runs as a function of texts; no training files are needed.

      from experiments import predict
      classify = predict.load('runs/sst2')
      for prediction in classify(['a fine film', 'a dull one']):
        print(prediction.label, prediction.probabilities)

  It returns a training.prediction.Predictor, which compiles a program at the
  first call and for every new length of texts; or, of a language model, a
  training.generation.Generator:

      predict.load('runs/stories').generate('One evening', max_new_tokens=200)

  Args:
    workdir: folder of a run, or gs://BUCKET/FOLDER; of an ensemble, whose
      probabilities are averaged: a list of them, or one text as of --workdir.
    checkpoint: 'best', 'last', or a number of steps.
    batch_size: texts of a batch, at most, over all devices.
    calibrated: whether what was fitted on validation is used.

  Raises:
    UserError: there is no such run or checkpoint, its task answers no texts, or
      several runs differ in their vocabulary or labels.
  """
  from experiments.settings import open_models, stored
  from experiments.training import ensembles, generation, prediction

  with run_flags.opened(workdir) as paths:
    ensembles.check(paths)
    path, *_ = paths
    settings = stored.read_settings(path)
    task = settings.task
    if task.entry.is_causal:
      (run,) = ensembles.restored(paths, str(checkpoint))
      ends = open_models.ends(settings, path)
      return generation.Generator(run, encoding.read_tokenizer(path), ends)
    _check_task(task, path)
    return prediction.Predictor(
      list(ensembles.restored(paths, str(checkpoint), calibrated)),
      encoding.read_tokenizer(path),
      batch_size,
    )


def _check_task(task: Call, path: str) -> None:
  """UserError unless a task answers texts."""
  from experiments.training import prediction

  if not issubclass(task.entry, prediction.TASKS):
    raise UserError(
      f'{path} was trained on config.task = {task}, which predicts '
      'tokens and no label of a text; use '
      'experiments.evaluate for its scores on a split, experiments.inspect '
      '--text for its attention'
    )


def _define(values) -> None:
  define(
    values,
    run_flags.WORKDIR,
    run_flags.CHECKPOINT,
    ('text', (), 'A text to classify; may be repeated.'),
    ('input', None, 'File of texts to classify; if not given, standard input.'),
  )
  input_rows.define(
    values, 'the input, if it differs from its ending and from the run'
  )
  define(
    values,
    ('json', False, 'Print one JSON object per text, with all probabilities.'),
    ('output', None, 'File for vectors of contrastive, as of numpy.save: a row '
     'for each text, in place of a line; NaN for an empty one.'),
    run_flags.CALIBRATED,
    ('batch_size', 64, 'Texts of a batch.', 1),
    ('prompt', None, 'A text that a language model goes on from.'),
    ('max_new_tokens', 100, 'With --prompt: how many tokens are sampled.', 1),
    ('temperature', 1.0, 'With --prompt: divides the logits, at least 1e-6; 0: '
     'the most probable token.'),
    ('top_p', 1.0, 'With --prompt: only the most probable tokens are sampled, '
     'as few as have this probability together.'),
    ('seed', 0, 'With --prompt: sampling seed.'),
  )  # fmt: skip


def main(values) -> None:
  """Restores a run, predicts and prints."""
  workdir = app.required(values, 'workdir')
  if values.prompt is not None:
    _generate(values, workdir)
    return
  _check(values)
  signals = Signals('stopping')
  signals.install()
  with contextlib.ExitStack() as on_exit:
    with signals.at_once():
      paths = on_exit.enter_context(run_flags.opened(workdir))
      file = on_exit.enter_context(_opened(values))
    app.import_frozen('experiments.training.prediction')
    from experiments.command import processes
    from experiments.learning.contrastive import Contrastive
    from experiments.training import prediction
    from experiments.workdir import workdir as workdir_lib

    processes.require_one('experiments.predict')
    predictor = load(
      paths,
      values.checkpoint,
      values.batch_size,
      values.calibrated,
    )
    if not isinstance(predictor, prediction.Predictor):
      raise UserError(
        f'--workdir={workdir} was trained on config.task = '
        f'{predictor.run.settings.task}, which predicts tokens and no label '
        'of a text; give --prompt, a text that it goes on from'
      )
    settings = predictor.runs[0].settings
    show, vectors = answers.printed(values.json), []
    if values.output is not None:
      if not issubclass(settings.task.entry, Contrastive):
        raise UserError(
          f'--output is for vectors of contrastive; --workdir={workdir} was '
          f'trained on config.task = {settings.task}'
        )

      def show(rows, answered):
        vectors.extend(one.label for one in answered)

    rows = answers.rows(values, settings.data.further(), file, predictor.keys)
    windows = input_rows.windows(rows, predictor.window, file)
    try:
      count = answers.write(predictor, windows, signals, show)
      if values.output is not None:
        workdir_lib.write_atomic(values.output, answers.npy(vectors))
      if not values.json:
        place = {'output': values.output} if values.output else {}
        app.print_result({'count': count, **predictor.steps, **place})
    except BrokenPipeError:
      # The reader of standard output, such as `head`, has read enough.
      app.drop_output()


def _check(values) -> None:
  """UserError for flags that exclude one another."""
  if values.text and values.input is not None:
    raise UserError('--text and --input exclude one another')
  refuse(values, _OF_PROMPT, 'and --prompt need one another')
  if values.output is not None:
    refuse(values, ('json',), 'and --output exclude one another')
    if not values.output.endswith('.npy'):
      raise UserError(f'--output={values.output} must end in .npy')
    app.check_output(values.output)
  changed = input_rows.changed(values)
  if values.text and changed:
    key = next(iter(changed))
    raise UserError(f'--text and --config.data.text.{key} exclude one another')
  input_rows.options_of(Text.of(), values.input or '', changed)
  encoding.check_texts(values.text)


def _generate(values, workdir: str) -> None:
  """Prints the prompt and what follows it."""
  refuse(values, _OF_TEXTS, 'and --prompt exclude one another')
  for name in input_rows.changed(values):
    raise UserError(
      f'--config.data.text.{name} and --prompt exclude one another'
    )
  encoding.check_texts([values.prompt], '--prompt')
  app.import_frozen('experiments.training.generation')
  from experiments.command import processes
  from experiments.training import generation

  names = ('temperature', 'top_p', 'seed')
  options = {name: values[name].value for name in names}
  generation.Sampling(**options).check()
  processes.require_one('experiments.predict')
  generator = load(workdir, values.checkpoint)
  if not isinstance(generator, generation.Generator):
    raise UserError(
      '--prompt needs a language model, a run of config.task = next_token'
    )
  text = generator.generate(values.prompt, values.max_new_tokens, **options)
  app.print_lines([values.prompt + text])
  result = {'prompt': values.prompt, 'text': text, 'step': generator.run.step}
  app.print_result(result)


def _opened(values):
  """The file of --input, or standard input."""
  if values.text:
    return contextlib.nullcontext()
  if values.input is None:
    if sys.stdin is None:
      raise UserError('standard input is closed; give --text or --input')
    return contextlib.nullcontext(sys.stdin.buffer)
  try:
    return open(values.input, 'rb')
  except OSError as error:
    raise UserError(f'--input={values.input}: {error.strerror}') from error


if __name__ == '__main__':
  app.run(main, _define, __doc__)
