"""The script behind the tables of docs/capacity.md."""


def test_a_table_for_each_workload(scripts, azure_trace, capsys):
    options = ["--num-requests", "25", "--seeds", "1"]
    options += ["--policies", "fcfs a_min alpha_greedy:alpha=0.99,strict=True"]
    assert scripts("capacity_tables").main([str(azure_trace), *options]) == 0
    out = capsys.readouterr().out
    lmsys, azure = out.split("## azure")
    for part in (lmsys, azure):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert len(rows) == 3
        assert all(row.count("|") == 8 for row in rows)
    assert "| no progress |" in out
    assert "tbt_p |" not in out
