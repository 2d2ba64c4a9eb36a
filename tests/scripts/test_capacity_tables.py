"""The script behind the tables of docs/capacity.md."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "capacity_tables.py"


def test_a_table_for_each_workload(azure_trace, capsys):
    spec = importlib.util.spec_from_file_location("capacity_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    options = [
        "--num-requests",
        "25",
        "--seeds",
        "1",
        "--policies",
        "fcfs a_min alpha_greedy:alpha=0.99,strict=True",
    ]
    assert module.main([str(azure_trace), *options]) == 0
    out = capsys.readouterr().out
    lmsys, azure = out.split("## azure")
    for part in (lmsys, azure):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert len(rows) == 3
        assert all(row.count("|") == 8 for row in rows)
    assert "| no progress |" in out
    assert "tbt_p |" not in out
