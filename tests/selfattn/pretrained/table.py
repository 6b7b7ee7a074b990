"""The table of architectures, as the tests against transformers write it.

    SELFATTN_TABLE=FOLDER pytest -m oracle tests/selfattn/pretrained
    python -m tests.selfattn.pretrained.table FOLDER

The first command notes what the tests have measured; the second one writes
docs/results/pretrained.json.
"""

import json
import os
import pathlib
import sys

from experiments.command import provenance

PATH = pathlib.Path(__file__).parents[3] / 'docs/results/pretrained.json'


def note(case: str, head: str, **measured: float) -> None:
  """Notes the results of a test, if the table is asked for."""
  if folder := os.environ.get('SELFATTN_TABLE'):
    path = pathlib.Path(folder, f'{os.getpid()}.jsonl')
    with open(path, 'a') as file:
      file.write(json.dumps([case, head, measured]) + '\n')


def rows(folder: str) -> list[dict]:
  """A row for each architecture and head, with the worst of its cases."""
  from tests.selfattn.pretrained import cases

  worst: dict[tuple[str, str], dict[str, float]] = {}
  for path in pathlib.Path(folder).glob('*.jsonl'):
    for line in path.read_text().splitlines():
      case, head, measured = json.loads(line)
      kind, _ = cases.CASES[case]
      row = worst.setdefault((kind, head), {})
      for name, value in measured.items():
        row[name] = max(row.get(name, 0.0), value)
  return [
    {'model_type': kind, 'head': head, **worst[kind, head]}
    for kind, head in sorted(worst)
  ]


def main() -> None:
  """Writes the file."""
  content = {
    'command': 'pytest -m oracle tests/selfattn/pretrained',
    'commit': provenance.commit(),
    'machine': provenance.machine(),
    'versions': {'transformers': '5.24.0', 'torch': '2.13.0'},
    'rows': rows(sys.argv[1]),
  }
  PATH.write_text(json.dumps(content, indent=1) + '\n')


if __name__ == '__main__':
  main()
