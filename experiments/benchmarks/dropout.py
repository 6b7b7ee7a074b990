"""Dropout of a million elements, with its gradient, by generator of the mask.

selfattn.dropout computes a hash, which the compiler fuses with its consumers;
nn.Dropout draws from one of the generators of jax.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from experiments.benchmarks import alternate, summary
from experiments.benchmarks.peers import DROPOUT_RATE
from selfattn.dropout import Dropout

SHAPE = (64, 64, 256)


def measure(values) -> list[dict]:
  """One row per generator; ratios are to the hash.

  Args:
    values: flags of experiments.benchmark.
  """
  x = jnp.ones(SHAPE)

  def hashed(x, key):
    return Dropout.create(key, DROPOUT_RATE)(x)

  def layer(x, key):
    module = nn.Dropout(DROPOUT_RATE, deterministic=False)
    return module.apply({}, x, rngs={'dropout': key})

  def nothing(x, key):
    del key
    return x

  functions = {}
  for name, drop, kind in (
    ('hash', hashed, 'threefry2x32'),
    ('nn.Dropout, threefry', layer, 'threefry2x32'),
    ('nn.Dropout, rbg', layer, 'rbg'),
    ('none', nothing, 'threefry2x32'),
  ):
    key = jax.random.key(0, impl=kind)

    def total(x, key, drop=drop):
      return (drop(x, key) ** 2).sum()

    functions[name] = functools.partial(jax.jit(jax.grad(total)), x, key)
  seconds = alternate(functions, values.repetitions)
  return [
    {'dropout': name} | summary(times, seconds['hash'])
    for name, times in seconds.items()
  ]
