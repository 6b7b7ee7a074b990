"""Tiny configurations of every architecture, with the options that it has.

A key is the name of a case, and its value model_type and fields of config.json
beside those of `oracle.TINY`.
"""

GQA = {'num_key_value_heads': 2}
CASES = {
  'bert': ('bert', {}),
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
}  # fmt: skip
# Cases that are compared with the eager attention of transformers alone.
EAGER_ALONE: dict[str, str] = {}
# Architectures whose positions count padding, unless they are given.
COUNTS_PADDING: set[str] = {'bert'}
MASKED: set[str] = {'bert'}

TOKENS = [(case, 'masked' if case in MASKED else 'causal') for case in CASES]
TEXTS = [(case, 'text') for case in CASES]
