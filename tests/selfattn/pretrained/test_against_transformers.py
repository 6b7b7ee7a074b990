"""Published architectures against transformers, at random weights.

`pytest -m oracle` runs these where transformers and torch are installed.
"""

import copy
import fnmatch
import importlib
import importlib.util
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selfattn import pretrained
from selfattn.pretrained import tensors as tensors_lib
from selfattn.pretrained.folder import current_name
from tests.selfattn.pretrained import cases, oracle, table

pytestmark = [
  pytest.mark.oracle,
  pytest.mark.skipif(
    importlib.util.find_spec('transformers') is None,
    reason='transformers is not installed',
  ),
]
TOLERANCE = 1e-4


def torch_inputs(ids, mask):
  import torch

  return {
    'input_ids': torch.tensor(ids),
    'attention_mask': torch.tensor(mask.astype(np.int64)),
  }


def logits_of(model, head, ids, mask, **more):
  import torch

  # Some count the positions of tokens that are not padding.
  ids = np.where(mask, ids, model.config.pad_token_id or 0)
  with torch.no_grad():
    outputs = model(**torch_inputs(ids, mask), **more)
  array = outputs[0] if head == 'none' else outputs.logits
  return array.float().numpy()


def ours(loaded, ids, mask, **more):
  apply = jax.jit(loaded.module.apply)
  return np.asarray(
    apply(loaded.variables, jnp.asarray(ids), jnp.asarray(mask), **more)
  )


def close(found, want, mask=None, tolerance=TOLERANCE, least=1e-6):
  """Largest difference, of the largest element, which is within a tolerance."""
  if mask is not None:
    found, want = found[mask], want[mask]
  scale = max(float(abs(want).max()), least)
  assert np.isfinite(found).all()
  difference = float(abs(found - want).max()) / scale
  assert difference <= tolerance
  return difference


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """Models of transformers and of ours by case, each made once."""
  known = {}

  def get(case, head):
    if (case, head) not in known:
      folder = str(tmp_path_factory.mktemp('model'))
      kind, fields = cases.CASES[case]
      attention = 'sdpa' if case in cases.SDPA_ALONE else 'eager'
      theirs = oracle.make(kind, head, folder, fields, attention)
      of_head = {'causal': 'vocabulary', 'masked': 'vocabulary'}.get(head, head)
      num_classes = 3
      known[case, head] = (
        theirs,
        pretrained.load(folder, of_head, num_classes),
        folder,
      )
    return known[case, head]

  return get


TOKENS = cases.TOKENS
TEXTS = cases.TEXTS
# Fields that say a size, by all names that they have.
REQUIRED = {
  'vocab_size',
  'num_hidden_layers',
  'num_attention_heads',
  'hidden_size',
  'intermediate_size',
  *('dim', 'hidden_dim', 'n_layers', 'n_heads'),
  *('n_embd', 'n_layer', 'n_head', 'model_type'),
  *('d_model', 'd_ff', 'ffn_dim', 'num_layers', 'num_heads'),
}


@pytest.mark.parametrize('attention', ['eager', 'sdpa'])
@pytest.mark.parametrize('side', ['none', 'right', 'left'])
@pytest.mark.parametrize(('case', 'head'), TOKENS)
def test_logits_of_tokens(made, case, head, side, attention):
  theirs, loaded, _ = made(case, head)
  assert not loaded.missing
  assert not loaded.unexpected
  compare_tokens(theirs, loaded, case, head, side, attention)


@pytest.mark.parametrize(('case', 'head'), cases.WORDS)
def test_logits_of_words(made, case, head):
  theirs, loaded, _ = made(case, head)
  assert not loaded.missing
  assert not loaded.unexpected
  attention = 'sdpa' if case in cases.SDPA_ALONE else 'eager'
  compare_tokens(theirs, loaded, case, head, 'right', attention)


