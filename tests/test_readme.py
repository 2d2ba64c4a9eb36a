"""README: all commands and examples run, in order, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import amount
from kvgym.workloads.traces import write_sample_trace

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SET_UP = [code for kind, code in BLOCKS if "pip install" in code]
COMMANDS = [
    line for kind, code in BLOCKS if kind == "bash" and code not in SET_UP for line in code.splitlines()
]
EXAMPLES = [code for kind, code in BLOCKS if kind == "python"]
# Smaller versions of long commands.
SMALLER = {
    "kvgym train hidden_kinds --out results/agent": (
        "kvgym train hidden_kinds updates=2 groups=2 evaluation.seeds=2 --out results/agent"
    ),
    "kvgym evaluate results/agent": "kvgym evaluate results/agent --seeds 3 --num-requests 100",
    "python scripts/examples/train_with_sb3.py": (
        "python scripts/examples/train_with_sb3.py --steps 4096 --seeds 1"
    ),
}
MOST_LINES = 150


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tracked and new files, like a fresh clone."""
    folder = tmp_path_factory.mktemp("checkout") / "kvgym"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    write_sample_trace(folder / "AzureLLMInferenceTrace_conv.csv", "azure")
    return folder


def shell(command, folder, path=None):
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
        "PIP_COMPILE": "0",  # of what pip installs, only what is imported is compiled to byte code
        "OMP_NUM_THREADS": "1",  # PyTorch's threads wait for each other in a loop while other tests have the cores
    }
    # Compiled code is shared with the other tests.
    environment |= {
        name: os.environ[name] for name in ("KVGYM_CACHE_DIR", "XDG_CACHE_HOME") if name in os.environ
    }
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def means_by_policy(table):
    return {
        name: float(mean)
        for name, mean in re.findall(r"^ (\w+)(?: [\d.]+)?[†§‡!]* +(\d+\.\d+)  \d", table, re.MULTILINE)
    }


def test_the_page_is_short():
    assert len(TEXT.splitlines()) <= MOST_LINES
    assert len(SET_UP) == 2
    assert len(COMMANDS) >= 8
    assert len(EXAMPLES) == 2


def test_the_first_command_sets_up_and_compares(checkout):
    """Without ``--long`` in the environment of the tests, which the second command sets up in the same way."""
    path = os.environ["PATH"] if amount.LONG else None
    command = SET_UP[0] if amount.LONG else SET_UP[0].split('".[report]"\n')[1].replace(".venv/bin/", "")
    done = shell(command, checkout, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "90,000 of 90,000 requests completed, each exactly once." in done.stdout
    assert "report.html" in done.stdout
    shown, printed = means_by_policy(TEXT.split("```text\n")[1].split("```")[0]), means_by_policy(done.stdout)
    assert len(shown) == 9
    for policy, mean in shown.items():  # processors differ in the last bits of exp and log
        assert printed[policy] == pytest.approx(mean, rel=0.02)
    shutil.rmtree(checkout / ".venv", ignore_errors=True)


def test_continuous_integration_runs_the_second_command():
    # It cannot run here, as it would run these tests again; .ci/run runs exactly this block.
    script = (ROOT / ".ci" / "run").read_text()
    assert "<!-- test command -->" in script
    assert TEXT.split("<!-- test command -->")[1].strip().startswith("```bash\n" + SET_UP[1])
    assert "-m pytest" in SET_UP[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_command(checkout, command):
    """Only the first command makes a report, which takes longer than all runs."""
    shorter = SMALLER.get(command, command).replace("kvgym compare", "kvgym compare --no-report")
    done = shell(shorter, checkout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(checkout, code):
    done = subprocess.run(
        [sys.executable, "-"], input=code, cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
