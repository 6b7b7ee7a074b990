"""The node tests of ONNX against attention, Rotary and linear attention.

Each case is a call with NumPy arrays and what it has to return
(onnx.backend.test.case.node); what is expected of an operator stands in
https://onnx.ai/onnx/operators. Cases that are the same graph written out as
simpler operators ("expanded") are left out.
"""

import collections
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

from selfattn import choice
from selfattn.backends import attend
from selfattn.kernels import unsupported_reason
from selfattn.linear import linear_sums
from selfattn.positions.rotary import Rotary
from selfattn.tokens import Tokens


@dataclasses.dataclass(frozen=True)
class Case:
  """A call of an operator: what is given and expected, by name."""

  name: str
  options: dict
  given: dict
  expected: dict


@pytest.fixture(scope='module')
def cases():
  """Lists of cases by operator."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # arrays of other operators overflow
    collected = collect_testcases(None)
  by_operator = collections.defaultdict(list)
  for case in collected:
    (node, *more) = case.model.graph.node
    if more or 'expanded' in case.name:
      continue
    ((inputs, outputs),) = case.data_sets
    given = dict(zip(filter(None, node.input), inputs, strict=True))
    expected = dict(zip(filter(None, node.output), outputs, strict=True))
    options = {
      attribute.name: helper.get_attribute_value(attribute)
      for attribute in node.attribute
    }
    by_operator[node.op_type].append(Case(case.name, options, given, expected))
  return by_operator


def heads_first(x, num_heads):
  """Of (B, L, H K), or (B, H, L, K) as it is."""
  if x.ndim == 4:
    return x
  return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)


def arguments(case):
  """Of `attend`, for a case of Attention."""
  options, given = case.options, case.given
  q = heads_first(given['Q'], options.get('q_num_heads'))
  k, v = (heads_first(given[n], options.get('kv_num_heads')) for n in 'KV')
  num_past = 0
  if 'past_key' in given:
    num_past = given['past_key'].shape[2]
    k = np.concatenate([given['past_key'], k], axis=2)
    v = np.concatenate([given['past_value'], v], axis=2)
  q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
  (L, K), M = q.shape[1::2], k.shape[1]
  if 'scale' in options:
    q = q * np.float32(options['scale'] * K**0.5)

  padding_mask, offset_B1 = None, np.full((1, 1), num_past)
  if 'nonpad_kv_seqlen' in given:
    length_B1 = given['nonpad_kv_seqlen'][:, None]
    padding_mask, offset_B1 = np.arange(M)[None] < length_B1, length_B1 - L
  more = {
    'query_tokens': Tokens(index=offset_B1 + np.arange(L)[None]),
    'key_tokens': Tokens(padding_mask),
    'causal': bool(options.get('is_causal', 0)),
    'window': tuple(
      options.get(f'{side}_window_size', -1) for side in ('left', 'right')
    ),
    'softcap': options.get('softcap', 0.0),
  }
  if 'attn_mask' in given:
    x = given['attn_mask']
    # One shorter than the keys hides the rest of them.
    missing = [(0, 0)] * (x.ndim - 1) + [(0, M - x.shape[-1])]
    if x.dtype == bool:
      more['mask'] = np.pad(x, missing)
    else:
      x = x.astype(np.float32)
      more['bias'] = np.pad(x, missing, constant_values=-np.inf)
  return (q, k, v), more


# float16, which NumPy computes in and we do not, and bfloat16.
TOLERANCES = {'float32': 1e-5, 'float16': 2e-3, 'bfloat16': 2e-2}


def outputs(cases, backend):
  """Output and weights by name of the case, of most cases as one program."""
  calls = {case.name: arguments(case) for case in cases}
  more = {'backend': backend, 'return_weights': True}

  def run(arrays):
    return {n: attend(*arrays[n], **calls[n][1], **more) for n in arrays}

  arrays = {name: arrays for name, (arrays, _) in calls.items()}
  if backend != 'xla':
    return jax.jit(run)(arrays)
  # jax.nn cannot be compiled for float16 on a CPU.
  half = {n: qkv for n, qkv in arrays.items() if qkv[0].dtype == np.float16}
  others = {n: qkv for n, qkv in arrays.items() if n not in half}
  return jax.jit(run)(others) | run(jax.tree.map(jnp.asarray, half))


def refusal(case, backend):
  (q, _, v), more = arguments(case)
  return unsupported_reason(
    backend,
    platform=None,
    dtype=q.dtype,
    head_dim=q.shape[-1],
    value_dim=v.shape[-1],
    has_dropout=False,
    has_softcap=more['softcap'] > 0,
  )


@pytest.mark.slow
@pytest.mark.parametrize('backend', ['reference', 'chunked', 'xla'])
def test_attention(cases, backend, monkeypatch):
  monkeypatch.setattr(choice, '_CHUNK_SCORES', 1)  # a query at a time
  assert len(cases['Attention']) == 93
  served = [case for case in cases['Attention'] if not refusal(case, backend)]
  assert len(served) == {'xla': 82}.get(backend, 93)
  found = outputs(served, backend)
  for case in served:
    output, weights = found[case.name]
    want = case.expected['Y']
    within = TOLERANCES[str(output.dtype)]
    output = output.swapaxes(1, 2) if want.ndim == 4 else output
    pairs = [(output.reshape(want.shape), want)]
    if case.options.get('qk_matmul_output_mode') == 3:
      pairs.append((weights, case.expected['qk_matmul_output']))
    for ours, theirs in pairs:
      np.testing.assert_allclose(
        np.asarray(ours, np.float32),
        np.asarray(theirs, np.float32),
        rtol=within,
        atol=within,
        err_msg=case.name,
      )


@dataclasses.dataclass(frozen=True)
class Tabled(Rotary):
  """Rotary with cosines and sines that are given."""

  def encoding(self, params, tokens):
    positions_BL = tokens.positions
    cos, sin = params['cos'], params['sin']
    if cos.ndim == 2:
      cos, sin = cos[positions_BL], sin[positions_BL]
    return jnp.concatenate([cos, sin], axis=-1)


def test_rotary_embedding(cases):
  assert len(cases['RotaryEmbedding']) == 8
  for case in cases['RotaryEmbedding']:
    options, given = case.options, case.given
    x_BHLK = heads_first(given['input'], options.get('num_heads'))
    H, K = x_BHLK.shape[1], x_BHLK.shape[-1]
    method = Tabled(
      H * K,
      H,
      False,
      layout='interleaved' if options.get('interleaved') else 'half',
      fraction=(options.get('rotary_embedding_dim') or K) / K,
    )
    params = {n: given[f'{n}_cache'] for n in ('cos', 'sin')}
    x_BLHK = jnp.asarray(x_BHLK.swapaxes(1, 2))
    here = Tokens(positions=given.get('position_ids'))
    found_BLHK, _ = method.rotate(params, x_BLHK, x_BLHK, here, here)
    want = heads_first(case.expected['output'], options.get('num_heads'))
    np.testing.assert_allclose(
      found_BLHK, want.swapaxes(1, 2), rtol=1e-5, atol=1e-5, err_msg=case.name
    )


def test_linear_attention(cases):
  """The sums alone: the operator has no feature map, and no denominator."""
  left_out = collections.Counter()
  for case in cases['LinearAttention']:
    options, given = case.options, case.given
    rule = options.get('update_rule', b'gated_delta').decode()
    if rule != 'linear':
      left_out[rule] += 1
      continue
    num_heads = options['q_num_heads']
    q, k, v = (
      jnp.asarray(heads_first(given[name], num_heads))
      for name in ('query', 'key', 'value')
    )
    tokens = Tokens().with_defaults(q.shape[2])
    sums_BHLV, total_BHKV = linear_sums(q, k, v, tokens, causal=True)
    want = heads_first(case.expected['output'], num_heads)
    pairs = (
      (sums_BHLV * q.shape[-1] ** -0.5, want),
      (total_BHKV, case.expected['present_state']),
    )
    for found, expected in pairs:
      np.testing.assert_allclose(
        found, expected, rtol=1e-5, atol=1e-5, err_msg=case.name
      )
  assert len(cases['LinearAttention']) - left_out.total() == 2
  # Decays and the delta rule are other encoders, which there are none of.
  assert left_out == {'gated': 2, 'delta': 1, 'gated_delta': 9}