class Vectors(nn.Module):
  """In place of a head: the vectors of tokens themselves."""

  @nn.compact
  def __call__(self, x_BLD, embed):
    del embed
    return x_BLD


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize(('case', 'attention'), cases.VECTORS)
def test_vectors_of_tokens(made, case, attention, side):
  theirs, loaded, _ = made(case, 'none')
  assert not loaded.missing
  # That of BERT is a part of the head for texts.
  assert all('pooler' in name for name in loaded.unexpected)
  module = loaded.module.clone(token_head={'none': Vectors(parent=None)})
  loaded = loaded._replace(module=module)
  compare_tokens(theirs, loaded, case, 'none', side, attention)


@pytest.mark.parametrize('case', ['bert', 'bert_relu'])
def test_types_of_the_texts_of_a_pair(made, case):
  import torch

  theirs, loaded, _ = made(case, 'masked')
  ids, mask = oracle.batch('right')
  count = loaded.model.num_token_types
  types = np.arange(ids.shape[1])[None] * np.array([[1], [2]]) // 5 % count
  more = {'token_type_ids': torch.tensor(types)}
  want = logits_of(theirs, 'masked', ids, mask, **more)
  close(ours(loaded, ids, mask, token_types_BL=types), want, mask)


def with_attention(theirs, attention):
  """A copy; some classes ignore `set_attn_implementation`."""
  config = copy.deepcopy(theirs.config)
  made = type(theirs)._from_config(config, attn_implementation=attention)
  made.load_state_dict(theirs.state_dict())
  return made.eval()


def compare_tokens(theirs, loaded, case, head, side, attention):
  others = {'sdpa': cases.EAGER_ALONE, 'eager': cases.SDPA_ALONE}[attention]
  if case in others:
    pytest.skip(others[case])
  if theirs.config._attn_implementation != attention:
    theirs = with_attention(theirs, attention)
  ids, mask = oracle.batch(side)
  more = {}
  if side == 'left' and case in cases.COUNTS_PADDING:
    position_ids = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    import torch

    more = {'position_ids': torch.tensor(position_ids)}
  want = logits_of(theirs, head, ids, mask, **more)
  found = ours(loaded, ids, mask)
  table.note(case, head, logits=close(found, want, mask))


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize(('case', 'head'), TEXTS)
def test_logits_of_texts(made, case, head, side):
  theirs, loaded, _ = made(case, head)
  ids, mask = oracle.batch(side)
  if side == 'left' and case in cases.COUNTS_PADDING:
    pytest.skip('its positions count padding')
  if side == 'left' and loaded.model.pool.name == 'first':
    pytest.skip('its text has the vector of padding')
  want = logits_of(theirs, head, ids, mask)
  assert not loaded.missing
  found = ours(loaded, ids, mask)
  table.note(case, 'text', logits=close(found, want))


@pytest.mark.parametrize(
  'case', [case for case, head in TOKENS if head == 'causal']
)
def test_greedy_tokens_with_the_caches(made, case):
  import torch

  theirs, loaded, _ = made(case, 'causal')
  ids, _ = oracle.batch('none')
  prompt, count = ids[:1, :5], 32
  theirs.generation_config.eos_token_id = None
  with torch.no_grad():
    want = theirs.generate(
      torch.tensor(prompt),
      attention_mask=torch.ones(1, 5, dtype=torch.long),
      max_new_tokens=count,
      do_sample=False,
    )[0, 5:].tolist()

  @jax.jit
  def step(cache, tokens):
    return loaded.module.apply(
      {**loaded.variables, **cache},
      tokens,
      jnp.ones(tokens.shape, bool),
      mutable=['cache'],
      cache_len=5 + count,
    )

  cache, tokens, found = {}, jnp.asarray(prompt), []
  for _ in range(count):
    logits, cache = step(cache, tokens)
    tokens = logits[:, -1:].argmax(axis=-1)
    found.append(int(tokens[0, 0]))
  assert found == want
  table.note(case, 'causal', greedy=count)


def saved_gradients(model, folder):
  """Gradients by the names that tensors have in a file."""
  import torch
  from safetensors.numpy import load_file

  before = {name: p.data for name, p in model.named_parameters()}
  for p in model.parameters():
    p.data = torch.zeros_like(p) if p.grad is None else p.grad
  # Those that are saved, such as biases of experts, have no gradient.
  buffers = {n: x.data.clone() for n, x in model.named_buffers()}
  for x in model.buffers():
    x.data.zero_()
  model.save_pretrained(folder)
  for name, x in model.named_buffers():
    x.data.copy_(buffers[name])
  for name, p in model.named_parameters():
    p.data = before[name]
  grads = load_file(os.path.join(folder, 'model.safetensors'))
  return {current_name(name): grad for name, grad in grads.items()}


