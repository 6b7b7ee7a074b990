"""What models do, found by running them, in words.

Each method of a class is a row of the third table of docs/coming_from.md, and
returns what stands in the cell of its library. Models are tiny Llamas, but for
what Llama does not have.
"""

import functools
import importlib
import inspect
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from selfattn import Dropout, TextClassifier, Tokens, pretrained
from selfattn.positions.rotary import Rotary
from tests.coming_from.functions import is_close, of_masked_row
from tests.coming_from.layers import in_letters

V, D, H, G, K = 50, 24, 6, 3, 4
LETTERS = {D: 'D', G * K: 'G K', 3 * D: '3 D'}
LLAMA = {
  'vocab_size': V,
  'hidden_size': D,
  'intermediate_size': 20,
  'num_hidden_layers': 1,
  'num_attention_heads': H,
  'num_key_value_heads': G,
  'max_position_embeddings': 64,
  'rms_norm_eps': 1e-6,
  'hidden_act': 'silu',
}
ROPE = {'rope_parameters': {'rope_theta': 500.0, 'rope_type': 'default'}}
IDS_BL = np.array([[7, 3, 9, 11, 4, 8]])
L = IDS_BL.shape[1]
# Positions that begin anew in the middle of the row.
RESTARTS_BL = np.array([[0, 1, 2, 0, 1, 2]])
# Padding before a text of L - 2 tokens.
LEFT_BL = np.arange(L)[None] >= 2
NONE_BL = np.zeros((1, L), bool)


def num_seen(weights_LM):
  """How many keys the last query attends to."""
  return int((np.asarray(weights_LM[-1]) > 0).sum())


class Ours:
  @functools.cached_property
  def model(self):
    return pretrained.model_of(LLAMA | {'model_type': 'llama'})

  @functools.cached_property
  def variables(self):
    module = pretrained.module(self.model, 'vocabulary', 2)
    mask_BL = np.ones(IDS_BL.shape, bool)
    return jax.jit(module.init)(jax.random.key(0), IDS_BL, mask_BL)

  def run(
    self, ids_BL=IDS_BL, mask_BL=None, *, encoder=None, cache=None, **arguments
  ):
    """Logits, and what the layer of attention sows, or the cache.

    Args:
      encoder: options of the encoder.
      cache: of earlier calls, {} before the first; None: there is no cache.
    """
    options = {**self.model.encoder, **(encoder or {})}
    model = self.model.replace(encoder=options)
    module = pretrained.module(model, 'vocabulary', 2)
    mask_BL = np.ones(ids_BL.shape, bool) if mask_BL is None else mask_BL
    if cache is not None:
      apply = functools.partial(module.apply, mutable=['cache'], cache_len=9)
      return jax.jit(apply)({**self.variables, **cache}, ids_BL, mask_BL)
    apply = jax.jit(functools.partial(module.apply, mutable=['intermediates']))
    logits, state = apply(self.variables, ids_BL, mask_BL, **arguments)
    return logits, state['intermediates']['encoder']['block_0']['attention']

  def padding(self):
    _, sown = self.run(mask_BL=LEFT_BL)
    assert not sown['weights'][0][..., :2].any()
    return '`padding_mask_BL`: True at tokens'

  def positions_at_the_left(self):
    positions_BL = np.array([[0, 0, 0, 1, 2, 3]])
    found, _ = self.run(mask_BL=LEFT_BL)
    given, _ = self.run(mask_BL=LEFT_BL, positions_BL=positions_BL)
    assert is_close(found[:, 2:], given[:, 2:])
    return 'begin at the first token'

  def restarts(self):
    _, sown = self.run(positions_BL=RESTARTS_BL)
    assert num_seen(sown['weights'][0][0, 1]) == L
    return '`positions_BL`: move no mask'

  def window(self):
    _, sown = self.run(encoder={'window': (2, 0)})
    assert num_seen(sown['weights'][0][0, 1]) == 3
    return '`window=(left, 0)`'

  @functools.cached_property
  def in_two_calls(self):
    """Logits of the last L - 4 tokens, and the cache."""
    _, cache = self.run(IDS_BL[:, :4], cache={})
    return self.run(IDS_BL[:, 4:], cache=cache)

  def cache(self):
    whole, _ = self.run()
    logits, _ = self.in_two_calls
    assert is_close(logits, whole[:, 4:])
    return "`mutable=['cache'], cache_len=N`"

  def keys(self):
    _, state = self.in_two_calls
    cache = state['cache']['encoder']['block_0']['attention']
    assert cache['keys'].shape == (1, 9, G, K)
    return '(B, N, G, K)'

  def weights(self):
    dropout = Dropout.create(jax.random.key(0), 0.5)
    _, sown = self.run(attention_dropout=dropout)
    assert sown['weights'][0].shape == (1, H, L, L)
    assert is_close(sown['weights'][0].sum(axis=-1), 1)
    return "`mutable=['intermediates']`: sown, before dropout"

  def fully_masked_row(self):
    _, sown = self.run(mask_BL=NONE_BL)
    return of_masked_row(sown['weights'][0][0, 1, -1], L)

  def rotary(self):
    assert self.model.position[0]['rotary'].keys() == {'base'}
    assert turned_with(Rotary(4, 1, True)) == [0, 2]
    assert turned_with(Rotary(4, 1, True, layout='interleaved')) == [0, 1]
    return "j and j + K/2; `layout='interleaved'`: 2j and 2j + 1"

  def base(self):
    model = pretrained.model_of(LLAMA | ROPE | {'model_type': 'llama'})
    assert model.position[0]['rotary']['base'] == 500.0
    return '`rotary(base=...)`'

  def types(self):
    model = self.model.replace(num_token_types=2)
    module = pretrained.module(model, 'vocabulary', 2)
    arguments = IDS_BL, np.ones(IDS_BL.shape, bool)
    variables = jax.jit(module.init)(jax.random.key(0), *arguments)
    apply = jax.jit(module.apply)
    logits = [
      apply(variables, *arguments, token_types_BL=types_BL)
      for types_BL in (np.zeros_like(IDS_BL), np.ones_like(IDS_BL))
    ]
    assert not is_close(*logits)
    return '`token_types_BL`'

  def vectors(self):
    table = self.variables['params']['embed']['embedding']
    found, _ = self.run(embedded_BLD=jnp.take(table, IDS_BL, axis=0))
    assert is_close(found, self.run()[0])
    return '`embedded_BLD`, beside the ids'

  def dropout(self):
    dropout = Dropout.create(jax.random.key(0), 0.5)
    assert not is_close(self.run()[0], self.run(dropout=dropout)[0])
    return '`dropout`, `attention_dropout` of the call'

  def loss(self):
    arguments = inspect.signature(TextClassifier.__call__).parameters
    assert 'labels' not in arguments
    assert self.run()[0].shape == (1, L, V)
    return 'none: logits are returned'

  def kernels(self):
    kernels = self.variables['params']['encoder']['block_0']['attention']
    shape = kernels['key']['kernel'].shape
    return f'`key/kernel` {in_letters(shape, LETTERS)}'


