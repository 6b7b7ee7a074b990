#!/usr/bin/env bash
# On a CPU, the gradient of a Dense kernel is slower than it need be.
#
# jax 0.10.2. The gradient of x @ kernel for x of three dimensions is
# transpose(dot(dy, x)). XLA swaps the operands, and has copied dy by columns
# before, so that the matmul reads both operands along columns: its fast CPU
# kernels (YNNPACK) are for rows. A barrier between dot and transpose keeps the
# order, and the same sum takes less time.
#
# Seen: plain reads columns, with a barrier it does not; plain is slower
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2
seen="$(JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import os
import statistics
import time

import jax
import jax.numpy as jnp

if hasattr(os, 'sched_setaffinity'):
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
x = jax.random.normal(jax.random.key(0), (8, 64, 512))
dy = jax.random.normal(jax.random.key(1), (8, 64, 128))
kernel = jnp.ones((512, 128))


@jax.custom_jvp
def barred(kernel):
  return kernel


@barred.defjvp
def _(primals, tangents):
  return primals[0], jax.lax.optimization_barrier(tangents[0].T).T


def gradient(change):
  def dense(kernel, x, dy):
    return (x @ change(kernel) * dy).sum()
  return jax.jit(jax.grad(dense)).lower(kernel, x, dy).compile()


def seconds(program):
  start = time.perf_counter()
  for _ in range(20):
    jax.block_until_ready(program(kernel, x, dy))
  return time.perf_counter() - start


programs = [gradient(lambda kernel: kernel), gradient(barred)]
columns = 'lhs_contracting_dims={0}, rhs_contracting_dims={1}'
reads = [columns in program.as_text() for program in programs]
times = [[seconds(program) for program in programs] for _ in range(15)]
plain, barrier = map(statistics.median, zip(*times, strict=True))
print('plain reads columns' if reads[0] else 'plain reads rows', end=', ')
print('with a barrier it does' + (' too' if reads[1] else ' not'), end='; ')
print('plain is slower' if plain > 1.2 * barrier else 'equal')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'plain reads columns, with a barrier it does not; plain is slower' ]]
