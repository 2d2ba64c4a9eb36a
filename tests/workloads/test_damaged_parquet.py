"""Damaged Parquet files cause an error of one line and no other output."""

import random
import subprocess
import sys

import pytest

from fuzz.file_kinds import trace_bytes
from fuzz.trees import mutate_bytes
from helpers.amount import some

pytest.importorskip("pyarrow")

ROWS = [{"arrival_time": float(i), "prompt_len": 10 + i, "output_len": 5, "name": "x" * i} for i in range(40)]
WHOLE = trace_bytes("parquet", ROWS)
READ = """
import sys
from pathlib import Path
from kvgym.errors import KVGymError
from kvgym.workloads.traces import read_trace
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_trace(path)
    except KVGymError as error:
        print("clear", len(str(error)) <= 300 and "\\n" not in str(error))
    else:
        print("fine", True)
"""


def damages(count):
    """Yield damaged copies: bytes changed, removed or doubled anywhere or in the metadata at the end; and truncated."""
    rng = random.Random(7)
    for k in range(count):
        data = bytearray(mutate_bytes(WHOLE, rng) if k % 3 == 0 else WHOLE)
        if k % 3 == 1:
            for _ in range(rng.choice((1, 2, 8))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif k % 3 == 2:
            data[len(data) - rng.randrange(1, 700)] = rng.randrange(256)
        yield bytes(data if k % 10 else data[: rng.randrange(len(data))])


def test_nothing_but_the_error_is_printed(tmp_path):
    for k, data in enumerate(damages(300)):
        (tmp_path / f"{k}.parquet").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 300
    assert all(line.endswith("True") for line in lines)
    assert sum(line.startswith("clear") for line in lines) > 150


@pytest.mark.parametrize("data", some([WHOLE[:4] + b"\xff" * 900 + WHOLE[904:], WHOLE[:-30], b"PAR1PAR1"], 3))
def test_a_command_prints_one_line(tmp_path, data):
    path = tmp_path / "trace.parquet"
    path.write_bytes(data)
    code = "from kvgym.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "-p", "fcfs", "--workload", str(path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {path}: damaged Parquet file")
    assert done.stdout == ""
