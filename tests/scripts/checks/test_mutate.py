"""Mutations of a toy module: which there are, which survive, and what a second call leaves out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.script_folders import importing_from

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts" / "checks"

TOY = '''"""Numbers, compared."""


def clamp(x: int, low: int = 0) -> int:
    """Return x, but 1 + low at least; "a < b" here is no comparison."""
    if not x > low and True:
        return low + 1  # at least 1
    return min(x, 100)


class Counter:
    total = 3

    def count(self, n):
        for k in range(n):
            self.total += k
            if k == 2:
                break
        return self.total
'''

TESTS = """
from toy import clamp

def test_clamp():
    assert [clamp(x) for x in (-5, 0, 1, 7, 200)] == [1, 1, 1, 7, 100]
"""


@pytest.fixture(scope="module")
def mutations():
    with importing_from(".") as load:
        yield load("mutating.mutations")


def changes(mutations, source):
    return [(m.function, m.line, m.before, m.after) for m in mutations.all_mutations(source)]


def test_small_changes_of_all_kinds(mutations):
    found = changes(mutations, TOY)
    condition, addition = "if not x > low and True:", "return low + 1 # at least 1"
    assert {after for _, _, before, after in found if before == condition} == {
        "if (not (not x > low and True)):",
        "if x > low and True:",
        "if not x <= low and True:",
        "if not x >= low and True:",
        "if not x > low or True:",
        "if not x > low and False:",
    }
    assert {after for _, _, before, after in found if before == addition} == {
        "return low - 1 # at least 1",
        "return low + 0 # at least 1",
        "return low + 2 # at least 1",
    }
    assert ("clamp", 8, "return min(x, 100)", "return max(x, 100)") in found
    assert ("Counter.count", 16, "self.total += k", "self.total -= k") in found
    assert ("Counter.count", 16, "self.total += k", "pass") in found
    assert ("Counter.count", 18, "break", "pass") in found
    # Nothing outside of functions, no default, no docstring.
    assert {line for _, line, *_ in found} == {6, 7, 8, 16, 17, 18}


def test_mutations_are_texts_that_differ_in_one_place(mutations):
    found = mutations.all_mutations(TOY)
    texts = [m.apply(TOY) for m in found]
    assert len(set(texts)) == len(texts)
    for mutation, text in zip(found, texts, strict=True):
        compile(text, "toy.py", "exec")
        changed = [(a, b) for a, b in zip(TOY.splitlines(), text.splitlines(), strict=True) if a != b]
        assert [(" ".join(a.split()), " ".join(b.split())) for a, b in changed] == [
            (mutation.before, mutation.after)
        ]


def test_a_sample_is_even_and_does_not_move_with_the_rest_of_the_module(mutations):
    every = mutations.all_mutations(TOY)
    sample = mutations.sample(every, 8, 0)
    assert sample == mutations.sample(every, 8, 0)
    assert sample != mutations.sample(every, 8, 1)
    assert [m.function for m in sample] == ["clamp"] * 4 + ["Counter.count"] * 4
    assert mutations.sample(every, 1000, 0) == every
    moved = mutations.all_mutations("import os\n" + TOY.replace("100", "1000 - 1"))
    assert {m.after for m in mutations.sample(moved, 8, 0) if "count" in m.function} == {
        m.after for m in sample if "count" in m.function
    }


HALF = "def half(x):\n    return x // 2\n"
WEAK = "from toy import half\n\ndef test_half():\n    assert half(4) == 2\n"


def run(folder, source, tests, equivalent=None):
    """Try all mutations of a module in another process; return the exit status and what it prints."""
    (folder / "toy.py").write_text(source)
    (folder / "test_toy.py").write_text(tests)
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from mutating import trying\n"
        "from mutating.campaign import Campaign\n"
        "from pathlib import Path\n"
        f"root, trying.TEST_SECONDS = Path({str(folder)!r}), 1\n"
        f"campaign = Campaign(root, {{'toy.py': ('test_toy.py',)}}, {equivalent or {}!r}, root / 'found.jsonl')\n"
        "sys.exit(campaign.run(100, 0))"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which would take most of the time
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (folder / "toy.py").read_text() == source
    return done.returncode, done.stdout + done.stderr


def test_a_survivor_is_shown_until_a_test_notices_it(tmp_path, capsys):
    status, output = run(tmp_path, HALF, WEAK)
    results = tmp_path / "found.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert {row["after"]: row["outcome"] for row in rows} == {
        "return x * 2": "killed",
        "return x / 2": "survived",
        "return x // 1": "killed",
        "return x // 3": "killed",
    }
    assert {row["by"] for row in rows} == {"test_toy.py::test_half", ""}
    assert status == 1
    assert "survived: toy.py:2 in half\n  - return x // 2\n  + return x / 2\n" in output
    assert "| toy.py | 4 | 3 | 1 | 0 |" in output

    results.write_bytes(results.read_bytes() + b'{"module": "toy.py", "cut sho')
    with importing_from(".") as load:
        campaign = load("mutating.campaign").Campaign(tmp_path, {"toy.py": ("test_toy.py",)}, {}, results)
        assert campaign.run(100, 0) == 1
    again = capsys.readouterr().out
    assert "4 mutations of 4, 0 to try" in again
    assert "| toy.py | 4 | 3 | 1 | 0 | not run |" in again

    status, output = run(tmp_path, HALF, WEAK.replace("4) == 2", "7) == 3"))
    assert status == 0
    assert "1 to try" in output  # a better test may notice a survivor; the others stay killed
    assert "| toy.py | 4 | 4 | 0 | 0 |" in output
    assert "4 to try" in run(tmp_path, HALF + "\n", WEAK)[1]


def test_a_reason_explains_a_survivor(tmp_path):
    key = ("toy.py", "half", "return x // 2", "return x / 2")
    gone = ("toy.py", "half", "return x >> 1", "return x << 1")
    status, output = run(tmp_path, HALF, WEAK, {key: "All numbers are even.", gone: "It was never there."})
    assert status == 0
    assert "3 to try" in output
    assert "  + return x / 2\n  All numbers are even.\n" in output
    assert "outdated reason: toy.py, half no longer has this line\n  - return x >> 1\n" in output
    assert "| toy.py | 4 | 3 | 0 | 1 |" in output


@pytest.mark.long
def test_a_mutation_that_loops_for_ever_is_noticed(tmp_path):
    loop = "def count(n):\n    while n:\n        n -= 1\n    return n\n"
    status, _ = run(tmp_path, loop, "from toy import count\n\ndef test_count():\n    assert count(3) == 0\n")
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    by = {row["after"]: row["by"] for row in rows}
    assert by["n += 1"] == "test_toy.py::test_count (CPU time)"
    assert by["while (not (n)):"] == "test_toy.py::test_count"
    assert status == 0


def test_tests_that_fail_without_a_mutation_end_the_campaign(tmp_path):
    status, output = run(tmp_path, HALF, WEAK.replace("4) == 2", "4) == 3"))
    assert status == 1
    assert "toy.py: its nearest tests fail without a mutation" in output
    assert not (tmp_path / "found.jsonl").exists()


def test_the_files_of_the_script_are_as_it_reads_them():
    """Modules and tests are there; a reason belongs to one of the modules and names a mutation before and after."""
    with importing_from(".") as load:
        campaign = load("mutating.campaign")
        modules = campaign.read_modules(SCRIPTS / "mutating" / "modules.yaml")
        equivalent = campaign.read_equivalent(SCRIPTS / "mutating" / "equivalent.yaml")
    root = SCRIPTS.parents[1]
    assert all((root / module).is_file() for module in modules)
    assert all((root / test.partition("::")[0]).is_file() for tests in modules.values() for test in tests)
    assert {module for module, *_ in equivalent} <= set(modules)
    assert all(equivalent.values())
