"""What a device could do at most, to say how much of it a run uses."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Chip(NamedTuple):
  """Limits of one device, as jax counts devices.

  Attributes:
    flops: operations a second of dense products in bfloat16.
    bandwidth: bytes a second between it and its memory.
    memory: bytes a program may use.
  """

  flops: float
  bandwidth: float
  memory: float


# By jax's name of the device. Operations and bandwidth are of the makers' data
# sheets; the memory of a TPU is what its compiler says is available.
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
# Width of the square float32 product that stands for an unnamed machine, and
# how often it is timed.
_WIDTH, _TIMES = 1024, 5


def flops_per_second(device: jax.Device) -> tuple[float, str]:
  """Operations a second, and where the figure is from.

  Named for the accelerators above, else measured on one large product.
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
