"""How commands end that fail."""

import pytest

from kvgym.cli import failures
from kvgym.errors import LIMIT, ConfigError


@pytest.mark.parametrize("length", [10, LIMIT - 5, 10 * LIMIT])
def test_a_message_is_one_short_line_whatever_is_said_after_it(capsys, length):
    error = ConfigError("x" * length, details="all of it")
    assert failures.end_with(error) == failures.WRONG
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert len(printed.strip()) <= len("error: ") + LIMIT
    assert printed.rstrip().endswith("(--verbose says more)")
