#!/usr/bin/env bash
# Falcon with ALiBi has other logits with eager attention than with SDPA.
#
# transformers 5.24.0, torch 2.13.0. The bias reaches the scores twice in eager
# attention: once with the mask and once by itself. SDPA gets it once, as the
# published falcon-rw models were trained. Without ALiBi both are equal. What
# counts is the implementation at construction: set_attn_implementation changes
# nothing in a Falcon that exists.
#
# Seen: alibi differs, without it equal
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def logits(alibi, attention):
  torch.manual_seed(0)
  config = AutoConfig.for_model(
    'falcon', vocab_size=50, hidden_size=32, num_hidden_layers=2,
    num_attention_heads=4, alibi=alibi, bos_token_id=1, eos_token_id=2)
  model = AutoModelForCausalLM.from_config(
    config, attn_implementation=attention).eval()
  for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
  with torch.no_grad():
    return model(torch.arange(3, 15)[None]).logits


def difference(alibi):
  eager, sdpa = (logits(alibi, kind) for kind in ('eager', 'sdpa'))
  return float((eager - sdpa).abs().max() / sdpa.abs().max())


words = ['differs' if difference(a) > 1e-3 else 'equal' for a in (True, False)]
print(f'alibi {words[0]}, without it {words[1]}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'alibi differs, without it equal' ]]
