"""The tables of docs/coming_from.md say what is found by running libraries."""

import itertools
import re

import numpy as np
import pytest
from conftest import ROOT
from flax import nnx

from selfattn import Attention
from tests.coming_from import functions, layers, models

TABLES = (functions, layers, models)
# Other libraries, by how the header of their column begins.
ORACLES = ('torch', 'transformers')


def tables():
  """Cells of each table of the page, by row and column."""
  found = []
  for is_table, lines in itertools.groupby(
    (ROOT / 'docs/coming_from.md').read_text().splitlines(),
    lambda line: line.startswith('|'),
  ):
    if is_table:
      (_, *header), _, *rows = (
        [cell.strip() for cell in line.split('|')[1:-1]] for line in lines
      )
      found.append(
        {title: dict(zip(header, cells, strict=True)) for title, *cells in rows}
      )
  return found


def library_of(column):
  return re.match('[a-z]*', column)[0]


def cells():
  for table in TABLES:
    for row, column in itertools.product(table.ROWS, table.COLUMNS):
      marks = [pytest.mark.oracle] * (library_of(column) in ORACLES)
      name = f'{table.ROWS[row]}-{column.split()[-1].strip("`")}'
      yield pytest.param(table, row, column, marks=marks, id=name)


def test_every_row_and_column_of_the_page_has_a_proof():
  for found, table in zip(tables(), TABLES, strict=True):
    assert list(found) == list(table.ROWS)
    for row in found.values():
      assert list(row) == list(table.COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize(('table', 'row', 'column'), [*cells()])
def test_a_cell_says_what_the_library_does(table, row, column):
  if library_of(column) in ORACLES:
    pytest.importorskip(library_of(column))
  said = tables()[TABLES.index(table)][row][column]
  assert getattr(table.COLUMNS[column], table.ROWS[row])() == said


@pytest.fixture(scope='module')
def conversions():
  """The functions of the page."""
  text = (ROOT / 'docs/coming_from.md').read_text()
  (block,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  names = {}
  exec(block, names)
  return names


def applied(params):
  layer = Attention(layers.D, layers.H)
  return layer.apply({'params': params}, layers.vectors())[0]


def test_parameters_of_flax_make_a_layer_of_the_same_outputs(conversions):
  layer = layers.Flax().layer()
  params = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
  found = applied(conversions['from_flax'](params))
  np.testing.assert_allclose(found, layer(layers.vectors()), atol=1e-5)


@pytest.mark.oracle
def test_parameters_of_torch_make_a_layer_of_the_same_outputs(conversions):
  pytest.importorskip('torch')
  layer = layers.Torch().layer()
  state = {name: x.numpy() for name, x in layer.state_dict().items()}
  found = applied(conversions['from_torch'](state))
  want, _ = layers.Torch().run(layer)
  np.testing.assert_allclose(found, want.detach(), atol=1e-5)
