import json

import pytest

from kvgym.benchmark.judging import judge
from kvgym.cli.commands.learning.judge import judge as judge_command
from kvgym.errors import ConfigError

PLAIN = """
from kvgym.baselines.first_come import FCFS

class Mine(FCFS):
    pass
"""


def test_a_copy_of_the_plain_rule_scores_nothing(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(PLAIN)
    judge_command(tmp_path / "mine.py", seeds=1)
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["score"] == 0
    assert verdict["failure"] == ""
    assert verdict["tasks"]["hidden-kinds"]["failures"] == {}


def test_a_name_is_judged_like_a_file():
    found = judge("ranked_documents", seeds=2)
    task = found["tasks"]["hidden-kinds"]
    assert found["score"] == pytest.approx(sum(task["scores"]) / 2)
    assert 0 < found["score"] < 1
    assert task["value"] < task["plain"]
    assert "unknown policy 'nothing'" in judge("nothing")["failure"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("while True: pass", "it took more than 2 s"),
        ("x = bytes(2**34)", "needs more than 1024 MiB"),
        ("import os; os._exit(3)", "its process ended: exit status 3"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("x = 1", "defines 0 classes"),
    ],
)
def test_failures_are_verdicts(tmp_path, code: str, failure: str):
    (tmp_path / "mine.py").write_text(code)
    found = judge(tmp_path / "mine.py", seconds=2 if "while" in code else 60, memory_mib=1024)
    assert failure in found["failure"]
    assert found["score"] is None


def test_a_missing_file_is_an_error():
    with pytest.raises(ConfigError, match="no file"):
        judge("none.py")
