"""One place for what all tests share: sizes, a small config, a command."""

import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from importlib import metadata

# Before jax is imported anywhere: tests take the CPU, unless they are told.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Tests wait for the compiler, not for what it compiles; the emitters of fused
# loops take more than half of its time, where they can be left out, and parts
# that are compiled side by side a tenth, since tests run side by side.
os.environ.setdefault(
  'XLA_FLAGS',
  '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
  ' --xla_cpu_parallel_codegen_split_count=1'
  + ' --xla_cpu_use_fusion_emitters=false'
  * metadata.version('jaxlib').startswith('0.10.'),
)

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from experiments.command import app, modules, schema
from experiments.command.errors import UserError
from experiments.command.signals import Signals
from experiments.data import loading
from experiments.settings import reference
from experiments.settings.settings import from_config
from experiments.training import compiled
from experiments.training import run as run_lib
from selfattn.masks import Tokens
from selfattn.normalisers import NORMALISERS, Softmax
from selfattn.positions import POSITIONS, Position

ROOT = pathlib.Path(__file__).parent.parent
CONFIG_COMMANDS = ('train', 'sweep', 'compile', 'inspect')
# A shell that starts tests in the background has them ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No array is ever broadcast to another rank by accident.
jax.config.update('jax_numpy_rank_promotion', 'raise')


def pytest_xdist_auto_num_workers():
  """One more than cores, since tests of commands wait for processes."""
  given = os.environ.get('PYTEST_XDIST_AUTO_NUM_WORKERS')
  return int(given or os.cpu_count() + 1)


_OWN = pytest.StashKey[set]()


def pytest_addoption(parser):
  parser.addoption(
    '--method',
    default='',
    help='module:Class of a position method or a normaliser, or several, '
    'joined by commas: the tests of -m matrix, of these alone',
  )


def pytest_configure(config):
  """Adds methods before test files are imported, which list what there is."""
  names = [name for name in config.getoption('--method').split(',') if name]
  if not names:
    return
  if config.getoption('markexpr') != 'matrix':
    raise pytest.UsageError('--method is for -m matrix')
  # scripts/run.sh has changed the folder.
  modules.search(os.environ.get('OLDPWD', '.'))
  for name in names:
    try:
      entry = modules.named(name, None, '--method')
    except UserError as error:
      raise pytest.UsageError(str(error)) from None
    if isinstance(entry, type) and issubclass(entry, Position):
      POSITIONS[name] = entry
    elif isinstance(entry, type) and issubclass(entry, Softmax):
      NORMALISERS[name] = entry
    else:
      raise pytest.UsageError(
        f'--method={name} is no position method and no normaliser'
      )
  config.stash[_OWN] = set(names)


def pytest_collection_modifyitems(config, items):
  if own := config.stash.get(_OWN, None):
    chosen = [
      item
      for item in items
      if hasattr(item, 'callspec')
      and own & set(re.split(r'[-+ ]', item.callspec.id))
    ]
    config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
    items[:] = chosen


@pytest.fixture(scope='session', autouse=True)
def own_cache(tmp_path_factory):
  """Tests read and write a data cache of their own."""
  os.environ['SELFATTN_CACHE'] = str(tmp_path_factory.mktemp('cache'))


def make_small_config():
  """The default config, small enough to train in a second or two."""
  config = default.get_config()
  config.data.source = (
    'word_order(train_pairs=37, validation_pairs=11, test_pairs=13)'
  )
  config.data.num_buckets = 1
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.embed_dim = 12
  config.model.mlp_dim = 20
  config.train.batch_size = 16
  config.train.steps = 12
  config.train.log_every = 1
  config.train.eval_every = 4
  config.optimizer.warmup_steps = 3
  config.checkpoint.every_steps = 3
  return config


