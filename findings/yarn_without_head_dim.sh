#!/usr/bin/env bash
# YaRN needs the field head_dim to be a number, and Mixtral's is null.
#
# transformers 5.24.0, torch 2.13.0. `head_dim: null` means hidden_size over
# num_attention_heads, and default rotations read it so. The scalings yarn and
# longrope read the field itself. MistralConfig fills it in, MixtralConfig does
# not: the same rope parameters make one model, and raise in the other.
#
# Seen: mistral ok, mixtral TypeError
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
from transformers import AutoConfig, AutoModelForCausalLM

seen = []
for kind in ('mistral', 'mixtral'):
  config = AutoConfig.for_model(
    kind, hidden_size=64, num_attention_heads=2, num_key_value_heads=2,
    num_hidden_layers=1, intermediate_size=64, vocab_size=50,
    max_position_embeddings=256, rope_parameters={
      'rope_type': 'yarn', 'rope_theta': 10_000.0, 'factor': 4.0,
      'original_max_position_embeddings': 64})
  try:
    AutoModelForCausalLM.from_config(config)
    seen.append(f'{kind} ok')
  except TypeError:
    seen.append(f'{kind} TypeError')
print(', '.join(seen))
PYTHON
)"
echo "$seen"
[[ "$seen" == 'mistral ok, mixtral TypeError' ]]
