"""Writes tiny published models and their logits, as goldens of the tests.

    pip install torch transformers==5.24.0
    python scripts/make_pretrained_goldens.py

Use an environment other than the project's, with its requirements, too. Writes
tests/selfattn/goldens/pretrained.npz: of each model, its config.json, the
tensors of its file, token ids, a padding mask and logits at random weights.
"""

import pathlib
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from tests.selfattn.pretrained import cases, oracle  # noqa: E402

PATH = ROOT / 'tests/selfattn/goldens/pretrained.npz'
# One of each kind of rows: plain, joined, by head, of experts.
NAMES = ('bert', 'llama_biases', 'gpt2', 'bloom', 'gemma3_text', 'mixtral')
SMALL = {
  'vocab_size': 61,
  'hidden_size': 16,
  'intermediate_size': 20,
  'num_hidden_layers': 2,
}


def golden(case: str) -> dict[str, np.ndarray]:
  """The arrays of one model, by name."""
  kind, fields = cases.CASES[case]
  head = 'masked' if case in cases.MASKED else 'causal'
  ids, mask = oracle.batch('right')
  with tempfile.TemporaryDirectory() as folder:
    model = oracle.make(kind, head, folder, SMALL | fields)
    config = pathlib.Path(folder, 'config.json').read_bytes()
    tensors = load_file(f'{folder}/model.safetensors')
  with torch.no_grad():
    logits = model(
      input_ids=torch.tensor(ids),
      attention_mask=torch.tensor(mask.astype(np.int64)),
    ).logits
  arrays = {
    'config': np.frombuffer(config, np.uint8),
    'ids': ids,
    'mask': mask,
    'logits': logits.numpy(),
  }
  return arrays | {f'tensors/{n}': array for n, array in tensors.items()}


def main() -> None:
  """Writes the file."""
  arrays = {
    f'{case}/{name}': array
    for case in NAMES
    for name, array in golden(case).items()
  }
  versions = np.array([torch.__version__, transformers.__version__])
  np.savez_compressed(PATH, versions=versions, **arrays)


if __name__ == '__main__':
  main()
