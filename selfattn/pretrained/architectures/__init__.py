"""Architectures by the model_type of their config.json.

To add one: a function in a file of its family, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from selfattn.pretrained.architectures import bert, llama
from selfattn.pretrained.folder import Config
from selfattn.pretrained.model import Model

ARCHITECTURES: dict[str, Callable[[Config], Model]] = {
  'bert': bert.bert,
  'llama': llama.llama,
}
