"""Messages of errors say what is allowed."""

import pytest

from experiments.command.errors import UserError, one_of


def test_an_empty_name_that_is_allowed_is_printed_in_quotes():
  with pytest.raises(UserError) as error:
    one_of('adm', ('', 'sgd', 'adam'), 'model.dtype')
  assert str(error.value) == (
    "config.model.dtype = 'adm' is not one of '', adam, sgd; did you mean adam?"
  )
