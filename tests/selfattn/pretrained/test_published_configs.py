"""What is read from config.json, in the words of files that are published."""

import importlib.util

import pytest

from selfattn import pretrained

SIZES = {
  'vocab_size': 100,
  'hidden_size': 64,
  'intermediate_size': 96,
  'num_hidden_layers': 4,
  'num_attention_heads': 4,
}
LLAMA_3 = {
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 8192,
  'rope_type': 'llama3',
}
YARN = {
  'type': 'yarn',
  'factor': 4.0,
  'original_max_position_embeddings': 32768,
}
LONG = {'type': 'longrope', 'long_factor': [1.5] * 8, 'short_factor': [1.1] * 8}
GPT = {'vocab_size': 100, 'n_embd': 64, 'n_layer': 4, 'n_head': 4}
FALCON = {name: SIZES[name] for name in SIZES if name != 'intermediate_size'}
# Fields as published files have them, older ones with the older names.
HUB = {
  'llama_1': ('llama', SIZES | {'rms_norm_eps': 1e-6, 'pad_token_id': -1}),
  'llama_3': ('llama', SIZES | {
    'rope_theta': 5e5, 'num_key_value_heads': 2, 'rope_scaling': LLAMA_3,
    'torch_dtype': 'bfloat16', 'pretraining_tp': 1,
  }),
  'llama_linear': ('llama', SIZES | {
    'max_position_embeddings': 4096,
    'rope_scaling': {'type': 'linear', 'factor': 8.0},
  }),
  'qwen2_yarn': ('qwen2', SIZES | {
    'rope_theta': 1e6, 'max_position_embeddings': 32768, 'rope_scaling': YARN,
    'use_sliding_window': False, 'sliding_window': 131072,
  }),
  'qwen2_saved_again': ('qwen2', SIZES | {
    'max_position_embeddings': 32768, 'rope_scaling': YARN,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6},
  }),
  'mistral_1': ('mistral', SIZES | {
    'num_key_value_heads': 2, 'sliding_window': 8,
  }),
  'mistral_3': ('mistral', SIZES | {
    'sliding_window': None, 'rope_theta': 1e6, 'head_dim': None,
  }),
  'gemma_1': ('gemma', SIZES | {
    'head_dim': 32, 'hidden_act': 'gelu', 'hidden_activation': None,
  }),
  'gemma_2': ('gemma2', SIZES | {
    'head_dim': 32, 'sliding_window': 8, 'query_pre_attn_scalar': 224,
    'hidden_act': 'gelu_pytorch_tanh', 'cache_implementation': 'hybrid',
  }),
  'gemma_3': ('gemma3_text', SIZES | {
    'head_dim': 32, 'rope_local_base_freq': 10000, 'rope_theta': 1000000,
    'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'},
    'sliding_window': 8, 'sliding_window_pattern': 2,
  }),
  'phi_3': ('phi3', SIZES | {
    'sliding_window': 2047, 'original_max_position_embeddings': 4096,
    'max_position_embeddings': 131072, 'rope_scaling': LONG,
  }),
  'phi_2': ('phi', SIZES | {
    'partial_rotary_factor': 0.4, 'resid_pdrop': 0.1,
  }),
  'neox': ('gpt_neox', SIZES | {'rotary_pct': 0.5, 'rotary_emb_base': 500}),
  'gpt2': ('gpt2', GPT | {'n_ctx': 128, 'n_positions': 128, 'n_inner': None}),
  'gptj': ('gptj', GPT | {'rotary_dim': 8, 'tie_word_embeddings': False}),
  'bloom': ('bloom', {
    'vocab_size': 100, 'n_embed': 64, 'n_layer': 4, 'num_attention_heads': 4,
  }),
  'mpt': ('mpt', {
    'd_model': 64, 'n_heads': 4, 'n_layers': 4, 'vocab_size': 100,
    'attn_config': {'alibi': True, 'attn_impl': 'torch', 'clip_qkv': None},
  }),
  'falcon': ('falcon', FALCON | {'multi_query': True, 'parallel_attn': True}),
  'falcon_2': ('falcon', FALCON | {
    'num_kv_heads': 2, 'new_decoder_architecture': True,
    'num_ln_in_parallel_attn': 1, 'ffn_hidden_size': 128, 'rope_theta': 5e5,
  }),
  'olmo_3': ('olmo3', SIZES | {
    'rope_theta': 500000, 'sliding_window': 8, 'max_position_embeddings': 65536,
    'rope_scaling': YARN, 'layer_types': ['sliding_attention'] * 3
    + ['full_attention'],
  }),
  'modernbert': ('modernbert', SIZES | {
    'global_rope_theta': 160000.0, 'local_rope_theta': 10000.0,
    'rope_theta': 7.0, 'norm_eps': 1e-05, 'layer_norm_eps': 1e-3,
  }),
  'distilbert': ('distilbert', {
    'vocab_size': 100, 'dim': 64, 'hidden_dim': 96, 'n_layers': 4,
    'n_heads': 4, 'activation': 'gelu', 'dropout': 0.1,
  }),
}  # fmt: skip


