"""Bits per byte by length of x-transformers' rotary model, extended by options.

    python -m venv PEER && PEER/bin/pip install torch x-transformers
    PYTHONPATH=. PEER/bin/python scripts/longer_contexts_peer.py TRAIN TEST FILE

The model and its training are those of scripts/language_model_peer.py, and the
bytes are those of configs/longer_contexts.py. Each way reads them with the
parameters of one training, of two seeds.
"""

import importlib.metadata
import json
import pathlib
import sys

import language_model_peer as peer

from experiments.command import provenance
from experiments.sweeps.comparison import interval

LENGTHS = (128, 256, 512, 1_024, 2_048, 4_096)
WAYS = {
  'rotary': {},
  'linear, 4': {'rotary_interpolation_factor': 4},
  'ntk, 4': {'rotary_base_rescale_factor': 4},
  'linear, 16': {'rotary_interpolation_factor': 16},
  'ntk, 16': {'rotary_base_rescale_factor': 16},
}


def extended(trained, options: dict):
  """The trained model with other frequencies, which are not parameters."""
  model = peer.initialised('rotary', 0, **options).eval()
  with peer.torch.no_grad():
    pairs = zip(model.parameters(), trained.parameters(), strict=True)
    for parameter, of_trained in pairs:
      parameter.copy_(of_trained)
  return model


def main(train_path: str, test_path: str, output: str) -> None:
  """Trains a model of each seed, and writes the file after each."""
  texts, test = peer.read(train_path, 10_000_000), peer.read(test_path, 65_536)
  bits = {way: {str(length): [] for length in LENGTHS} for way in WAYS}
  for seed in range(2):
    trained = peer.train('rotary', seed, texts)
    for way, options in WAYS.items():
      model = extended(trained, options)
      for length in LENGTHS:
        loss = peer.bits_per_byte(model, test, length)
        bits[way][str(length)].append(loss)
    content = {
      'command': 'python scripts/longer_contexts_peer.py TRAIN TEST FILE',
      'commit': provenance.commit(),
      'machine': provenance.machine(),
      'versions': {
        name: importlib.metadata.version(name)
        for name in ('torch', 'x-transformers')
      },
      'table': [
        {
          'way': way,
          'n': seed + 1,
          'bits_per_byte': {
            length: interval(losses) for length, losses in by_length.items()
          },
        }
        for way, by_length in bits.items()
      ],
    }
    pathlib.Path(output).write_text(json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
  main(*sys.argv[1:])
