"""Messages of errors say what is allowed."""

import pytest

from experiments.command.errors import UserError, one_of


def test_an_empty_name_that_is_allowed_is_printed_in_quotes():
  with pytest.raises(UserError) as error:
    one_of('adm', ('', 'sgd', 'adam'), 'optimizer.groups.matrices.name')
  assert str(error.value) == (
    "config.optimizer.groups.matrices.name = 'adm' is not one of "
    "'', adam, sgd; did you mean adam?"
  )
