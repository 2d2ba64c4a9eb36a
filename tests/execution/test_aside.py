"""Calls beside the main thread."""

import time

import pytest

from kvgym.execution.aside import call_aside


def test_results_and_errors_come_out():
    assert call_aside(lambda: 7) == 7
    assert call_aside(lambda: None, 5.0) is None
    with pytest.raises(KeyError, match="x"):
        call_aside(lambda: {}["x"])


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_it_is_given_up_in_time(seconds):
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        call_aside(lambda: time.sleep(2), seconds)
    assert time.monotonic() - began < 1.5
