#!/usr/bin/env bash
# Dynamic NTK gives a text other logits after a longer one.
#
# transformers 5.24.0, torch 2.13.0. With rope_type 'dynamic', frequencies
# depend on the length of the text. The module keeps those of the longest text
# that it has seen, and takes the first ones again only after a text below
# max_position_embeddings.
#
# Seen: after a longer text differs True, after a short one too differs False
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
  vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
  num_attention_heads=2, max_position_embeddings=16,
  rope_parameters={
    'rope_type': 'dynamic', 'rope_theta': 10_000.0, 'factor': 4.0})).eval()
text, longer = torch.arange(24)[None], torch.arange(48)[None]


@torch.no_grad()
def logits(tokens):
  return model(tokens).logits


fresh = logits(text)
logits(longer)
after_longer = logits(text)
logits(text[:, :8])
after_short = logits(text)
differs = [not torch.equal(fresh, x) for x in (after_longer, after_short)]
print(f'after a longer text differs {differs[0]}, '
      f'after a short one too differs {differs[1]}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'after a longer text differs True, after a short one too differs False' ]]
