#!/usr/bin/env bash
# A text of padding alone is NaN in nn.MultiheadAttention, or zero.
#
# torch 2.13.0. With need_weights=True, the default, a query without keys is
# NaN. With need_weights=False, it is zero before the output projection, so its
# output is the bias; but in eval() without gradients, where a fast path takes
# over, it is NaN again. Nothing differs but the path: the call, the mask and
# the weights are the same. With an odd number of heads, which the fast path
# does not support, it is zero there, too.
#
# Seen: weights NaN; no weights: train bias, eval bias, eval without gradients
# NaN, the same with 3 heads bias
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
seen="$("$folder/venv/bin/python" 2>/dev/null - <<'PYTHON'
import torch


def output(heads=2, *, needs_weights=False, trains=False, gradients=True):
  torch.manual_seed(0)
  layer = torch.nn.MultiheadAttention(12, heads, batch_first=True)
  torch.nn.init.normal_(layer.out_proj.bias)
  layer.train(trains)
  x = torch.randn(2, 5, 12)
  is_padding = torch.tensor([[False] * 5, [True] * 5])
  with torch.set_grad_enabled(gradients):
    y, _ = layer(
      x, x, x, key_padding_mask=is_padding, need_weights=needs_weights)
  if torch.isnan(y[1]).all():
    return 'NaN'
  bias = layer.out_proj.bias.expand(5, 12)
  return 'bias' if torch.allclose(y[1], bias) else 'another'


print(
  f'weights {output(needs_weights=True)}; '
  f'no weights: train {output(trains=True)}, eval {output()}, '
  f'eval without gradients {output(gradients=False)}, '
  f'the same with 3 heads {output(3, gradients=False)}')
PYTHON
)"
echo "$seen"
[[ "$seen" == 'weights NaN; no weights: train bias, eval bias, eval without gradients NaN, the same with 3 heads bias' ]]