@pytest.mark.parametrize(('case', 'head'), TOKENS)
def test_gradients(made, case, head, tmp_path):
  import torch

  theirs, loaded, _ = made(case, head)
  ids, mask = oracle.batch('right')
  target = np.roll(ids, 1, axis=1)
  theirs.zero_grad()
  logits = theirs(**torch_inputs(ids, mask)).logits
  log_probs = torch.log_softmax(logits.float(), -1)
  picked = log_probs.gather(-1, torch.tensor(target)[..., None])[..., 0]
  (-(picked * torch.tensor(mask)).sum() / mask.sum()).backward()
  want = saved_gradients(theirs, tmp_path)

  def loss(params):
    logits = loaded.module.apply({'params': params}, ids, mask)
    log_probs = jax.nn.log_softmax(logits)
    index = jnp.asarray(target)[..., None]
    picked = jnp.take_along_axis(log_probs, index, axis=-1)[..., 0]
    return -(picked * mask).sum() / mask.sum()

  grads = jax.jit(jax.grad(loss))(loaded.variables['params'])
  found = tensors_lib.write(loaded.model, grads)
  # Some are 0 but for rounding, as that of a bias of keys.
  least = 1e-3 * max(float(abs(grad).max()) for grad in want.values())
  for name, grad in found.items():
    expected = want[name]
    assert grad.size == expected.size
    difference = close(
      grad.reshape(expected.shape), expected, None, 1e-3, least
    )
    table.note(case, head, gradients=difference)


@pytest.mark.parametrize(
  ('case', 'head'),
  [*TOKENS, *TEXTS, *((case, 'none') for case in cases.HEADLESS)],
)
def test_what_is_saved_is_read_bit_for_bit(made, case, head, tmp_path):
  from safetensors.numpy import load_file

  theirs, loaded, folder = made(case, head)
  config = oracle.config_of(folder)
  pretrained.save(
    str(tmp_path), loaded.model, loaded.variables['params'], config
  )
  before = load_file(os.path.join(folder, 'model.safetensors'))
  before = {current_name(name): array for name, array in before.items()}
  after = load_file(os.path.join(tmp_path, 'model.safetensors'))
  if head == 'none':
    dot = f'{loaded.model.prefix}.'
    after = {name.removeprefix(dot): array for name, array in after.items()}
  extra = [n for n in after if n not in before]
  assert not extra
  for name, array in after.items():
    np.testing.assert_array_equal(array, before[name].reshape(array.shape))
  again, info = type(theirs).from_pretrained(
    tmp_path,
    attn_implementation=theirs.config._attn_implementation,
    output_loading_info=True,
  )
  assert not [
    name
    for name in info['missing_keys']
    if not any(fnmatch.fnmatch(name, p) for p in loaded.model.ignored)
  ]
  assert not info['unexpected_keys']
  for x in again.parameters():
    # Their rounding depends on where they begin in memory.
    x.data = x.data.clone()
  ids, mask = oracle.batch('right')
  want = logits_of(theirs, head, ids, mask)
  np.testing.assert_array_equal(logits_of(again.eval(), head, ids, mask), want)


def test_every_architecture_has_a_case():
  kinds = {kind for kind, _ in cases.CASES.values()}
  assert kinds == set(pretrained.ARCHITECTURES)


@pytest.mark.parametrize('kind', list(pretrained.ARCHITECTURES))
def test_a_field_that_is_left_out_has_its_default(kind):
  """Files of older versions of transformers lack fields."""
  import transformers

  full = transformers.AutoConfig.for_model(kind).to_dict()
  if 'roberta' in kind or kind == 'camembert':
    # Its default is 2, which no tokenizer uses.
    full['type_vocab_size'] = 1
  want = pretrained.model_of(full)
  for name in full:
    less = {other: value for other, value in full.items() if other != name}
    if name in REQUIRED:
      continue
    assert pretrained.model_of(less) == want, name
