#!/usr/bin/env bash
# Whether safetensors reads bfloat16 as NumPy depends on another import.
#
# safetensors 0.8.0, numpy 2.4.6, ml-dtypes 0.6.0. `safe_open(framework='np')`
# raises TypeError for a tensor of bfloat16, the type of most checkpoints. Where
# any module of the process has imported ml_dtypes before, as jax does, the same
# call returns an array of that type. Types and shapes are known either way.
#
# Seen: without TypeError, with bfloat16
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet \
  safetensors==0.8.0 numpy==2.4.6 ml-dtypes==0.6.0
cat >"$folder/read.py" <<'PYTHON'
import json
import sys

if sys.argv[1] == 'with':
  import ml_dtypes  # noqa: F401
from safetensors import safe_open

entry = {'x': {'dtype': 'BF16', 'shape': [2], 'data_offsets': [0, 4]}}
header = json.dumps(entry).encode()
with open('x.safetensors', 'wb') as file:
  file.write(len(header).to_bytes(8, 'little') + header + b'\x80\x3f\x00\x40')
with safe_open('x.safetensors', 'np') as file:
  try:
    print(sys.argv[1], file.get_tensor('x').dtype)
  except TypeError:
    print(sys.argv[1], 'TypeError')
PYTHON
cd "$folder"
seen="$(venv/bin/python read.py without), $(venv/bin/python read.py with)"
echo "$seen"
[[ "$seen" == 'without TypeError, with bfloat16' ]]
