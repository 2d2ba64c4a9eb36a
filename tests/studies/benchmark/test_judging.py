import io
import json
import os
import signal
import time
from pathlib import Path

import pytest

from kvgym.cli.commands.learning.judge import judge as judge_command
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.runs import PlannedRun, Player
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.judging import FIRST_SEED, Judge, judge
from kvgym.studies.benchmark.process import KEPT, LostError, Nursery, Process
from kvgym.studies.benchmark.running import value_of
from kvgym.studies.benchmark.tasks import FIRST_VALIDATION, SUITE, load_suite

PLAIN = """
from kvgym.baselines.first_come import FCFS

class Mine(FCFS):
    pass
"""

IN_PYTHON = """
import kvgym
from kvgym.baselines.first_come import FCFS

class Mine(FCFS):
    info = kvgym.PolicyInfo("mine", "like the plain rule")

    def schedule(self, view):
        look(view)
        return super().schedule(view)

def look(view):
    pass
"""


def verdict(folder: Path, code: str, **options):
    (folder / "mine.py").write_text(code)
    return judge(folder / "mine.py", **{"tasks": ("applications",), "seeds": 1, **options})


def test_a_policy_that_cannot_describe_itself_has_a_verdict(tmp_path):
    code = """
import kvgym

class Mine(kvgym.Policy):
    @property
    def info(self):
        raise kvgym.errors.ConfigError("early")

    def schedule(self, view):
        return kvgym.Decision()
"""
    found = verdict(tmp_path, code)
    assert found["score"] is None
    assert "early" in found["failure"]


def test_a_copy_of_the_plain_rule_scores_nothing(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(PLAIN)
    judge_command(tmp_path / "mine.py", seeds=1)
    found = json.loads(capsys.readouterr().out)
    assert found["score"] == 0
    assert found["failure"] == ""
    assert found["tasks"]["hidden-kinds"]["failures"] == {}
    assert FIRST_SEED == FIRST_VALIDATION


@pytest.mark.parametrize(
    ("spec", "task"),
    [
        ("ranked_documents", "conversations"),
        ("vllm_v1", "server-mixed"),
        ("lmetric", "routing-unequal"),
        ("mc_sf", "applications"),
    ],
)
def test_a_run_is_the_same_as_in_one_process(spec: str, task: str):
    found = judge(spec, tasks=(task,), seeds=1)["tasks"][task]
    made, tried = load_entry(spec).made, load_suite().task(task)
    scenario, router = tried.scenario(SUITE), tried.role == "router"
    run = PlannedRun(
        scenario, scenario.policies[0] if router else made, made if router else None, FIRST_SEED, spec
    )
    (played,) = Player()([run])
    assert found["value"] == tried.sign * value_of(tried, played)[0]


def test_policies_in_python_and_those_that_declare_true_lengths(tmp_path):
    found = verdict(tmp_path, IN_PYTHON)
    assert found["failure"] == ""
    assert not found["clairvoyant"]
    assert found["tasks"]["applications"]["failures"] == {}
    declared = IN_PYTHON.replace('rule")', 'rule", needs={"true_length"})')
    declared += (
        "\n    assert (view.waiting.output_len > 0).all() and view.active.output_len.max(initial=0) < 10**6\n"
    )
    found = verdict(tmp_path, declared)
    assert (found["failure"], found["clairvoyant"]) == ("", True)


@pytest.mark.parametrize(
    "attack",
    [
        'print(\'kvgym-verdict \' + \'["applications", {"scores": [1e9], "value": 1, "plain": 2, "failures": {}}]\')',
        "import kvgym.studies.benchmark.scoring as s\ns.scores_of = lambda *_: [1.5]",
        "import kvgym.policies.runner as r, kvgym.metrics as m\nr.simulate = m.compute_metrics = None",
        "import kvgym.studies.benchmark.running as r\nr.value_of = lambda *_: (0.0, '')",
    ],
)
def test_no_candidate_can_name_its_score(tmp_path, attack: str):
    found = verdict(tmp_path, attack + "\n" + PLAIN)
    assert found["failure"] == ""
    assert found["score"] == 0


def test_a_candidate_has_no_true_lengths(tmp_path):
    look = """
    if view.iteration > 3:
        return
    import gc
    assert not hasattr(view, "simulation")
    held = view._simulation
    assert held.table.output_len.max() == 1 and not held.workload["output_len"].any() and not held.targets.any()
    assert not held.table.arrival_time.any()
    tables = [each for each in gc.get_objects() if type(each).__name__ == "RequestTable"]
    assert tables and all(each.output_len.max() == 1 for each in tables)
"""
    found = verdict(tmp_path, IN_PYTHON + look)
    assert found["failure"] == ""
    assert found["tasks"]["applications"]["failures"] == {}


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("b'\\xff' * 64", "an answer has at most"),
        ("(3).to_bytes(8, 'little') + b'\\xff{['", "what is no answer"),
        ("(2).to_bytes(8, 'little') + b'[]'", "what is no answer"),
        ("(2).to_bytes(8, 'little') + b'{}'", "what is no de"),
    ],
)
def test_forged_answers_end_in_a_verdict(tmp_path, answer: str, failure: str):
    forge = f"""
    import os
    for fd in range(3, 30):
        try:
            os.write(fd, {answer})
        except OSError:
            pass
"""
    found = verdict(tmp_path, IN_PYTHON + forge)
    assert failure in found["failure"]
    assert found["score"] is None


