"""What a run reads is fixed, and belongs to its workdir."""

import numpy as np
import pytest

from experiments import data
from experiments.settings import from_config


def test_loading_is_deterministic_and_writes_nothing(small_config, tmp_path):
  settings = from_config(small_config)
  one = data.load(settings.data, str(tmp_path))
  other = data.load(settings.data, str(tmp_path))
  assert one.files == other.files
  for split in one.splits:
    np.testing.assert_array_equal(
      one.splits[split].tokens, other.splits[split].tokens
    )
  assert list(tmp_path.iterdir()) == []


def test_data_that_changed_under_a_workdir_is_refused(small_config, tmp_path):
  settings = from_config(small_config)
  for name, text in data.load(settings.data, str(tmp_path)).files.items():
    (tmp_path / name).write_text(text)
  data.load(settings.data, str(tmp_path))
  small_config.data.word_order.train_pairs += 1
  changed = from_config(small_config)
  with pytest.raises(data.UserError, match=r'not what .* was made from'):
    data.load(changed.data, str(tmp_path))
