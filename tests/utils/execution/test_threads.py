"""Calls in a thread, with a timeout."""

import threading

import pytest

from kvgym.utils.execution.threads import call_in_thread


def test_results_and_errors_are_passed_on():
    assert call_in_thread(lambda: 7) == 7
    assert call_in_thread(lambda: None, 5.0) is None
    with pytest.raises(KeyError, match="x"):
        call_in_thread(lambda: {}["x"])


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_the_timeout_is_kept(seconds):
    released = threading.Event()
    with pytest.raises(TimeoutError):
        call_in_thread(released.wait, seconds)
    released.set()
