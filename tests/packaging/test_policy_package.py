"""A compiled policy in another distribution: found, compiled once, equal in every way of running it.

Its module is the example of docs/compiled-policies.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compiled-policies.md").read_text("utf-8")
EXAMPLES = re.findall(r"(?<! -->\n)^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MODULE = (ROOT / "scripts" / "examples" / "shortest_prompt.py").read_text("utf-8")
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: acme-scheduling\nVersion: 0.1\n",
    "entry_points.txt": "[kvgym.policies]\nacme = acme_scheduling.policies\n",
}
KVGYM = "from kvgym.cli.app import main; main()"

RUNS = """
    import json
    from pathlib import Path
    import gymnasium as gym
    import numpy as np
    import kvgym
    from kvgym.envs.agents import play

    class StepByStep(kvgym.Policy):
        def __init__(self, inner):
            self.inner, self.info = inner, inner.info

        def reset(self, system):
            self.inner.reset(system)

        def schedule(self, view):
            return self.inner.schedule(view)

    def records(run):
        assert run.completed
        return [run.requests[name].tolist() for name in ("start_time", "finish_time", "num_evictions")]

    env = gym.make(
        "kvgym/AdmitCount-v0", num_requests=60, kv_capacity=2500, queue_window=60, queue_order="prompt",
        active_window=60, workload={"preset": "lmsys", "limits": {"max_total_len": 2000}}, horizon=1e6,
    ).unwrapped
    policy = kvgym.make_policy("shortest_prompt:spare=0")
    assert policy.kernel.function.__module__ == "acme_scheduling.policies"
    played, _ = play(env, policy, workload_seed=1)
    system, table = env.episodes.system, env.episodes.workload.sample(1)
    ways = [
        records(kvgym.simulate(system, table, policy)),
        records(kvgym.simulate(system, table, policy, compiled=False)),
        records(kvgym.simulate(system, table, StepByStep(policy))),
        records(played),
    ]
    code = sorted(Path(policy.kernel.compiled.stats.cache_path).glob("*.nbc"))
    print(json.dumps({
        "equal": [way == ways[0] for way in ways],
        "evictions": sum(ways[0][2]),
        "code": [(path.name, path.stat().st_mtime_ns) for path in code],
    }))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Install the distribution into a folder; return a function that runs a program which can import it."""
    base = tmp_path_factory.mktemp("acme")
    info = base / "site" / "acme_scheduling-0.1.dist-info"
    package = base / "site" / "acme_scheduling"
    for folder in (info, package):
        folder.mkdir(parents=True)
    for name, text in METADATA.items():
        (info / name).write_text(text)
    (package / "__init__.py").write_text('"""Schedulers of Acme."""\n')
    (package / "policies.py").write_text(MODULE)
    (base / "shortest_prompt.py").write_text(MODULE)  # imported by the example on the page
    environment = {**os.environ, "KVGYM_PLUGINS": "1", "COLUMNS": "200"}

    def go(*arguments: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
        path = [str(base / "site"), str(ROOT)] if installed else [str(ROOT)]
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=base,
            env={**environment, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return go


def test_the_example_is_about_fifteen_lines() -> None:
    rule = MODULE.partition("def shortest_prompt")[2].partition("@register_policy")[0]
    assert len(rule.strip().splitlines()) - 2 <= 17  # without the line of def and the docstring


def test_it_is_listed(run) -> None:
    assert (
        "shortest prompt first, evicts the newest"
        in run("-c", KVGYM, "list", "policies", "--markdown").stdout
    )


def test_without_plugins_it_is_not_known(run) -> None:
    """Installed plugins must not make kvgym's tests fail (tests/conftest.py)."""
    known = (
        "from kvgym.policies.policy import POLICIES; print('shortest_prompt' in POLICIES, 'fcfs' in POLICIES)"
    )
    without = f"import os; os.environ['KVGYM_PLUGINS'] = '0'; {known}"
    assert run("-c", known).stdout == "True True\n"
    assert run("-c", without).stdout == "False True\n"


def test_it_runs_in_a_comparison(run) -> None:
    command = ["-c", KVGYM, "compare", "--scenario", "mc-sf-model-2", "--seeds", "2", "--no-report"]
    printed = run(*command, "--policies", "shortest_prompt:spare=8,fcfs").stdout
    assert re.search(r"shortest_prompt 8[‡!]* +\d", printed), printed


def test_every_way_of_running_it_is_equal_and_only_the_first_process_compiles(run) -> None:
    first, second = (run("-W", "error", "-c", textwrap.dedent(RUNS)) for _ in range(2))
    outcome = json.loads(first.stdout)
    assert outcome["equal"] == [True] * 4
    assert outcome["evictions"] > 0
    assert [name.partition(".")[2].partition("-")[0] for name, _ in outcome["code"]] == ["shortest_prompt"]
    assert json.loads(second.stdout) == outcome  # the same files, not written again
    assert "compiling" not in second.stderr


def test_the_page_runs(run) -> None:
    printed = run("-c", "\n".join(EXAMPLES), installed=False).stdout
    assert [line.split()[0] for line in printed.splitlines()] == [
        "shortest_prompt",
        "shortest_prompt:spare=1024",
        "fcfs",
    ]
