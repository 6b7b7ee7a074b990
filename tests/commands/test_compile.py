"""The training step compiles for TPU slices without a TPU, or is refused."""

import importlib.util
import re

import jax
import pytest
from conftest import ROOT, last_json

from configs import mqar
from experiments.data import loading
from experiments.settings.settings import from_config
from experiments.training import tpu_slices

HAS_COMPILER = importlib.util.find_spec('libtpu') is not None
needs_compiler = [
  pytest.mark.tpu_compile,
  pytest.mark.skipif(
    not HAS_COMPILER,
    reason="no TPU compiler: run.sh pip install 'jax[tpu]'",
  ),
]
# One host, and several.
TOPOLOGIES = (
  'v4:2x2x1', 'v4:2x2x4', 'v5e:2x2', 'v5e:4x4', 'v5p:2x2x1', 'v5p:2x2x4',
  'v6e:2x2', 'v6e:4x4',
)  # fmt: skip
HOSTS = {'2x2x1': 1, '2x2x4': 4, '2x2': 1, '4x4': 4}
DEVICES = {'2x2x1': 4, '2x2x4': 16, '2x2': 4, '4x4': 16}
# As large as BERT-large, texts of 512 tokens.
LARGE = {
  'config.data.source': 'algorithmic(train=2000, longest_test=512)',
  'config.data.num_buckets': 1,
  'config.data.max_length': 512,
  'config.model.num_layers': 24,
  'config.model.embed_dim': 1024,
  'config.model.num_heads': 16,
  'config.model.mlp_dim': 4096,
  'config.model.dtype': 'bfloat16',
  'config.train.batch_size': 64,
  'config.model.encoder': 'attention(scan=True, remat=True)',
}
# As large as BERT-base, one text a device.
LONG = LARGE | {
  'config.data.source': 'algorithmic(train=200, longest_test=32768)',
  'config.data.max_length': 32768,
  'config.model.num_layers': 12,
  'config.model.embed_dim': 768,
  'config.model.num_heads': 12,
  'config.model.mlp_dim': 3072,
  'config.train.batch_size': 8,
}
CONFIGS = {
  'default': {},
  'sst2': {'config': 'configs/sst2.py'},
  'large': LARGE,
}


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    ((), '--topology is required'),
    (('--topology=v9:2x2',), "'v9' is not one of v4, v5e, v5p, v6e"),
    (('--topology=v5e-8',), "'v5e-8' is not one of"),
    (('--topology=v5e:8',), 'must end in chips a side, such as v5e:2x2'),
    (('--topology=v5e:2x2', '--config.train.steps=-1'), 'config.train.steps'),
  ],
)
def test_wrong_topologies_are_refused(call_command, arguments, line):
  code, _, stderr = call_command('compile', *arguments, cwd=ROOT)
  assert code == 2, stderr
  (error,) = stderr.splitlines()
  assert line in error


@pytest.mark.skipif(HAS_COMPILER, reason='there is a TPU compiler')
def test_a_missing_compiler_is_named(call_command):
  code, _, stderr = call_command('compile', '--topology=v5e:2x2', cwd=ROOT)
  assert code == 2
  (error,) = stderr.splitlines()
  assert 'install the extra tpu-compile' in error


def test_collectives_are_counted():
  """A program as text, with one line of every known form."""
  text = """
  %a = f32[64,128]{1,0:T(8,128)} all-reduce(%x), replica_groups={{0,1}}
  %b = (bf16[8]{0}, f32[2,2]{1,0}) all-reduce-start(%y, %z), channel_id=2
  %c = (bf16[8]{0}, f32[2,2]{1,0}) all-reduce-done(%b)
  %d = bf16[16,4]{1,0} all-gather(%w), dimensions={0}
  %e = f32[] add(%p, %q)
  """
  assert tpu_slices.collectives(text) == {'all-reduce': 2, 'all-gather': 1}


def written(topology, flags):
  return [
    f'--{name}={value}'
    for name, value in ({'topology': topology} | flags).items()
  ]