def make_group(configs, folder):
  """What run.run_group needs of configs of one program: runs, data, program.

  Their workdirs are a, b, ... in a folder.
  """
  runs = [
    (config.to_dict(), from_config(config), str(folder / chr(ord('a') + index)))
    for index, config in enumerate(configs)
  ]
  settings = runs[0][1]
  loaded = loading.load(settings.data, '')
  facts, count = loaded.label_facts, len(runs)
  return runs, loaded, compiled.make(settings, loaded.vocabulary, facts, count)


@pytest.fixture
def small_config():
  """A small config of one's own."""
  return make_small_config()


@pytest.fixture(scope='session')
def finished_run(tmp_path_factory, worker_id):
  """The workdir of a small run that is done; no test changes it.

  The processes of pytest share it.
  """
  folder = tmp_path_factory.getbasetemp()
  path = (folder if worker_id == 'master' else folder.parent) / 'finished/run'
  with filelock.FileLock(f'{path.parent}.lock'):
    if not path.exists():
      run_lib.run(make_small_config(), str(path), Signals())
  return path


@pytest.fixture(scope='session')
def run_command():
  """Runs `python -m experiments.NAME ARGUMENTS`, as run.sh does."""

  def run(name, *arguments, cwd=ROOT, **options):
    return subprocess.run(
      [sys.executable, '-m', f'experiments.{name}', *map(str, arguments)],
      capture_output=True,
      text=True,
      cwd=cwd,
      env=os.environ | {'PYTHONPATH': str(ROOT)},
      timeout=300,
      check=False,
      **options,
    )

  return run


def exit_code(name, *arguments, cwd):
  """That of a command which runs within this process."""
  module = importlib.import_module(f'experiments.{name}')
  describe = reference.described if name in CONFIG_COMMANDS else None
  words = list(map(str, arguments))
  typed = [sys.executable, '-m', f'experiments.{name}', *words]
  numbers = signal.valid_signals()
  handlers = {number: signal.getsignal(number) for number in numbers}
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(cwd)
    patch.setattr(sys, 'argv', [name, *words])
    patch.setattr(sys, 'orig_argv', typed)
    try:
      with pytest.raises(SystemExit) as end:
        app.run(module.main, module._define, module.__doc__, describe)
    finally:
      for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
          signal.signal(number, handler)
  return end.value.code


@pytest.fixture
def call_command(capfd):
  """The same as run_command within this process: (code, stdout, stderr)."""

  def call(name, *arguments, cwd):
    capfd.readouterr()
    return exit_code(name, *arguments, cwd=cwd), *capfd.readouterr()

  return call


@pytest.fixture(scope='module')
def printed_json():
  """The last line on stdout of a command in this process, which succeeds."""

  def call(name, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
      assert exit_code(name, *arguments, cwd=ROOT) == 0
    return last_json(stdout.getvalue())

  return call


_PROGRAMS = {}


@pytest.fixture(scope='module')
def shared_programs():
  """Runs that could share a program do, in all modules of tests: it is slow."""
  make = compiled.make

  def make_once(settings, *more, **named):
    if settings.own_names():
      # A name may stand for another class in another test.
      return make(settings, *more, **named)
    entries = tuple(call.entry for call in schema.calls_of(settings))
    key = compiled.key(settings), entries, *more, *sorted(named.items())
    if key not in _PROGRAMS:
      _PROGRAMS[key] = make(settings, *more, **named)
    return _PROGRAMS[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(compiled, 'make', make_once)
    yield


@pytest.fixture(scope='session')
def eight_devices():
  """Runs Python text in a process that sees eight devices on the CPU."""

  def run(text, *arguments):
    flags = os.environ['XLA_FLAGS']
    flags += ' --xla_force_host_platform_device_count=8'
    done = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(text), *map(str, arguments)],
      capture_output=True,
      text=True,
      cwd=ROOT,
      env=os.environ | {'PYTHONPATH': str(ROOT), 'XLA_FLAGS': flags},
      timeout=300,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

  return run


def normal(seed, shape):
  """Normal numbers of NumPy: those of JAX cost a compilation a shape."""
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.standard_normal(shape, np.float32))


