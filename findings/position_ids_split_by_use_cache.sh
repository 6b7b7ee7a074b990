#!/usr/bin/env bash
# position_ids that begin anew split a row, but only without a cache.
#
# transformers 5.24.0, torch 2.13.0. Two texts in one row, with position_ids
# 0 1 2 3 0 1 2 3 and no attention_mask, do not see one another with
# use_cache=False. With the default, use_cache=True, the second text attends to
# the first one, and so it does with an attention_mask of ones. None of these
# calls warns.
#
# Seen: no cache split, no cache and mask joined, cache joined
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
  num_attention_heads=4, max_position_embeddings=64)).eval()
ids = torch.arange(1, 9)[None]
positions = torch.arange(4).repeat(2)[None]
mask = torch.ones(1, 8, dtype=torch.long)


@torch.no_grad()
def second(**arguments):
  """Whether the second text has the logits that it has alone."""
  logits = model(ids, position_ids=positions, **arguments).logits[:, 4:]
  alone = model(ids[:, 4:]).logits
  return 'split' if torch.allclose(logits, alone, atol=1e-5) else 'joined'


print(
  f'no cache {second(use_cache=False)}, '
  f'no cache and mask {second(use_cache=False, attention_mask=mask)}, '
  f'cache {second()}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'no cache split, no cache and mask joined, cache joined' ]]
