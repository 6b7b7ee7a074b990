"""Peak operations per second of devices, for model FLOPs utilisation."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Chip(NamedTuple):
  """Limits of one device, as jax counts devices.

  Attributes:
    flops: operations per second of dense matmuls in bfloat16.
    bandwidth: bytes per second between it and its memory.
    memory: bytes that a program may use.
  """

  flops: float
  bandwidth: float
  memory: float


# By device_kind of jax. Operations and bandwidth are from data sheets, the
# memory of a TPU is what its compiler reports as available.
CHIPS = {
  'TPU v4': Chip(275e12, 1200e9, 30.75 * 2**30),
  'TPU v5 lite': Chip(197e12, 819e9, 15.75 * 2**30),
  'TPU v5': Chip(459e12, 2765e9, 95.74 * 2**30),
  'TPU v6 lite': Chip(918e12, 1640e9, 31.25 * 2**30),
  'NVIDIA A100-SXM4-40GB': Chip(312e12, 1555e9, 40e9),
  'NVIDIA A100-SXM4-80GB': Chip(312e12, 2039e9, 80e9),
  'NVIDIA H100 80GB HBM3': Chip(989e12, 3350e9, 80e9),
  'NVIDIA H200': Chip(989e12, 4800e9, 141e9),
}
# Width of the square float32 matmul that is timed on other devices, and how
# often.
_WIDTH, _TIMES = 1024, 5


def flops_per_second(device: jax.Device) -> tuple[float, str]:
  """Operations per second, and the source of the figure.

  From CHIPS for the accelerators there, else measured on one large matmul.
  """
  if device.device_kind in CHIPS:
    return CHIPS[device.device_kind].flops, 'named, bfloat16'
  x = jax.device_put(jnp.ones((_WIDTH, _WIDTH)), device)
  product = jax.jit(jnp.matmul).lower(x, x).compile()
  jax.block_until_ready(product(x, x))
  seconds = []
  for _ in range(_TIMES):
    start = time.perf_counter()
    jax.block_until_ready(product(x, x))
    seconds.append(time.perf_counter() - start)
  return 2 * _WIDTH**3 / statistics.median(seconds), 'measured, float32'
