#!/usr/bin/env bash
# rotary_pos_emb=True rotates half of the channels of a head in x-transformers.
#
# x-transformers 2.31.10, torch 2.13.0. RoPE (Su et al. 2021) and transformers'
# LLaMA rotate all channels of a head. Here, the width of rotation is half of
# the width of a head unless rotary_emb_dim says otherwise, so that
# rotary_base_rescale_factor also has the exponent of that width, 16 / 14
# where a head has 32 channels, and not 32 / 30.
#
# Seen: of 32 channels 16 rotate; rescaled by 4, the base grows by 4.876
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 x-transformers==2.31.10
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
from x_transformers import Decoder


def frequencies(**options):
  layers = Decoder(dim=64, depth=1, heads=2, attn_dim_head=32,
                   rotary_pos_emb=True, verbose=False, **options)
  return layers.rotary_pos_emb.inv_freq


plain = frequencies()
rescaled = frequencies(rotary_base_rescale_factor=4.0)
pairs = len(plain)
# The last frequency is base^-((R - 2) / R).
growth = (plain[-1] / rescaled[-1]) ** (2 * pairs / (2 * pairs - 2))
print(f'of 32 channels {2 * pairs} rotate; '
      f'rescaled by 4, the base grows by {growth:.3f}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'of 32 channels 16 rotate; rescaled by 4, the base grows by 4.876' ]]
