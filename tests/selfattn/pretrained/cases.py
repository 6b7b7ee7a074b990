"""Tiny configurations of every architecture, with the options that it has.

A key is the name of a case, and its value model_type and fields of config.json
beside those of `oracle.TINY`.
"""

from tests.selfattn.pretrained import expert_cases

GQA = {'num_key_value_heads': 2}
CASES = {
  'llama': ('llama', GQA),
  'llama_biases': ('llama', {
    'attention_bias': True, 'mlp_bias': True, 'head_dim': 6,
    'tie_word_embeddings': True,
    'rope_parameters': {
      'rope_type': 'llama3', 'rope_theta': 5000.0, 'factor': 4.0,
      'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
      'original_max_position_embeddings': 8,
    },
  }),
  'mistral': ('mistral', GQA | {'sliding_window': None}),
  'mistral_window': ('mistral', GQA | {'sliding_window': 4, 'head_dim': 6}),
  'ministral': ('ministral', GQA | {
    'head_dim': 8, 'sliding_window': 4,
    'layer_types': ['full_attention', 'sliding_attention', 'full_attention'],
  }),
  'qwen2': ('qwen2', GQA),
  'qwen2_window': ('qwen2', GQA | {
    'use_sliding_window': True, 'sliding_window': 4, 'max_window_layers': 1,
    'tie_word_embeddings': True,
  }),
  'qwen3': ('qwen3', GQA | {'head_dim': 6}),
  'qwen3_window': ('qwen3', GQA | {
    'use_sliding_window': True, 'sliding_window': 4, 'max_window_layers': 1,
    'attention_bias': True, 'tie_word_embeddings': True,
  }),
  'gemma': ('gemma', GQA | {'head_dim': 6}),
  'gemma_gelu': ('gemma', GQA | {'hidden_act': 'gelu', 'head_dim': 8,
                                 'attention_bias': True}),
  'gemma2': ('gemma2', GQA | {'head_dim': 6, 'sliding_window': 4}),
  'gemma2_unbounded': ('gemma2', GQA | {
    'head_dim': 6, 'sliding_window': 4, 'attn_logit_softcapping': None,
    'final_logit_softcapping': None, 'query_pre_attn_scalar': 7,
  }),
  'gemma3_text': ('gemma3_text', GQA | {'head_dim': 6, 'sliding_window': 4}),
  'gemma3_scaled': ('gemma3_text', GQA | {
    'head_dim': 6, 'sliding_window': 4, 'final_logit_softcapping': 5.0,
    'num_hidden_layers': 4, 'sliding_window_pattern': 2, 'rope_theta': 500.0,
    'rope_local_base_freq': 100.0,
    'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
  }),
  'gemma3_both_sides': ('gemma3_text', GQA | {
    'head_dim': 6, 'sliding_window': 6, 'use_bidirectional_attention': True,
    'sliding_window_pattern': 2,
  }),
  'olmo': ('olmo', GQA),
  'olmo_clipped': ('olmo', GQA | {'clip_qkv': 0.7, 'attention_bias': True,
                                  'tie_word_embeddings': True}),
  'olmo2': ('olmo2', GQA | {'attention_bias': True}),
  'olmo3': ('olmo3', GQA | {'sliding_window': 4, 'num_hidden_layers': 4}),
  'olmo3_scaled': ('olmo3', GQA | {
    'sliding_window': 4, 'num_hidden_layers': 4, 'attention_bias': True,
    'rope_theta': 5e5, 'rope_scaling': {
      'rope_type': 'yarn', 'factor': 4.0, 'beta_fast': 32.0, 'beta_slow': 1.0,
      'original_max_position_embeddings': 16, 'attention_factor': 1.2,
    },
  }),
  'exaone4': ('exaone4', GQA | {
    'sliding_window': None, 'sliding_window_pattern': None,
    'layer_types': ['full_attention'] * 3,
  }),
  'exaone4_window': ('exaone4', GQA | {
    'sliding_window': 4, 'num_hidden_layers': 4, 'head_dim': 6,
    'tie_word_embeddings': True,
  }),
  'smollm3': ('smollm3', GQA | {'num_hidden_layers': 4}),
  'smollm3_window': ('smollm3', GQA | {
    'no_rope_layers': [1, 0, 1], 'use_sliding_window': True,
    'sliding_window': 4, 'attention_bias': True, 'mlp_bias': True,
    'tie_word_embeddings': False,
  }),
  'stablelm': ('stablelm', GQA),
  'stablelm_parallel': ('stablelm', GQA | {
    'use_parallel_residual': True, 'qk_layernorm': True, 'use_qkv_bias': True,
    'tie_word_embeddings': True, 'partial_rotary_factor': 0.5,
  }),
  'starcoder2': ('starcoder2', GQA),
  'starcoder2_window': ('starcoder2', GQA | {
    'sliding_window': 4, 'use_bias': False, 'tie_word_embeddings': False,
    'norm_epsilon': 1e-3,
  }),
  'cohere': ('cohere', GQA),
  'cohere_normed': ('cohere', GQA | {
    'use_qk_norm': True, 'attention_bias': True, 'logit_scale': 0.5,
    'tie_word_embeddings': False,
  }),
  'cohere2': ('cohere2', GQA | {'num_hidden_layers': 4, 'sliding_window': 4}),
  'cohere2_pattern': ('cohere2', GQA | {
    'sliding_window': 4, 'sliding_window_pattern': 2, 'attention_bias': True,
    'rope_theta': 5e4,
  }),
  'gpt2': ('gpt2', {}),
  'gpt2_unscaled': ('gpt2', {
    'n_inner': 24, 'activation_function': 'relu', 'scale_attn_weights': False,
    'tie_word_embeddings': False, 'layer_norm_epsilon': 1e-3,
  }),
  'gpt_bigcode': ('gpt_bigcode', {}),
  'gpt_bigcode_heads': ('gpt_bigcode', {'multi_query': False, 'n_inner': 24}),
  'gptj': ('gptj', {'rotary_dim': 4}),
  'gptj_tied': ('gptj', {'rotary_dim': 8, 'n_inner': 24,
                         'tie_word_embeddings': True}),
  'gpt_neo': ('gpt_neo', {
    'attention_types': [[['global', 'local', 'global'], 1]],
    'window_size': 4,
  }),
  'gpt_neo_global': ('gpt_neo', {
    'attention_types': [[['global'], 3]], 'intermediate_size': 24,
    'tie_word_embeddings': False,
  }),
  'gpt_neox': ('gpt_neox', {}),
  'gpt_neox_pre': ('gpt_neox', {
    'use_parallel_residual': False, 'attention_bias': False,
    'rotary_pct': 0.5, 'rotary_emb_base': 500, 'hidden_act': 'gelu_new',
    'tie_word_embeddings': True,
  }),
  'phi': ('phi', {}),
  'phi_normalised': ('phi', GQA | {
    'qk_layernorm': True, 'partial_rotary_factor': 0.25,
    'tie_word_embeddings': True,
  }),
  'opt': ('opt', {'ffn_dim': 40}),
  'opt_post': ('opt', {
    'ffn_dim': 40, 'do_layer_norm_before': False, 'enable_bias': False,
    'activation_function': 'gelu', 'tie_word_embeddings': False,
  }),
  'opt_plain': ('opt', {
    'ffn_dim': 40, 'layer_norm_elementwise_affine': False,
    '_remove_final_layer_norm': True,
  }),
  'bloom': ('bloom', {}),
  'bloom_heads': ('bloom', {'n_head': 6, 'hidden_size': 24}),
  'mpt': ('mpt', {}),
  'mpt_clipped': ('mpt', {
    'n_heads': 6, 'd_model': 24,
    'attn_config': {'clip_qkv': 0.7, 'softmax_scale': 0.25},
  }),
  'falcon': ('falcon', {}),
  'falcon_new': ('falcon', {
    'new_decoder_architecture': True, 'num_kv_heads': 2, 'bias': True,
    'ffn_hidden_size': 24, 'tie_word_embeddings': False,
  }),
  'falcon_one_norm': ('falcon', {
    'new_decoder_architecture': True, 'num_kv_heads': 2,
    'num_ln_in_parallel_attn': 1, 'rope_theta': 500.0,
  }),
  'falcon_pre': ('falcon', {
    'multi_query': False, 'parallel_attn': False, 'bias': True,
  }),
  'falcon_alibi': ('falcon', {
    'multi_query': False, 'parallel_attn': False, 'bias': True, 'alibi': True,
  }),
  'granite': ('granite', GQA),
  'granite_scaled': ('granite', GQA | {
    'embedding_multiplier': 3.0, 'attention_multiplier': 0.2,
    'residual_multiplier': 0.4, 'logits_scaling': 2.0, 'attention_bias': True,
    'mlp_bias': True, 'tie_word_embeddings': True,
  }),
  'granite_swa': ('granite_swa', GQA | {'sliding_window': 4}),
  'granite_swa_bases': ('granite_swa', GQA | {
    'sliding_window': 4, 'layer_rope_theta': [0, 100.0, 1000.0],
    'attention_multiplier': 0.3, 'layer_types': [
      'sliding_attention', 'full_attention', 'sliding_attention',
    ],
  }),
  'glm': ('glm', GQA | {'head_dim': 8}),
  'glm_whole': ('glm', GQA | {
    'head_dim': 12, 'attention_bias': False, 'partial_rotary_factor': 1.0,
    'tie_word_embeddings': True,
  }),
  'glm4': ('glm4', GQA | {'head_dim': 8}),
  'nemotron': ('nemotron', GQA),
  'nemotron_biases': ('nemotron', GQA | {
    'attention_bias': True, 'mlp_bias': True, 'head_dim': 12,
    'partial_rotary_factor': 1.0, 'tie_word_embeddings': True,
  }),
  'seed_oss': ('seed_oss', GQA | {'head_dim': 8}),
  'seed_oss_biases': ('seed_oss', GQA | {
    'head_dim': 6, 'attention_out_bias': True, 'mlp_bias': True,
    'tie_word_embeddings': True,
  }),
  'apertus': ('apertus', GQA),
  'apertus_biases': ('apertus', GQA | {
    'attention_bias': True, 'tie_word_embeddings': True, 'rope_theta': 500.0,
    'rope_scaling': {'rope_type': 'linear', 'factor': 2.0},
  }),
  'arcee': ('arcee', GQA),
  'arcee_biases': ('arcee', GQA | {
    'attention_bias': True, 'mlp_bias': True, 'head_dim': 6,
    'tie_word_embeddings': True,
  }),
  'ernie4_5': ('ernie4_5', GQA | {'head_dim': 8}),
  'ernie4_5_biases': ('ernie4_5', GQA | {
    'head_dim': 6, 'use_bias': True, 'tie_word_embeddings': False,
  }),
  'nanochat': ('nanochat', GQA),
  'nanochat_unbounded': ('nanochat', GQA | {
    'final_logit_softcapping': None, 'attention_bias': True,
    'rms_norm_eps': 1e-2,
  }),
  'phi3': ('phi3', GQA),
  'phi3_long': ('phi3', GQA | {
    'sliding_window': 20, 'tie_word_embeddings': True,
    'partial_rotary_factor': 0.5, 'original_max_position_embeddings': 4,
    'rope_scaling': {'type': 'longrope', 'long_factor': [1.5, 4.0],
                     'short_factor': [1.0, 1.25]},
  }),
  'phi3_short': ('phi3', GQA | {
    'original_max_position_embeddings': 40,
    'rope_scaling': {'type': 'longrope', 'long_factor': [1.5, 4.0, 5.0, 6.0],
                     'short_factor': [1.0, 1.25, 1.5, 2.0]},
  }),
}  # fmt: skip
# Encoders: tokens attend to both sides, and masked tokens are predicted.
PAD_1 = {'pad_token_id': 1, 'type_vocab_size': 1}
ENCODERS = {
  'bert': ('bert', {}),
  'bert_relu': ('bert', {'hidden_act': 'relu', 'layer_norm_eps': 1e-3,
                         'type_vocab_size': 3, 'pad_token_id': 4}),
  'roberta': ('roberta', PAD_1),
  'roberta_gelu_new': ('roberta', PAD_1 | {'hidden_act': 'gelu_new',
                                           'pad_token_id': 0}),
  'bert_untied': ('bert', {'tie_word_embeddings': False}),
  'roberta_untied': ('roberta', PAD_1 | {'tie_word_embeddings': False}),
  'xlm-roberta': ('xlm-roberta', PAD_1),
  'camembert': ('camembert', PAD_1),
  'distilbert': ('distilbert', {'hidden_dim': 40}),
  'distilbert_sinusoids': ('distilbert', {
    'hidden_dim': 24, 'sinusoidal_pos_embds': True, 'activation': 'relu',
  }),
  'electra': ('electra', {'embedding_size': 12}),
  'electra_wide': ('electra', {'embedding_size': 32, 'hidden_act': 'relu'}),
  'mpnet': ('mpnet', PAD_1),
  'albert': ('albert', {'embedding_size': 12}),
  'albert_wide': ('albert', {'embedding_size': 32, 'hidden_act': 'relu'}),
  'esm': ('esm', PAD_1),
  'esm_2': ('esm', {
    'pad_token_id': 1, 'position_embedding_type': 'rotary',
    'token_dropout': True, 'mask_token_id': 15, 'emb_layer_norm_before': True,
    'layer_norm_eps': 1e-5,
  }),
  'roformer': ('roformer', {}),
  'roformer_narrow': ('roformer', {'embedding_size': 12,
                                   'hidden_act': 'relu'}),
  'modernbert': ('modernbert', {'local_attention': 6}),
  'modernbert_biases': ('modernbert', {
    'local_attention': 4, 'attention_bias': True, 'mlp_bias': True,
    'norm_bias': True, 'classifier_bias': True, 'decoder_bias': False,
    'tie_word_embeddings': False, 'classifier_pooling': 'mean',
    'classifier_activation': 'relu', 'hidden_activation': 'silu',
    'rope_parameters': {
      'full_attention': {'rope_type': 'linear', 'factor': 2.0,
                         'rope_theta': 500.0},
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 50.0},
    },
    'layer_types': ['sliding_attention', 'sliding_attention',
                    'full_attention'],
  }),
  'nomic_bert': ('nomic_bert', {}),
  'nomic_bert_wide': ('nomic_bert', {
    'head_dim': 6, 'hidden_act': 'gelu',
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 100.0},
  }),
  'eurobert': ('eurobert', GQA),
  'eurobert_bos': ('eurobert', {
    'attention_bias': True, 'mlp_bias': True, 'tie_word_embeddings': True,
    'classifier_pooling': 'bos',
  }),
  'deberta': ('deberta', {'relative_attention': True,
                          'pos_att_type': 'c2p|p2c',
                          'position_biased_input': False}),
  'deberta_short': ('deberta', {
    'relative_attention': True, 'pos_att_type': ['p2c'], 'type_vocab_size': 2,
    'max_relative_positions': 4, 'pooler_hidden_act': 'tanh',
  }),
  'deberta-v2': ('deberta-v2', {}),
  'deberta_v3': ('deberta-v2', {
    'relative_attention': True, 'pos_att_type': 'p2c|c2p',
    'position_biased_input': False, 'position_buckets': 6,
    'share_att_key': True, 'norm_rel_ebd': 'layer_norm', 'legacy': False,
  }),
  'deberta_v2_unshared': ('deberta-v2', {
    'relative_attention': True, 'pos_att_type': ['c2p', 'p2c'],
    'max_relative_positions': 5, 'position_buckets': 4, 'hidden_act': 'relu',
  }),
  'deberta_v2_c2p': ('deberta-v2', {
    'relative_attention': True, 'pos_att_type': ['c2p'], 'type_vocab_size': 2,
    'max_relative_positions': 3, 'norm_rel_ebd': 'layer_norm',
    'position_biased_input': False,
  }),
}  # fmt: skip
T5 = {'d_kv': 8, 'd_ff': 40}
# Without a head, they are the following classes.
HEADLESS = {
  't5': ('t5', T5),
  't5_gated': ('t5', T5 | {'feed_forward_proj': 'gated-gelu', 'd_kv': 6}),
  'mt5': (
    'mt5',
    T5
    | {
      'relative_attention_num_buckets': 8,
      'relative_attention_max_distance': 6,
    },
  ),
  'umt5': ('umt5', T5),
  'umt5_silu': ('umt5', T5 | {'feed_forward_proj': 'gated-silu'}),
}
CASES |= ENCODERS | HEADLESS
CASES |= expert_cases.EXPERTS
# Cases that are compared with the eager attention of transformers alone.
EAGER_ALONE: dict[str, str] = {
  case: 'it has eager attention alone'
  for case in ENCODERS
  if case.startswith('deberta')
} | {
  case: 'transformers has no SDPA for it'
  for case in (
    *('gemma2', 'gemma2_unbounded', 'gpt_neo', 'gpt_neo_global'),
    *('bloom', 'bloom_heads', 'mpt', 'mpt_clipped', 'mpnet'),
    *('roformer', 'roformer_narrow'),
    *('granite_swa', 'granite_swa_bases', *expert_cases.EAGER_ALONE),
  )
}
# Cases that are compared with its SDPA alone.
SDPA_ALONE: dict[str, str] = {
  'falcon_alibi': 'eager attention of transformers adds the bias twice',
}
# Architectures whose positions count padding, unless they are given.
COUNTS_PADDING: set[str] = (
  {
    case
    for case in (*ENCODERS, *HEADLESS)
    if case.startswith(('albert', 'bert', 'dist', 'electra'))
  }
  | {'deberta_short', 'deberta-v2', 'deberta_v2_unshared'}
  | {
    *('gpt2', 'gpt2_unscaled', 'gpt_bigcode', 'gpt_bigcode_heads'),
    *('gpt_neo', 'gpt_neo_global'),
  }
)
MASKED: set[str] = {*ENCODERS}
# Architectures that transformers has no head for texts of.
_TEXTLESS_KINDS = {
  *('apertus', 'cohere', 'cohere2', 'ernie4_5', 'granite'),
  *('granite_swa', 'nanochat', *expert_cases.TEXTLESS),
}
TEXTLESS: set[str] = {*HEADLESS} | {
  case for case, (kind, _) in CASES.items() if kind in _TEXTLESS_KINDS
}
# Those that no text is generated with.
TOKENLESS: set[str] = {*HEADLESS, 'gemma3_both_sides'}

