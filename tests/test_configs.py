"""Every config loads and builds, with generated data files."""

import os
import pathlib

import jax
import numpy as np
import pytest

from experiments.command import config_files
from experiments.data import loading
from experiments.learning.text_tasks import TextTask
from experiments.settings.settings import from_config
from experiments.sweeps import plan
from experiments.training import compiled

PATHS = sorted(
  pathlib.Path(config_files.DEFAULT_CONFIG).parent.glob('[a-z]*.py')
)
SENTENCES = ['a fine film', 'the plot , however , is dull', 'so it goes on']


# Configs that read the data of another one.
FINE_TUNED = {
  'fine_tuning': 'small_text',
  'minilm': 'trec',
  'minilm_sst2': 'sst2_sentences',
  'minilm_mr': 'mr',
  'minilm_mrpc': 'mrpc',
  'minilm_stsb': 'stsb',
}


def table(path, labels, delimiter, header=None, columns=1):
  lines = [header] if header else []
  for label in labels:
    for index in range(60):  # so that a small fraction is not nothing
      text = delimiter.join([f'{SENTENCES[index % 3]} {index}'] * columns)
      lines.append(
        f'{text}{delimiter}{label}' if header else f'{label}{delimiter}{text}'
      )
  path.write_text('\n'.join(lines) + '\n')


def write_files(name, folder):
  """Small files in the format that the header of a config describes."""
  name = FINE_TUNED.get(name, name)
  if name == 'trec':
    for split in ('train', 'test'):
      labels = ('DESC:manner', 'NUM:date', 'DESC:def')
      table(folder / f'TREC.{split}', labels, ' ')
  elif name == 'mrpc':
    for split in ('train', 'test'):
      header = '#1 String\t#2 String\tQuality'
      path = folder / f'msr_paraphrase_{split}.txt'
      table(path, '01', '\t', header, columns=2)
  elif name == 'stsb':
    for split in ('train', 'dev', 'test'):
      table(folder / f'{split}.tsv', ('0.0', '4.75'), '\t', columns=2)
  elif name == 'longer_contexts':
    for split in ('train', 'test'):
      table(folder / f'{split}.tsv', ('good', 'bad'), '\t', 'text\tlabel')
  elif name == 'small_text':
    table(folder / 'train.tsv', ('good', 'bad'), '\t', 'text\tlabel')
  elif name in ('sst2', 'sst2_cnn', 'sst2_recurrent'):
    for split in ('train', 'dev'):
      table(folder / f'{split}.tsv', '01', '\t', 'sentence\tlabel')
  elif name == 'sst2_sentences':
    for split in ('train', 'dev', 'test'):
      table(folder / f'stsa.binary.{split}', '01', ' ')
  elif name == 'mr':
    for ending in ('neg', 'pos'):
      lines = [f'{text} {n} {ending}' for n in range(9) for text in SENTENCES]
      (folder / f'rt-polarity.{ending}').write_text('\n'.join(lines) + '\n')
  elif name == 'r8':
    for split in ('train', 'test'):
      table(folder / f'{split}.txt', ('earn', 'acq'), '\t')
  elif name == 'ag_news':
    for split in ('train', 'test'):
      table(folder / f'{split}.csv', '1234', ',', columns=2)
      path = folder / f'{split}.csv'
      path.write_text(path.read_text().replace(' , ', ' - '))
  elif name == 'goemotions':
    for split in ('train', 'dev', 'test'):
      lines = [
        f'{text} {n}\t{n % 28},27\tid' for n in range(56) for text in SENTENCES
      ]
      (folder / f'{split}.tsv').write_text('\n'.join(lines) + '\n')
  elif name == 'imdb':
    for split in ('train', 'test'):
      for label in ('pos', 'neg', 'unsup'):
        (folder / split / label).mkdir(parents=True)
        for index in range(60):
          path = folder / split / label / f'{index}.txt'
          path.write_text('\n'.join(SENTENCES) + f' {index}')


CLASSES = {
  'trec': 2,
  'r8': 2,
  'ag_news': 4,
  'goemotions': 28,
  'language_model': 0,
  'longer_contexts': 0,
  'stsb': 1,
  'minilm_stsb': 0,
  'longer_recall': 32,
  'mqar': 32,
  'passkey': 32,
}
# Generated data of the same kind, and less of it.
SMALL = {
  'word_order': 'word_order(train_pairs=100, validation_pairs=9, test_pairs=9)',
  'stories': 'stories(train=40, validation=10, test=10)',
  'stream': 'stories(train=40, validation=10, test=10)',
  'algorithmic': 'algorithmic(train=100, validation=20, test=20)',
  'mqar': 'mqar(vocab_size=64, train=400, validation=20, test=10)',
  'passkey': 'passkey(vocab_size=64, train=400, validation=20, test=10)',
}


@pytest.mark.slow
@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_config_loads_its_data_and_builds(path, tmp_path):
  config = config_files.load_config(str(path))
  # A shorter run warms up for less.
  assert 0 < config.optimizer.warmup_steps < 1
  if config.data.source == 'text':
    config.data.dir = str(tmp_path)
    write_files(path.stem, tmp_path)
    if path.stem in ('small_text', 'fine_tuning'):
      config.data.test_fraction = 0.1
  else:
    config.data.source = SMALL[config.data.source.partition('(')[0]]
  settings = from_config(config)
  reader = settings.task.entry.labels
  loaded = loading.load(settings.data, '', labels=reader)
  assert len(loaded.label_facts.names) == CLASSES.get(path.stem, 2)
  assert all(len(split) for split in loaded.splits.values())
  program = compiled.make(settings, loaded.vocabulary, loaded.label_facts)
  *_, longest = loaded.bucket_lengths
  batch = loaded.splits['test'].batch(np.arange(2), 2, longest)
  outputs = jax.eval_shape(program.eval_step, program.template.params, batch)
  if isinstance(program.task, TextTask):
    assert outputs[1].shape == (2, len(loaded.label_facts.names))


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_every_trial_of_every_sweep_has_settings(path, tmp_path):
  module, config = config_files.load_module(str(path))
  write_files(path.stem, tmp_path)
  config.data.dir = str(tmp_path) if os.listdir(tmp_path) else ''
  names = [n for n in vars(module) if n.startswith('sweep_')]
  wanted = {'sweep_seeds'}
  if config.model.encoder == 'attention':
    wanted |= {'sweep_positions'}
  assert wanted <= set(names)
  sweeps = {
    name: plan.generated(module, name.removeprefix('sweep_')) for name in names
  }
  for trials in sweeps.values():
    specs = plan.make(config.to_dict(), trials, str(tmp_path))
    assert len(specs) == len(trials) > 1
