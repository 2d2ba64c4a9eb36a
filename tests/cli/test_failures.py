"""Errors of commands: messages and bug reports."""

import os
from pathlib import Path

import pytest

from kvgym import baselines
from kvgym.cli import failures
from kvgym.errors import LIMIT, ConfigError


@pytest.mark.parametrize("length", [10, LIMIT - 5, 10 * LIMIT])
def test_messages_are_one_short_line(capsys, length):
    error = ConfigError("x" * length, details="all of it")
    assert failures.end_with(error) == failures.WRONG
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert len(printed.strip()) <= len("error: ") + LIMIT
    assert printed.rstrip().endswith("(--verbose shows details)")


def test_a_bug_report_follows_no_link(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("time.strftime", lambda _: "now")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f"kvgym-error-now-{os.getpid()}.txt").symlink_to("precious")
    report = failures._write_report(ValueError("x"))
    assert "ValueError: x" in report.read_text()
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_mistake_in_the_schedulers_is_no_bug_of_kvgym(capsys):
    """As if a module that imports them came first, so that no registry names the file."""
    file = Path(baselines.__file__).with_name("first_come.py")
    with pytest.raises(NameError) as caught:
        exec(compile("\n\nmissing", str(file), "exec"), {})
    assert failures.end_with(caught.value) == failures.WRONG
    printed = capsys.readouterr().err
    assert "error: baselines/first_come.py, line 3: NameError: name 'missing' is not defined" in printed
