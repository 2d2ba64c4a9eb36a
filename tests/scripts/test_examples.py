"""Examples that no page or other test runs."""

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"


def test_a_policy_in_python(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shortest_first.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    latencies = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
    assert list(latencies) == ["shortest_first", "shortest_first:spare=0.2", "fcfs"]
    assert latencies["shortest_first"] < latencies["fcfs"]


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_evaluator_of_openevolve(monkeypatch):
    """Scores to climb, and failures to read; the first stage has one seed."""
    asked = []
    verdicts = [
        {"score": 0.25, "failure": "", "tasks": {"t": {"failures": {"1000001": "stalled"}}}},
        {"score": None, "failure": "cannot be imported", "tasks": {}},
    ]

    class Judging:
        def verdict(self, path, **options):
            asked.append((path, options))
            return verdicts[len(asked) - 1]

    result = types.SimpleNamespace(EvaluationResult=lambda metrics, artifacts: (metrics, artifacts))
    monkeypatch.setitem(sys.modules, "openevolve", types.ModuleType("openevolve"))
    monkeypatch.setitem(sys.modules, "openevolve.evaluation_result", result)
    evaluator = example("openevolve_evaluator")
    monkeypatch.setattr(evaluator, "judging", Judging)
    assert evaluator.evaluate_stage1("a.py") == ({"combined_score": 0.25}, {"stderr": "stalled"})
    assert evaluator.evaluate_stage2("a.py") == ({"combined_score": -1.0}, {"stderr": "cannot be imported"})
    assert asked == [("a.py", {"seeds": 1}), ("a.py", {})]


def test_a_mutation_changes_one_or_two_numbers_of_the_program():
    script = example("mutate_scheduler")
    before = script.NUMBER.findall(script.PROGRAM)
    rng, counts = np.random.default_rng(0), set()
    for _ in range(20):
        text = script.mutated(script.PROGRAM, rng)
        compile(text, "child.py", "exec")
        after = script.NUMBER.findall(text)
        counts.add(sum(a != b for a, b in zip(before, after, strict=True)))
    assert counts == {1, 2}
    assert len(before) == 9


def test_a_clone_gives_the_answers_of_the_scheduler(monkeypatch, capsys):
    pytest.importorskip("sb3_contrib")
    script = example("clone_scheduler")
    monkeypatch.setattr(script, "RUSH", {"scenario": "rush", "rate": 24, "num_requests": 15})
    monkeypatch.setattr(sys, "argv", ["clone", "--episodes=1", "--epochs=40", "--requests=15", "--seeds=1"])
    script.main()
    first, *rest = capsys.readouterr().out.splitlines()
    right = float(re.search(r"([\d.]+)% of the answers right", first)[1])
    latency = {line.split(":")[0]: float(re.search(r"([\d.]+) s$", line)[1]) for line in rest}
    assert right > 80
    assert list(latency) == ["work_conserving_sjf_lookahead", "fcfs", "clone", "random"]
    assert latency["clone"] < latency["random"]
