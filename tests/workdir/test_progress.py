"""The line of the log about a step."""

from experiments.workdir.metrics import Progress


def test_a_step_line_has_loss_the_metric_that_selects_and_speed_alone(capsys):
  progress = Progress(0, 20, 'accuracy')
  row = {
    'train/accuracy': 0.75,
    'train/gradient_norm': 1.5,
    'train/loss': 0.5,
    'validation/loss': 0.25,
    'validation/accuracy': 0.875,
  }
  (rate,) = progress.show(10, [row], [0.9]).values()
  assert capsys.readouterr().err == (
    'step 10/20  train/loss 0.5  validation/accuracy 0.875  '
    f'{rate:.1f} steps/s\n'
  )


def test_a_bar_keeps_the_last_loss_and_has_the_best_score():
  progress = Progress(0, 20, 'accuracy')
  progress.show(8, [{'train/loss': 0.5}, {'train/loss': 1.5}], [None, None])
  assert progress.bar.text.startswith('{} steps  loss 1  ')
  rows = [{'validation/accuracy': 0.25}, {'validation/accuracy': None}]
  progress.show(10, rows, [0.75, 0.25])
  assert progress.bar.text.startswith('{} steps  loss 1  best accuracy 0.5  ')
