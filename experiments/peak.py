"""What a device could compute at most, to say how much of it a run uses."""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

# Operations a second of dense products in bfloat16, as the makers' data sheets
# say, by jax's name of the device.
_NAMED = {
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
}
# Width of the square float32 product that stands for an unnamed machine, and
# how often it is timed.
_WIDTH, _TIMES = 1024, 5


def flops_per_second(device: jax.Device) -> tuple[float, str]:
  """Operations a second, and where the figure is from.

  Named for the accelerators above, else measured on one large product.
  """
  if device.device_kind in _NAMED:
    return _NAMED[device.device_kind], 'named, bfloat16'
  x = jax.device_put(jnp.ones((_WIDTH, _WIDTH)), device)
  product = jax.jit(jnp.matmul).lower(x, x).compile()
  jax.block_until_ready(product(x, x))
  seconds = []
  for _ in range(_TIMES):
    start = time.perf_counter()
    jax.block_until_ready(product(x, x))
    seconds.append(time.perf_counter() - start)
  return 2 * _WIDTH**3 / statistics.median(seconds), 'measured, float32'
