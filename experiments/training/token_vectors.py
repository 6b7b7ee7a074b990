"""The token vectors that config.model.embeddings gives a new run."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command.errors import UserError
from experiments.command.log import log
from experiments.data import encoding
from experiments.data.vectors import Vectors
from experiments.data.vocabularies import SEPARATOR, SPECIAL_TOKENS
from experiments.learning.steps import TOKEN_TABLE, State
from experiments.settings.settings import Settings
from experiments.workdir.workdir import Workdir


def check_file(settings: Settings) -> None:
  """UserError if the file of config.model.embeddings is missing."""
  path = settings.model.embeddings.make().file
  if path and not os.path.isfile(path):
    raise UserError(
      f'config.model.embeddings = {settings.model.embeddings}: there is no '
      f'file {path}'
    )


def read(settings: Settings, workdir: Workdir) -> Vectors | None:
  """The vectors of a new run for words of its vocabulary; None: all are drawn.

  Says how many words of the vocabulary they cover.

  Args:
    workdir: of the run, with its vocabulary.

  Raises:
    UserError: the file cannot be read, or has none of the words.
  """
  call = settings.model.embeddings
  ids = encoding.read_tokenizer(workdir.path).get_vocab()
  for token in (*SPECIAL_TOKENS, SEPARATOR):
    ids.pop(token, None)
  with call.checked():
    vectors = call.make().read(ids, settings.model.embed_dim)
  if vectors is not None:
    count = len(vectors.ids)
    log(
      f'config.model.embeddings = {call} has {count} of the {len(ids)} words '
      f'of the vocabulary ({count / len(ids):.0%}); the others are drawn'
    )
  return vectors


def put(state: State, vectors: Vectors) -> State:
  """An initial State whose table of token embeddings has these vectors."""
  params: Any = state.params
  table = params[TOKEN_TABLE]['embedding']
  changed: Any = jnp.asarray(table).at[vectors.ids].set(vectors.values)
  # Parameters of a trial of a group are on the host.
  if isinstance(table, jax.Array):
    changed = jax.device_put(changed, table.sharding)
  else:
    changed = np.asarray(changed)
  params = params | {TOKEN_TABLE: {'embedding': changed}}
  # An average, if there is one, begins with the first step.
  return state.replace(params=params)