# Parameters that are near one, not near zero.
_POSITIVE = {'scale', 'r1', 'r2', 'c', 'threshold_scale'}


def draw(init, *args):
  """A tree like that of `init(*args)`, drawn by NumPy.

  Initialisation takes longer to compile than most models do here.
  """
  rng = np.random.default_rng(0)

  def leaf(path, like):
    noise = rng.uniform(-0.5, 0.5, like.shape)
    return jnp.asarray(noise + (path[-1].key in _POSITIVE), like.dtype)

  return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(init, *args))


def is_causal_only(names):
  """Whether one of the joined methods is defined for earlier keys alone."""
  parts = names.split(' ')[0].split('+')
  return any(POSITIONS[part].causal_only for part in parts)


def at(positions_BL):
  """Tokens that stand there."""
  return Tokens(positions=positions_BL)


def last_json(stdout):
  """The last line of standard output, which every command promises is JSON."""
  return json.loads(stdout.strip().splitlines()[-1])


@pytest.fixture(scope='module')
def browser():
  """A headless browser."""
  names = ('chromium', 'chromium-browser', 'google-chrome')
  found = next(filter(None, map(shutil.which, names)), None)
  driver = shutil.which('chromedriver')
  if found is None or driver is None:
    pytest.skip(
      'no browser; on Debian: apt-get install chromium chromium-driver'
    )
  from selenium import webdriver
  from selenium.webdriver.chrome.service import Service

  options = webdriver.ChromeOptions()
  options.binary_location = found
  for flag in ('headless=new', 'no-sandbox', 'disable-dev-shm-usage'):
    options.add_argument(f'--{flag}')
  options.add_argument('--window-size=1000,1600')
  options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
  opened = webdriver.Chrome(options=options, service=Service(driver))
  yield opened
  opened.quit()


WORDS = ('[PAD]', '[CLS]', '[SEP]', '[UNK]', '[MASK]')
# Of a tiny BERT.
PUBLISHED = {
  'architectures': ['BertModel'],
  'model_type': 'bert',
  'vocab_size': 90,
  'hidden_size': 16,
  'intermediate_size': 24,
  'num_hidden_layers': 2,
  'num_attention_heads': 2,
  'max_position_embeddings': 70,
}


@pytest.fixture(scope='session')
def published_bert(tmp_path_factory):
  """The folder of a tiny BERT with drawn weights and a tokenizer of words."""
  import itertools

  import tokenizers
  from tokenizers import models, pre_tokenizers, processors

  from experiments.data import word_order
  from selfattn import pretrained

  folder = str(tmp_path_factory.mktemp('published'))
  model = pretrained.ARCHITECTURES['bert'](pretrained.Config(PUBLISHED))
  module = pretrained.module(model, 'text', 1)
  shapes = pretrained.abstract_params(module)
  rng = np.random.default_rng(5)
  params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape), shapes)
  params = jax.tree.map(lambda x: x.astype(np.float32), params)
  params['head'] = {'dense': params['head']['dense']}
  pretrained.save(folder, model, params, PUBLISHED)
  pairs = itertools.islice(word_order.twin_pairs(200, 0), 200)
  texts = itertools.chain.from_iterable(pairs)
  words = sorted({word for text in texts for word in text.split()})
  ids = {word: n for n, word in enumerate([*WORDS, *words])}
  assert len(ids) <= PUBLISHED['vocab_size']
  tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token='[UNK]'))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  tokenizer.add_special_tokens(list(WORDS))
  tokenizer.post_processor = processors.TemplateProcessing(
    single='[CLS] $A [SEP]',
    pair='[CLS] $A [SEP] $B:1 [SEP]:1',
    special_tokens=[('[CLS]', 1), ('[SEP]', 2)],
  )
  # As the file of all-MiniLM-L6-v2 has it; neither may be believed.
  tokenizer.enable_truncation(6)
  tokenizer.enable_padding(length=6)
  tokenizer.save(os.path.join(folder, 'tokenizer.json'))
  return folder
