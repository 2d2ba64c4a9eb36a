"""The script that compares routers with prefix caches."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_tables(fleets: Any, capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    script = fleets("compare_prefix_routers")
    options = ["--workers", "2", "--seeds", "1", "--num-requests", "30", "--routers", "lmetric"]
    script.main(["sessions", *options])
    trace = f"{tmp_path}/trace.jsonl"
    with open(trace, "w") as file:
        for k in range(20):
            row = {"timestamp": 500 * k, "input_length": 600, "output_length": 5, "hash_ids": [0, k + 1]}
            file.write(json.dumps(row) + "\n")
    script.main(["mooncake", "--trace", trace, "--part", "2", "8", *options])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `lmetric` |")]
    assert len(rows) == 2


def test_specs(fleets: Any) -> None:
    assert fleets("compare_prefix_routers").specs("lmetric") == [
        "lmetric:queued=False",
        "lmetric:queued=True",
    ]
