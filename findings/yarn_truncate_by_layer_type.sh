#!/usr/bin/env bash
# YaRN's `truncate` in rope parameters by layer type is not read.
#
# transformers 5.24.0, torch 2.13.0. A config with one set of rope parameters
# has other frequencies with truncate=False than with True. In a config with a
# set for each layer type (as Gemma 3 has), `truncate` stands in that set, but
# is looked for beside the sets: both values give the frequencies of True.
#
# Seen: flat differs True, by layer type differs False
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

yarn = ROPE_INIT_FUNCTIONS['yarn']


def parameters(truncate):
  return {
    'rope_type': 'yarn', 'rope_theta': 10_000.0, 'factor': 4.0,
    'original_max_position_embeddings': 64, 'truncate': truncate,
  }


def flat(truncate):
  config = AutoConfig.for_model(
    'llama', hidden_size=64, num_attention_heads=2,
    rope_parameters=parameters(truncate))
  return yarn(config, None)[0]


def by_layer_type(truncate):
  kind = 'full_attention'
  config = AutoConfig.for_model(
    'gemma3_text', hidden_size=64, num_attention_heads=2, head_dim=32,
    num_hidden_layers=6, rope_parameters={
      kind: parameters(truncate),
      'sliding_attention': {'rope_type': 'default', 'rope_theta': 10_000.0}})
  return yarn(config, None, layer_type=kind)[0]


differs = [not torch.equal(f(True), f(False)) for f in (flat, by_layer_type)]
print(f'flat differs {differs[0]}, by layer type differs {differs[1]}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'flat differs True, by layer type differs False' ]]