def test_decisions_are_checked_and_failures_of_runs_count(tmp_path):
    found = verdict(tmp_path, IN_PYTHON.replace("    pass\n", "    raise ValueError('no\\x1b luck')\n"))
    assert found["score"] == -1
    (failure,) = found["tasks"]["applications"]["failures"].values()
    assert "ValueError: no" in failure
    assert failure.isprintable()
    found = verdict(tmp_path, IN_PYTHON.replace("super().schedule(view)", "kvgym.Decision(admit=[0, 0])"))
    assert "listed twice" in str(found["tasks"]["applications"]["failures"])


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("while True: pass", "it took more than 2 s"),
        ("x = bytes(2**34)", "needs more than 1024 MiB"),
        ("import os; os._exit(3)", "its process ended: exit status 3"),
        ("import os; os.write(1, b'\\xff\\xfe\\x1b[31m bad\\n'); os._exit(3)", "bad"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("x = 1", "defines 0 classes"),
    ],
)
def test_failures_are_verdicts(tmp_path, code: str, failure: str):
    found = verdict(tmp_path, code, seconds=2 if "while" in code else 60, memory_mib=1024)
    assert failure in found["failure"]
    assert found["failure"].isprintable()
    assert found["score"] is None


def test_a_failure_of_a_later_task_leaves_no_score(tmp_path):
    ends = IN_PYTHON.replace("    pass\n", "    import os\n    view.clock > 20 and os._exit(0)\n")
    found = verdict(tmp_path, ends, tasks=("applications", "hidden-kinds"))
    assert found["failure"]
    assert found["score"] is None


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_forked_processes_end_with_the_candidate(tmp_path):
    fork = (
        f"import os, time\nif os.fork() == 0:\n    open(r'{tmp_path / 'pid'}', 'w').write(str(os.getpid()))\n"
    )
    wait = f"while not (os.path.exists(r'{tmp_path / 'pid'}') and os.path.getsize(r'{tmp_path / 'pid'}')): pass\n"
    found = verdict(tmp_path, fork + "    time.sleep(600)\n" + wait + "os._exit(4)")
    assert found["failure"] == "its process ended: exit status 4"
    forked, patience = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while (
        is_running(forked) and time.monotonic() < patience
    ):  # it has been killed, and ends when it has its turn
        time.sleep(0.05)
    assert not is_running(forked)


