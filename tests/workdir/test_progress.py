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
  rates = progress.show(10, [row])
  assert capsys.readouterr().err == (
    'step 10/20  train/loss 0.5  validation/accuracy 0.875  '
    f'{rates["steps_per_second"]:.1f} steps/s\n'
  )
