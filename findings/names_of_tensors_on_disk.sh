#!/usr/bin/env bash
# Names in a saved file are not those of state_dict, by architecture.
#
# transformers 5.24.0, torch 2.13.0. `save_pretrained` writes the names that the
# published checkpoints have, and `from_pretrained` maps them back: the sinks of
# Flint are `softmax_offset` on disk, and the bias of Kolibri's router is
# `moe.router.expert_bias`. A map made from state_dict() finds none of them.
#
# Seen: flint sinks -> softmax_offset; kolibri1 e_score_correction_bias ->
# expert_bias
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
seen="$(cd "$folder" && venv/bin/python 2>/dev/null - <<'PYTHON'
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

seen = []
for kind, memory, disk in (
  ('flint', 'sinks', 'softmax_offset'),
  ('kolibri1', 'e_score_correction_bias', 'expert_bias'),
):
  config = AutoConfig.for_model(
    kind, vocab_size=50, hidden_size=32, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=3,
    num_experts_per_tok=2, moe_intermediate_size=8, pad_token_id=0,
    shared_expert_intermediate_size=8, sliding_window=4)
  model = AutoModelForCausalLM.from_config(config)
  model.save_pretrained(kind)
  with safe_open(f'{kind}/model.safetensors', 'pt') as file:
    saved = {name.rpartition('.')[2] for name in file.keys()}
  known = {name.rpartition('.')[2] for name in model.state_dict()}
  if memory in known - saved and disk in saved - known:
    seen.append(f'{kind} {memory} -> {disk}')
print('; '.join(seen))
PYTHON
)"
echo "$seen"
[[ "$seen" == 'flint sinks -> softmax_offset; kolibri1 e_score_correction_bias -> expert_bias' ]]
