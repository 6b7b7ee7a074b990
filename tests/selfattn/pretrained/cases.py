"""Tiny configurations of every architecture, with the options that it has.

A key is the name of a case, and its value model_type and fields of config.json
beside those of `oracle.TINY`.
"""

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
}  # fmt: skip
# Encoders: tokens attend to both sides, and masked tokens are predicted.
PAD_1 = {'pad_token_id': 1}
ENCODERS = {
  'bert': ('bert', {}),
  'bert_relu': ('bert', {'hidden_act': 'relu', 'layer_norm_eps': 1e-3,
                         'type_vocab_size': 3, 'pad_token_id': 4}),
  'ernie': ('ernie', {}),
  'megatron-bert': ('megatron-bert', {}),
  'roberta': ('roberta', PAD_1),
  'roberta_one_type': ('roberta', {'type_vocab_size': 1,
                                   'hidden_act': 'gelu_new'}),
  'xlm-roberta': ('xlm-roberta', PAD_1),
  'camembert': ('camembert', PAD_1),
  'data2vec-text': ('data2vec-text', PAD_1),
  'roberta-prelayernorm': ('roberta-prelayernorm', PAD_1),
  'xlm-roberta-xl': ('xlm-roberta-xl', PAD_1),
  'distilbert': ('distilbert', {'hidden_dim': 40}),
  'distilbert_sinusoids': ('distilbert', {
    'hidden_dim': 24, 'sinusoidal_pos_embds': True, 'activation': 'relu',
  }),
  'electra': ('electra', {'embedding_size': 12}),
  'electra_wide': ('electra', {'embedding_size': 32, 'hidden_act': 'relu'}),
  'mpnet': ('mpnet', PAD_1),
  'albert': ('albert', {'embedding_size': 12}),
  'albert_wide': ('albert', {'embedding_size': 32, 'hidden_act': 'relu'}),
  'roformer': ('roformer', {}),
  'roformer_narrow': ('roformer', {'embedding_size': 12,
                                   'hidden_act': 'relu'}),
}  # fmt: skip
# Without a head, they are the following classes.
HEADLESS = {
  'bert-generation': ('bert-generation', {}),
}
CASES |= ENCODERS | HEADLESS
# Cases that are compared with the eager attention of transformers alone.
EAGER_ALONE: dict[str, str] = {}
# Architectures whose positions count padding, unless they are given.
COUNTS_PADDING: set[str] = {
  case
  for case in (*ENCODERS, *HEADLESS)
  if case.startswith(('albert', 'bert', 'dist', 'electra', 'ernie', 'mega'))
}
MASKED: set[str] = {*ENCODERS}
TEXTLESS: set[str] = {*HEADLESS}

TOKENS = [
  (case, 'masked' if case in MASKED else 'causal')
  for case in CASES
  if case not in HEADLESS
]
TEXTS = [(case, 'text') for case in CASES if case not in TEXTLESS]
VECTORS = [(case, 'none') for case in (*ENCODERS, *HEADLESS)]