def test_a_step_is_compiled_for_labels_of_any_shape():
  config = mqar.get_config()
  config.model.num_layers, config.train.steps = 1, 10
  config.optimizer.warmup_steps = 0
  config.data.source = 'mqar(vocab_size=64, num_pairs=8, length=32, train=500)'
  settings = from_config(config)
  loaded = loading.load(settings.data, '', labels=settings.task.entry.labels)
  step, _ = tpu_slices.compile_step(settings, loaded, jax.devices()[:1], False)
  assert step.memory_analysis().temp_size_in_bytes > 0


@pytest.fixture
def compiled(run_command, monkeypatch):
  # Flags of the CPU, which the compiler for TPUs does not know.
  monkeypatch.delenv('XLA_FLAGS', raising=False)

  def run(topology, flags):
    done = run_command('compile', '--quick', *written(topology, flags))
    assert done.returncode == 0, done.stderr
    return last_json(done.stdout)

  return run


class TestWithCompiler:
  """In minutes: `pytest -m tpu_compile`."""

  pytestmark = needs_compiler

  @pytest.mark.parametrize('topology', TOPOLOGIES)
  @pytest.mark.parametrize('config', CONFIGS)
  def test_it_compiles_and_fits(self, compiled, config, topology, tmp_path):
    # Texts of config.data.max_length, in the format of the config.
    text = 'word ' * 63
    lines = ''.join(f'{text}{n}\t{n % 2}\n' for n in range(400))
    for name in ('train.tsv', 'dev.tsv'):
      (tmp_path / name).write_text('sentence\tlabel\n' + lines)
    flags = dict(CONFIGS[config])
    if config == 'sst2':
      flags['config.data.dir'] = tmp_path
    found = compiled(topology, flags)
    layout = topology.partition(':')[2]
    assert (found['devices'], found['hosts']) == (
      DEVICES[layout],
      HOSTS[layout],
    )
    assert found['fits']
    assert 0 < found['memory_bytes'] < found['memory_available_bytes']
    assert list(found['collectives']) == ['all-reduce']

  def test_sharded_parameters_need_less_memory(self, compiled):
    replicated = compiled('v5e:4x4', LARGE)
    sharded = compiled('v5e:4x4', LARGE | {'config.train.fsdp_min_size': 1024})
    assert sharded['argument_bytes'] < replicated['argument_bytes'] / 10
    assert 'all-gather' in sharded['collectives']

  def test_too_large_a_run_is_refused_with_what_to_change(self, run_command):
    flags = written('v5e:2x2', LARGE | {'config.train.batch_size': 4096})
    done = run_command('compile', '--quick', *flags)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert re.search(r'needs [\d.]+G of the 15.75G .* lower config.train', line)

  def test_a_slice_that_does_not_exist_is_refused(self, run_command):
    done = run_command('compile', '--topology=v5e:3x5')
    assert done.returncode == 2
    assert 'not divisible' in done.stderr

  @pytest.mark.parametrize('topology', ['v5e:2x4', 'v5p:2x2x2', 'v6e:2x4'])
  def test_a_text_of_32_768_tokens_fits_on_each_device(
    self, compiled, topology
  ):
    """Forward and gradient."""
    found = compiled(topology, LONG)
    assert found['devices'] == 8
    assert found['attention'] == 'pallas_tpu'
    assert found['memory_bytes'] < 5 * 2**30

  def test_what_the_tpu_kernel_does_not_support_is_said(self, compiled):
    rate = {'config.model.attention_dropout_rate': 0.1}
    found = compiled('v5e:2x2', rate)
    assert found['attention'] == (
      'reference (pallas_tpu: it has no dropout on the weights)'
    )

  def test_the_tpu_kernel_compiles(self, compiled):
    encoder = 'attention(backend=pallas_tpu, scan=True, remat=True)'
    found = compiled('v5e:2x2', {'config.model.encoder': encoder})
    assert found['fits']
