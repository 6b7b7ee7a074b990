"""The attention of one text, for experiments.predict."""

from __future__ import annotations

import os

from experiments.command import app
from experiments.command.errors import UserError
from experiments.inspection import figures, head_analysis
from experiments.settings import stored


def check_figure(path: str) -> None:
  """UserError if a figure cannot be written there, or would replace a file."""
  stem, kind = os.path.splitext(os.path.abspath(path))
  if kind != '.png':
    raise UserError(f'--attention={path} is not NAME.png')
  app.make_folder(os.path.dirname(stem), 'attention')
  there = [os.path.exists(f'{stem}.{k}') for k in figures.KINDS]
  if any(there) and not all(there):
    raise UserError(
      f'--attention={path} would overwrite a file of another program; it '
      f'writes NAME{", NAME".join(f".{k}" for k in figures.KINDS)}'
    )


def check_member(path: str, member: int) -> None:
  """UserError if the run has no such member."""
  head_analysis.require_member(stored.read_settings(path), member)


def draw(path: str, predictor, texts: list[str], member: int) -> None:
  """Draws the attention of the only text.

  Args:
    path: of the figure; its data are beside it.
    predictor: a prediction.Predictor.
  """
  examples, _ = predictor.encode(texts)
  head_analysis.require_tokens(texts, examples)
  run = predictor.run
  params = head_analysis.of_member(run.settings, member, run.params)
  names = head_analysis.names(predictor.tokenizer)
  (maps,) = head_analysis.attention_maps(
    run.program.classifier, params, examples, names
  )
  stem, _ = os.path.splitext(os.path.abspath(path))
  figures.attention(*os.path.split(stem), maps)
