"""Loops, on axes of a mesh that shard_map or explicit shardings name."""

import pytest

SCRIPT = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from selfattn import NORMALISERS, AttentionEncoder, Tokens
from selfattn.encoders import ENCODERS
from selfattn.positions import make

kind = AxisType.Explicit if sys.argv[1] == 'explicit' else AxisType.Auto
mesh = jax.make_mesh((2,), ('rows',), (kind,), devices=jax.devices()[:2])
rows = PartitionSpec('rows')
x = jax.random.normal(jax.random.key(0), (2, 5, 8))
mask = jnp.arange(5)[None] < jnp.array([[5], [3]])
sizes = {'num_heads': 2, 'mlp_dim': 8, 'dtype': jnp.float32}


def encoder(
  name, position='none', normaliser='softmax', causal=True, num_layers=1
):
  if name in ('rnn', 'cnn'):
    bidirectional = {'bidirectional': not causal} if name == 'rnn' else {}
    return ENCODERS[name](num_layers=1, dtype=jnp.float32, **bidirectional)
  more = {'position': make({position: {}}, 8, 2, causal), 'causal': causal}
  if name == 'attention':
    more['normaliser'] = NORMALISERS[normaliser](2, head_dim=4)
    more['value_residual'] = num_layers > 1
  return ENCODERS[name](num_layers=num_layers, **sizes, **more)


def check(*choice):
  model = encoder(*choice)
  params = model.init(jax.random.key(1), x, mask)

  def result(x, mask, params):
    def loss(x):
      tokens = Tokens(padding_mask=mask)
      y = jnp.where(mask[..., None], model.apply(params, x, tokens), 0)
      return (y**2).sum(), y

    return jax.grad(loss, has_aux=True)(x)

  want = result(x, mask, params)
  if kind == AxisType.Explicit:
    put = NamedSharding(mesh, rows)
    with jax.set_mesh(mesh):
      everywhere = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
      placed = jax.device_put((x, mask), put)
      found = jax.jit(result)(*placed, everywhere)
  else:
    places = rows, rows, PartitionSpec()
    found = jax.jit(
      jax.shard_map(result, mesh=mesh, in_specs=places, out_specs=rows)
    )(x, mask, params)
  for a, b in zip(found, want, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5, err_msg=str(choice))


for choice in (
  *(('attention', 'none', name) for name in NORMALISERS if name != 'cope'),
  ('attention', 'recurrent'), ('attention', 'wall'), ('attention', 'path'),
  ('attention', 'rotary'), ('attention', 'selective'),
  ('attention', 'rotary', 'softmax', True, 2),
  ('linear_attention', 'rotary'), ('rnn',), ('cnn',),
):
  try:
    check(*choice)
  except Exception as error:
    print(choice, type(error).__name__, str(error).splitlines()[0][:300])
"""


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['shard_map', 'explicit'])
def test_results_are_those_without_a_mesh(kind, eight_devices):
  assert eight_devices(SCRIPT, kind) == ''
