#!/usr/bin/env bash
# hidden_act "gelu" is another function in Gemma 1 than in other models.
#
# transformers 5.24.0, torch 2.13.0. The name means the exact GELU, by the error
# function, in config.json of nearly all models. GemmaMLP replaces it by the
# approximation by tanh, with which the checkpoints were trained, and so does
# the `gated-gelu` of T5. Gemma 2 reads the field hidden_activation instead.
#
# Seen: gemma tanh, llama erf, t5 tanh
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModel, T5Config, T5EncoderModel

x = torch.linspace(-4, 4, 201)
exact = torch.nn.functional.gelu(x)


def kind(function):
  return 'erf' if torch.equal(function(x), exact) else 'tanh'


seen = []
for name in ('gemma', 'llama'):
  config = AutoConfig.for_model(
    name, vocab_size=50, hidden_size=32, intermediate_size=16,
    num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, hidden_act='gelu', pad_token_id=0)
  model = AutoModel.from_config(config)
  seen.append(f'{name} {kind(model.layers[0].mlp.act_fn)}')
config = T5Config(
  vocab_size=50, d_model=32, d_ff=16, d_kv=8, num_layers=1, num_heads=4,
  feed_forward_proj='gated-gelu')
layer = T5EncoderModel(config).encoder.block[0].layer[1].DenseReluDense
seen.append(f't5 {kind(layer.act)}')
print(', '.join(seen))
PYTHON
)"
echo "$seen"
[[ "$seen" == 'gemma tanh, llama erf, t5 tanh' ]]