def test_a_process_that_has_left_the_group_does_not_delay_the_verdict(tmp_path):
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    open(r'{tmp_path / "pid"}', 'w').write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(r'{tmp_path / "pid"}'): pass
os._exit(4)
"""
    try:
        assert verdict(tmp_path, code)["failure"] == "its process ended: exit status 4"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_little_of_the_output_is_kept(tmp_path):
    (tmp_path / "mine.py").write_text("import os\nfor _ in range(9): os.write(1, b'x' * 65536)\nos._exit(1)")
    nursery = Nursery()
    process = Process(nursery, str(tmp_path / "mine.py"), 60, 1024)
    try:
        with pytest.raises(LostError, match="its process ended: xxx"):
            process.ask(b"I")
        assert len(process.printed) == KEPT
    finally:
        process.close()
        nursery.close()


def test_mistakes_of_the_caller_are_errors():
    with pytest.raises(ConfigError, match="no file"):
        judge("none.py")
    with pytest.raises(ConfigError, match="first_seed"):
        judge("fcfs", first_seed=-1)
    with pytest.raises(UnknownNameError, match="hidden-kinds"):
        judge("fcfs", tasks=("hidden",))
    assert "unknown policy 'nothing'" in judge("nothing")["failure"]
    assert "is for a router" in judge("fcfs", tasks=("routing-unequal",))["failure"]
    assert "is for an autoscaler" in judge("fcfs", tasks=("scale-cold",))["failure"]


def test_one_judge_gives_the_verdicts_of_several(tmp_path, monkeypatch):
    """A candidate leaves nothing behind, a plain rule runs once, and a first stage may be smaller."""
    codes = {
        "good": PLAIN,
        "broken": "def (",
        "exits": "import os; os._exit(3)",
        "marks": "import kvgym\nkvgym.mark = 1\n" + PLAIN,
        "looks": "import kvgym\nassert not hasattr(kvgym, 'mark')\n" + PLAIN,
        "python": IN_PYTHON,
    }
    for name, code in codes.items():
        (tmp_path / f"{name}.py").write_text(code)
    runs = []
    value = Judge._value
    monkeypatch.setattr(
        Judge, "_value", lambda self, task, made, seed: runs.append(made) or value(self, task, made, seed)
    )
    with Judge(tasks=("applications",), seeds=2) as judging:
        found = {name: judging.verdict(tmp_path / f"{name}.py") for name in codes}
        stage = judging.verdict(tmp_path / "good.py", seeds=1)
    scores = {name: verdict["score"] for name, verdict in found.items()}
    assert scores == {"good": 0, "broken": None, "exits": None, "marks": 0, "looks": 0, "python": 0}
    assert "broken.py cannot be imported: SyntaxError" in found["broken"]["failure"]
    assert found["exits"]["failure"] == "its process ended: exit status 3"
    assert len(stage["tasks"]["applications"]["scores"]) == 1
    assert len(runs) == 2 + 4 * 2 + 1
    alone = judge(tmp_path / "good.py", tasks=("applications",), seeds=2)
    for verdict in (alone, found["good"]):
        verdict.pop("seconds"), verdict["tasks"]["applications"].pop("seconds")
    assert alone == found["good"]


def test_a_candidate_that_ends_the_nursery_harms_no_other(tmp_path):
    (tmp_path / "mine.py").write_text("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + PLAIN)
    (tmp_path / "good.py").write_text(PLAIN)
    with Judge(tasks=("applications",), seeds=1) as judging:
        judging.verdict(tmp_path / "mine.py")
        assert judging.verdict(tmp_path / "good.py")["score"] == 0


def test_a_syntax_error_is_found_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("kvgym.studies.benchmark.judging.Nursery", None)
    found = verdict(tmp_path, "x = (\n")
    assert (
        found["failure"] == "mine.py cannot be imported: SyntaxError: '(' was never closed (mine.py, line 1)"
    )
    assert found["score"] is None


def test_entries_are_read_from_standard_input(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(PLAIN)
    lines = io.StringIO(f"{tmp_path / 'mine.py'}\n\n{tmp_path / 'none.py'}\n")
    monkeypatch.setattr("sys.stdin", lines)
    judge_command("-", tasks=["applications"], seeds=1)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["entry"], first["score"]) == (str(tmp_path / "mine.py"), 0)
    assert "no file" in second["failure"]
