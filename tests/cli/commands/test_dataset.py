"""``kvgym render dataset``: the commands of the page run, and errors come before the play and name a remedy."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
COMMANDS = re.findall(r"^kvgym (render dataset .*)$", PAGE.read_text("utf-8"), re.MULTILINE)


@pytest.fixture
def minari(tmp_path, monkeypatch):
    """Minari, or a module that counts episodes in its place."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    try:
        import minari  # noqa: F401
    except ImportError:
        fake = types.ModuleType("minari")
        fake.data_collector = types.SimpleNamespace(EpisodeBuffer=lambda **fields: fields)
        storage = types.SimpleNamespace(data_path=tmp_path)
        fake.create_dataset_from_buffers = lambda *_, **__: types.SimpleNamespace(storage=storage)
        monkeypatch.setitem(sys.modules, "minari", fake)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(kvgym, minari, command):
    shorter = re.sub(r"--episodes \d+", "num_requests=120 --episodes 1", command)
    out = kvgym.output(*shlex.split(shorter))
    assert ": 1 episodes, " in out


def test_a_decision_outside_of_the_window_has_a_remedy(kvgym, minari):
    err = kvgym.error("render dataset fcfs queue_window=4 --env AdmitCount-v0 --episodes 1")
    assert re.search(r"admits request \d+, which is not in the queue window \(queue_window=4", err)
    assert "use a longer queue_window, or" in err


def test_missing_minari_is_reported_before_the_play(kvgym, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    err = kvgym.error("render", "dataset", "no_such_policy")
    assert "kvgym[minari]" in err
