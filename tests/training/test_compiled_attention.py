"""Groups and sharded runs have the kernel of their platform."""

import json

import pytest

SCRIPT = """
import json
import re

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from experiments.data.batches import Batch
from experiments.data.labels import LabelFacts
from experiments.data.vocabularies import Vocabulary
from experiments.settings.settings import from_config
from experiments.training import compiled
from tests.conftest import make_small_config

LENGTH = 128
cudnn.check_cudnn_version = lambda: 91000
CALLS = {'gpu': ('cuda', '@__cudnn'), 'tpu': ('tpu', '@tpu_custom_call')}


def calls(platform, count, num_trials, shuffle_by_seed):
  config = make_small_config()
  config.model.embed_dim = 16
  config.model.dtype = 'bfloat16'
  config.model.attention_dropout_rate = 0.0
  config.train.shuffle_by_seed = shuffle_by_seed
  compiled.platform_of = lambda device: platform
  settings = from_config(config)
  facts, devices = LabelFacts(('a', 'b')), jax.devices()[:count]
  program = compiled.make(settings, Vocabulary(11), facts, num_trials, devices)
  hparams = program.hparams([settings])
  state = jax.eval_shape(program.init, hparams)
  shape = (num_trials, 8) if shuffle_by_seed else (8,)
  rows = jnp.ones(shape, jnp.int32)
  tokens = jnp.ones((*shape, LENGTH), jnp.int32)
  batch = Batch(tokens, rows, rows, rows.astype(jnp.float32))
  lowering, name = CALLS[platform]
  traced = program.train_step.trace(state, batch, hparams)
  text = traced.lower(lowering_platforms=(lowering,)).as_text()
  lines = [line for line in text.splitlines() if name in line]
  lengths = {
    rows for line in lines for rows in re.findall(r'tensor<(\\d+)xi32>', line)
  }
  pairs = {'128x128xbf16' in line for line in lines}
  return len(lines), sorted(lengths), any(pairs)


print(json.dumps({
  f'{platform} {name}': calls(platform, *sizes)
  for platform in CALLS
  for name, sizes in {
    'group': (1, 3, False),
    'sharded group of orders': (4, 2, True),
  }.items()
}))
"""


@pytest.mark.slow
def test_groups_and_shards_take_kernels_without_masks_of_pairs(eight_devices):
  """The forward pass and the backward; the axis of vmap is in the lengths."""
  rows = {'group': 24, 'sharded group of orders': 4}
  want = {
    f'gpu {name}': [2, [str(count)], False] for name, count in rows.items()
  }
  counted = json.loads(eight_devices(SCRIPT))
  assert {name: counted[name] for name in want} == want
  for name in rows:
    assert counted[f'tpu {name}'][::2] == [3, False]