TOKENS = [
  (case, 'masked' if case in MASKED else 'causal')
  for case in CASES
  if case not in TOKENLESS
]
TEXTS = [(case, 'text') for case in CASES if case not in TEXTLESS]
# Architectures that transformers has a head for words of. ModernBERT's has more
# layers, and around T5's all names differ: they are refused.
_WORD_KINDS = {
  *('albert', 'apertus', 'arcee', 'bert', 'bloom', 'camembert', 'deberta'),
  *('deberta-v2', 'distilbert', 'electra', 'esm', 'eurobert', 'exaone4'),
  *('falcon', 'gemma', 'gemma2', 'glm', 'glm4', 'gpt2', 'gpt_bigcode'),
  *('gpt_neo', 'gpt_neox', 'gpt_oss', 'llama', 'ministral', 'mistral'),
  *('mixtral', 'mpnet', 'mpt', 'nemotron', 'nomic_bert', 'phi', 'phi3'),
  *('qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe', 'roberta', 'roformer'),
  *('seed_oss', 'smollm3', 'stablelm', 'starcoder2'),
  'xlm-roberta',
}
# The first case of each.
_OF_KINDS = {kind: case for case, (kind, _) in reversed(CASES.items())}
WORDS = [(_OF_KINDS[kind], 'words') for kind in sorted(_WORD_KINDS)]
VECTORS = [(case, 'eager') for case in (*ENCODERS, *HEADLESS)]
VECTORS += [(case, 'sdpa') for case in HEADLESS]
