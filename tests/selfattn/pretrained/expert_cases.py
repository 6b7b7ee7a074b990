"""Tiny configurations of architectures with experts; see cases.py."""

GQA = {'num_key_value_heads': 2}
# Of sizes that no dense layer has, by two names of the number of experts.
NARROW = {
  'num_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 12,
  'shared_expert_intermediate_size': 20, **GQA,
}  # fmt: skip
ROUTED = {
  'n_routed_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 12,
  **GQA,
}  # fmt: skip
EXPERTS = {
  'mixtral': ('mixtral', GQA | {'num_local_experts': 4}),
  'mixtral_window': ('mixtral', GQA | {
    'num_local_experts': 4, 'sliding_window': 4, 'head_dim': 6,
    'num_experts_per_tok': 1, 'tie_word_embeddings': True,
  }),
  'qwen2_moe': ('qwen2_moe', NARROW | {'use_sliding_window': False}),
  'qwen3_moe': ('qwen3_moe', NARROW),
  'qwen3_moe_window': ('qwen3_moe', NARROW | {
    'use_sliding_window': True, 'sliding_window': 4, 'head_dim': 6,
    'decoder_sparse_step': 2, 'norm_topk_prob': True, 'attention_bias': True,
  }),
  'olmoe': ('olmoe', NARROW),
  'olmoe_biases': ('olmoe', NARROW | {
    'num_key_value_heads': 4, 'norm_topk_prob': True, 'attention_bias': True,
    'tie_word_embeddings': True,
  }),
  'gpt_oss': ('gpt_oss', GQA | {
    'num_local_experts': 4, 'num_experts_per_tok': 2, 'head_dim': 8,
    'sliding_window': 4,
  }),
  'gpt_oss_plain': ('gpt_oss', GQA | {
    'num_local_experts': 4, 'num_experts_per_tok': 4, 'head_dim': 6,
    'layer_types': ['full_attention'] * 3, 'attention_bias': False,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 500.0},
    'tie_word_embeddings': True,
  }),
  'flint': ('flint', NARROW | {
    'head_dim': 8, 'sliding_window': 4, 'num_hidden_layers': 4,
  }),
  'flint_biases': ('flint', NARROW | {
    'head_dim': 6, 'sliding_window': 4, 'num_hidden_layers': 4,
    'mlp_only_layers': [3], 'attention_bias': True, 'norm_topk_prob': False,
    'layer_types': ['sliding_attention'] * 2 + ['full_attention'] * 2,
  }),
  'laguna': ('laguna', NARROW | {'head_dim': 8}),
  'laguna_window': ('laguna', NARROW | {
    'head_dim': 8, 'gating': 'per-channel', 'sliding_window': 4,
    'layer_types': ['full_attention', 'sliding_attention', 'full_attention'],
    'mlp_layer_types': ['sparse', 'dense', 'sparse'],
    'moe_routed_scaling_factor': 2.5,
  }),
  'kolibri1': ('kolibri1', NARROW | {
    'head_dim': 8, 'sliding_window': 4, 'num_hidden_layers': 5,
  }),
  'kolibri1_full': ('kolibri1', NARROW | {
    'head_dim': 6, 'sliding_window': 4, 'norm_topk_prob': True,
    'layer_types': ['full_attention'] * 3,
  }),
  'solar_open': ('solar_open', ROUTED | {'head_dim': 8}),
  'solar_open_scaled': ('solar_open', ROUTED | {
    'head_dim': 6, 'routed_scaling_factor': 2.5, 'norm_topk_prob': False,
    'n_shared_experts': 2, 'attention_bias': True,
  }),
  'glm4_moe': ('glm4_moe', ROUTED),
  'glm4_moe_normalised': ('glm4_moe', ROUTED | {
    'head_dim': 12, 'use_qk_norm': True, 'attention_bias': True,
    'first_k_dense_replace': 2, 'routed_scaling_factor': 1.5,
    'n_shared_experts': 2, 'partial_rotary_factor': 1.0,
  }),
  'granitemoe': ('granitemoe', GQA | {'num_local_experts': 4}),
  'granitemoe_scaled': ('granitemoe', GQA | {
    'num_local_experts': 4, 'num_experts_per_tok': 3,
    'embedding_multiplier': 3.0, 'attention_multiplier': 0.2,
    'residual_multiplier': 0.5, 'logits_scaling': 2.0, 'attention_bias': True,
  }),
}  # fmt: skip
# Architectures that transformers has no head for texts of.
TEXTLESS = {
  *('flint', 'glm4_moe', 'granitemoe', 'kolibri1', 'laguna'),
  *('olmoe', 'solar_open'),
}
# Cases whose sinks SDPA does not have.
EAGER_ALONE = ('flint', 'flint_biases', 'gpt_oss', 'gpt_oss_plain')
