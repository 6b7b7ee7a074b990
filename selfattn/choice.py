"""Which backend computes a call of attention, on which platform."""

from __future__ import annotations

from typing import NamedTuple

import jax

from selfattn.kernels import (
  KERNELS,
  TPU_BLOCKS,
  known_platform,
  platform_of,
  unsupported_reason,
)

BACKENDS = ('auto', 'reference', 'chunked', *KERNELS)
"""Implementations of attention, which `attend` describes.

Examples:
  >>> q_BLHK = k_BMHK = v_BMHK = jnp.ones((2, 5, 3, 4))
  >>> selfattn.attend(q_BLHK, k_BMHK, v_BMHK, backend='chunked')[0].shape
  (2, 5, 3, 4)
  >>> selfattn.BACKENDS
  ('auto', 'reference', 'chunked', 'xla', 'cudnn', 'pallas_tpu')
"""
# The kernel that 'auto' chooses, by platform.
_KERNEL_OF = {'gpu': 'cudnn', 'tpu': 'pallas_tpu'}
_PLATFORM_OF = {kernel: platform for platform, kernel in _KERNEL_OF.items()}
# Heads that cuDNN supports on GPUs before Hopper, too.
_WIDTH_OF_ALL_GPUS = 128
# Queries of a chunk, at least, since the matmuls of fewer are slow, and scores
# that it aims at: those that fit into the caches of a CPU, or that fill an
# accelerator.
_CHUNK_OF_CPU = 64, 2**19
_CHUNK_OF_ACCELERATORS = 128, 2**24
# Scores of a call above which 'auto' does not form an array of them.
_MANY_SCORES = 2**26


class Choice(NamedTuple):
  """How a call is computed.

  Attributes:
    backend: one of BACKENDS, but 'auto'.
    rows: queries that the reference computes at once.
    reason: why 'auto' is not the kernel of the platform; None: it is, or it was
      not to choose, or the platform has none.
  """

  backend: str
  rows: int
  reason: str | None

  def __str__(self):
    text = self.backend
    if text == 'chunked':
      text += f', {self.rows} queries at once'
    return f'{text} ({self.reason})' if self.reason else text


def by_layer(choices: list[Choice]) -> str:
  """The choices of all layers as text; where they differ, with layers."""
  layers: dict[str, list[str]] = {}
  for index, choice in enumerate(choices):
    layers.setdefault(str(choice), []).append(str(index))
  if len(layers) < 2:
    return next(iter(layers), '')
  return '; '.join(
    f'{text} in layers {", ".join(numbers)}' for text, numbers in layers.items()
  )


def choose(
  backend: str,
  platform: str | None,
  shape: tuple[int, int, int, int],
  *,
  has_pairs: bool,
  has_token_masks: bool,
  returns_weights: bool = False,
  **facts,
) -> Choice:
  """The choice that backends.attend makes on a platform.

  Args:
    backend: one of BACKENDS.
    platform: one of PLATFORMS; None: unknown, 'auto' is no kernel, and chunks
      are those of the first device of this process.
    shape: (B, H, L, M), of one call: an axis of vmap, such as the trials of a
      group, is not in it, and multiplies the memory of the scores.
    has_pairs: whether a bias, a window or a mask has an element for each query
      and key, beside those of the position method.
    has_token_masks: whether there are segments, or padding that may stand
      before a token.
    returns_weights: whether the weights are returned.
    facts: further ones, see unsupported_reason.
  """
  B, H, L, M = shape
  # Not those of a batch or text of any size, in jax.export.
  is_known = all(isinstance(size, int) for size in shape)
  platform, reason = known_platform(platform), None
  if backend == 'auto':
    many = not returns_weights and is_known and B * H * L * M > _MANY_SCORES
    backend = 'chunked' if many else 'reference'
    kernel = _KERNEL_OF.get(platform or '')
    if kernel:
      forms_pairs = (
        has_pairs
        or not facts['hooks'].isdisjoint(('content', 'bias'))
        or (has_token_masks and kernel == 'cudnn')
      )
      against = _against(kernel, shape, forms_pairs, returns_weights, facts)
      backend = backend if against else kernel
      reason = against and f'{kernel}: {against}'
  rows = L
  if backend == 'chunked':
    is_cpu = (platform or platform_of(jax.devices()[0])) == 'cpu'
    least, scores = _CHUNK_OF_CPU if is_cpu else _CHUNK_OF_ACCELERATORS
    least = max(least, scores // (B * H * M)) if is_known else least
    rows = min(L, least) if isinstance(L, int) else least
  return Choice(backend, rows, reason)


def _against(
  kernel: str, shape, forms_pairs: bool, returns_weights: bool, facts: dict
) -> str | None:
  """Why 'auto' is not this kernel, on its own platform; None: it is."""
  B, H, L, M = shape
  if not all(isinstance(size, int) for size in shape):
    return 'its sizes are not known while tracing'
  if returns_weights:
    return 'it never forms the weights, which are returned'
  reason = unsupported_reason(kernel, platform=_PLATFORM_OF[kernel], **facts)
  if reason:
    return reason
  if forms_pairs and B * H * L * M > _MANY_SCORES:
    return f'it would form a mask or bias of {B * H * L * M:,} elements'
  if kernel == 'pallas_tpu' and min(L, M) < TPU_BLOCKS[-1]:
    return f'its blocks hold {TPU_BLOCKS[-1]} tokens, more than {min(L, M)}'
  if kernel == 'cudnn':
    width = max(facts['rotated_dim'], facts['value_dim'])
    if width > _WIDTH_OF_ALL_GPUS:
      return (
        f'not all GPUs support heads more than {_WIDTH_OF_ALL_GPUS} wide, '
        f'as these of {width}'
      )
    if L % 2 or M % 2:
      # With a bias; but jax checks it without one, too.
      return f'its gradient needs even lengths, not {L} and {M}'
  return None