@pytest.mark.oracle
@pytest.mark.skipif(
  importlib.util.find_spec('transformers') is None,
  reason='transformers is not installed',
)
@pytest.mark.parametrize('name', HUB)
def test_transformers_reads_the_same_from_a_published_config(name):
  import transformers

  kind, fields = HUB[name]
  theirs = transformers.AutoConfig.for_model(kind, **fields).to_dict()
  ours = pretrained.model_of({'model_type': kind, **fields})
  assert ours == pretrained.model_of(theirs)


def rotations(kind, **fields):
  model = pretrained.model_of({'model_type': kind, **SIZES, **fields})
  return [of_layer['rotary'] for of_layer in model.position]


def test_a_scaling_that_was_added_to_a_newer_file_is_taken():
  """As transformers: `rope_scaling` stands for all that was there before."""
  known = {'rope_type': 'default', 'rope_theta': 1e6}
  scaling = {'rope_type': 'linear', 'factor': 8.0}
  (found,) = rotations('llama', rope_parameters=known, rope_scaling=scaling)
  assert found == {'base': 1e4, 'scaling': 'linear', 'factor': 8.0}


def test_a_share_of_channels_is_for_those_that_have_the_field():
  (llama,) = rotations('llama', partial_rotary_factor=0.5)
  assert 'fraction' not in llama
  (phi,) = rotations('phi3', partial_rotary_factor=0.5)
  assert phi['fraction'] == 0.5


def test_windows_of_mistral_are_in_the_layers_of_their_kind():
  kinds = ['full_attention', 'sliding_attention'] * 2
  config = {'model_type': 'mistral', **SIZES, 'sliding_window': 8}
  model = pretrained.model_of(config | {'layer_types': kinds})
  assert model.encoder['window'] == ((-1, -1), (7, 0))


def test_a_rotation_by_kind_of_layer_leaves_another_base_alone():
  want = rotations('modernbert')
  assert rotations('modernbert', rope_theta=7.0) == want


@pytest.mark.parametrize(
  ('kind', 'fields', 'line'),
  [
    ('modernbert', {'classifier_pooling': 'max'}, "'max' is not supported"),
    ('eurobert', {'classifier_pooling': 'sum'}, "'sum' is not supported"),
    ('mistral', {'layer_types': ['chunked'] * 4}, 'layer_types = .* must be 4'),
    ('gemma2', {'layer_types': ['full_attention']}, 'layer_types = .* be 4'),
    ('roberta', {'type_vocab_size': 2}, 'type_vocab_size = 2 is not supported'),
  ],
)
def test_a_field_that_is_not_supported_is_one_line(kind, fields, line):
  with pytest.raises(ValueError, match=line):
    pretrained.model_of({'model_type': kind, **SIZES, **fields})