def turned_with(method):
  """Channels of a head of four that have some of the first, once turned."""
  tokens = Tokens(positions=np.array([[1]])).with_defaults(1)
  q_BLHK = np.array([1.0, 0, 0, 0], np.float32)[None, None, None]
  turned, _ = method.rotate({}, q_BLHK, q_BLHK, tokens, tokens)
  return np.flatnonzero(np.asarray(turned)).tolist()


class Transformers:
  def model(self, kind='Llama', attention='eager', **fields):
    import torch
    import transformers

    config = getattr(transformers, f'{kind}Config')(
      **LLAMA | fields, attn_implementation=attention
    )
    torch.manual_seed(0)
    model = getattr(transformers, f'{kind}ForCausalLM')(config)
    with torch.no_grad():
      for parameter in model.parameters():
        parameter *= 10  # or attention would be nearly uniform
    return model.eval()

  def run(self, model=None, ids_BL=IDS_BL, **arguments):
    """What a model returns."""
    import torch

    arguments = {
      name: torch.tensor(x) if isinstance(x, np.ndarray) else x
      for name, x in arguments.items()
    }
    if ids_BL is not None:
      arguments['input_ids'] = torch.tensor(ids_BL)
    with torch.no_grad():
      return (model or self.model())(**arguments)

  def gpt2(self):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
      vocab_size=V,
      n_embd=D,
      n_layer=1,
      n_head=H,
      bos_token_id=0,
      eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config).eval()

  def padding(self):
    mask_BL = LEFT_BL.astype(np.int64)
    text = self.run(ids_BL=IDS_BL[:, 2:]).logits
    # Rotations are relative, so that positions do not count here.
    assert is_close(self.run(attention_mask=mask_BL).logits[:, 2:], text)
    return '`attention_mask`: 1 at tokens'

  def positions_at_the_left(self):
    import torch

    model, mask_BL = self.gpt2(), LEFT_BL.astype(np.int64)
    text = self.run(model, IDS_BL[:, 2:]).logits
    padded = self.run(model, attention_mask=mask_BL).logits[:, 2:]
    assert not is_close(padded, text)
    columns = {'position_ids': np.arange(L)[None]}
    counted = self.run(model, attention_mask=mask_BL, **columns).logits
    assert is_close(padded, counted[:, 2:])
    generated = model.generate(
      torch.tensor(IDS_BL),
      attention_mask=torch.tensor(mask_BL),
      max_new_tokens=1,
      do_sample=False,
      output_scores=True,
      return_dict_in_generate=True,
    )
    assert is_close(generated.scores[0], text[:, -1])
    return 'count padding, too; in `generate`, begin at the first token'

  def restarts(self):
    alone = self.run(ids_BL=IDS_BL[:, 3:]).logits
    splits = set()
    for use_cache in (True, False):
      for mask in ({}, {'attention_mask': np.ones_like(IDS_BL)}):
        logits = self.run(
          position_ids=RESTARTS_BL, use_cache=use_cache, **mask
        ).logits
        if is_close(logits[:, 3:], alone):
          splits.add((use_cache, bool(mask)))
    assert splits == {(False, False)}
    finding = '../findings/position_ids_split_by_use_cache.sh'
    return f'`position_ids`: [may split the row]({finding})'

  def window(self):
    model = self.model('Mistral', sliding_window=3)
    weights = self.run(model, output_attentions=True).attentions[0]
    assert num_seen(weights[0, 1]) == 3
    return '`sliding_window`: left + 1, itself counted'

  def cache(self):
    whole = self.run().logits
    first = self.run(ids_BL=IDS_BL[:, :4], use_cache=True)
    cache = first.past_key_values
    second = self.run(ids_BL=IDS_BL[:, 4:], cache=cache)
    assert is_close(second.logits, whole[:, 4:])
    assert cache.layers[0].keys.shape[2] == L
    return '`cache` (older: `past_key_values`), which grows'

  def keys(self):
    first = self.run(ids_BL=IDS_BL[:, :4], use_cache=True)
    assert first.past_key_values.layers[0].keys.shape == (1, G, 4, K)
    return '(B, G, M, K)'

  def weights(self):
    (weights,) = self.run(output_attentions=True).attentions
    assert weights.shape == (1, H, L, L)
    sdpa = self.model(attention='sdpa')
    assert not self.run(sdpa, output_attentions=True).attentions
    dropping = self.model(attention_dropout=0.5).train()
    (weights,) = self.run(dropping, output_attentions=True).attentions
    assert not is_close(weights.sum(dim=-1), 1)
    return '`output_attentions=True`: of `eager` alone, after dropout'

  def fully_masked_row(self):
    mask_BL = NONE_BL.astype(np.int64)
    outputs = self.run(attention_mask=mask_BL, output_attentions=True)
    row_M = outputs.attentions[0][0, 1, -1].numpy()
    return f'`eager`: {of_masked_row(row_M, L)}'

  def rotary(self):
    import torch

    x = torch.tensor([1.0, 0, 0, 0])[None, None, None]
    cos, sin = torch.full((1, 1, 4), 0.6), torch.full((1, 1, 4), 0.8)
    turned = {}
    for name in ('llama', 'cohere'):
      code = importlib.import_module(
        f'transformers.models.{name}.modeling_{name}'
      )
      found, _ = code.apply_rotary_pos_emb(x, x, cos, sin)
      turned[name] = np.flatnonzero(found.numpy()).tolist()
    assert turned == {'llama': [0, 2], 'cohere': [0, 1]}
    return 'Llama: j and j + K/2; Cohere: 2j and 2j + 1'

  def base(self):
    other = self.run(self.model(**ROPE)).logits
    assert not is_close(other, self.run().logits)
    return "`rope_parameters['rope_theta']`"

  def types(self):
    import transformers

    arguments = inspect.signature(transformers.BertModel.forward).parameters
    assert 'token_type_ids' in arguments
    return '`token_type_ids`'

  def vectors(self):
    embedded = self.model().get_input_embeddings().weight[IDS_BL].detach()
    found = self.run(ids_BL=None, inputs_embeds=embedded).logits
    assert is_close(found, self.run().logits)
    return '`inputs_embeds`, in place of the ids'

  def dropout(self):
    import transformers

    config = transformers.LlamaConfig(**LLAMA)
    made = transformers.LlamaForCausalLM(config)
    assert made.training
    with tempfile.TemporaryDirectory() as folder:
      made.save_pretrained(folder)
      loaded = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert not loaded.training
    return 'in `train()`; `from_pretrained` returns `eval()`'

  def loss(self):
    import torch

    labels_BL = IDS_BL.copy()
    labels_BL[:, 3] = -100
    outputs = self.run(labels=labels_BL)
    losses = torch.nn.functional.cross_entropy(
      outputs.logits[0, :-1], torch.tensor(IDS_BL[0, 1:]), reduction='none'
    )
    counted = torch.tensor(labels_BL[0, 1:] != -100)
    assert is_close(outputs.loss, losses[counted].mean())
    return '`labels`, which causal models shift; -100: none'

  def kernels(self):
    llama = self.model().model.layers[0].self_attn.k_proj.weight.shape
    gpt2 = self.gpt2().transformer.h[0].attn.c_attn.weight.shape
    return (
      f'`k_proj.weight` {in_letters(llama, LETTERS)}; '
      f'GPT-2: `c_attn.weight` {in_letters(gpt2, LETTERS)}'
    )


ROWS = {
  'padding': 'padding',
  'positions, with padding at the left': 'positions_at_the_left',
  'positions that begin anew': 'restarts',
  'window': 'window',
  'cache': 'cache',
  'keys in the cache': 'keys',
  'attention weights': 'weights',
  'a fully masked row': 'fully_masked_row',
  'layout of RoPE: channels of a pair': 'rotary',
  'base of RoPE': 'base',
  'which text of a pair a token is of': 'types',
  'vectors of tokens': 'vectors',
  'dropout': 'dropout',
  'loss': 'loss',
  'a weight (kernel)': 'kernels',
}
COLUMNS = {
  '`selfattn.TextClassifier`': Ours(),
  "transformers' models": Transformers(),
}
