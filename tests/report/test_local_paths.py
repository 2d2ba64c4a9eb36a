"""Reports contain no local paths."""

import pytest
from markupsafe import Markup

from kvgym.experiments.comparison import compare
from kvgym.report.html import render
from kvgym.report.local_paths import strip_local_paths
from kvgym.workloads.traces.sample import write_sample_trace

from .conftest import scenario


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/jane/traces/a.csv", "a.csv"),
        ("/home/Jane Doe/a b.csv", "a b.csv"),
        ("~/traces/a.csv", "a.csv"),
        (r"C:\Users\Jane Doe\a.csv", "a.csv"),
        ("kvgym compare --trace /home/jane/a.csv --out=/data/x/res", "kvgym compare --trace a.csv --out=res"),
        ("kvgym compare --trace '/home/Jane Doe/a.csv' -n 3", "kvgym compare --trace 'a.csv' -n 3"),
        ("trace /home/jane/a.csv: 3 rows, see https://x.org/a/b", "trace a.csv: 3 rows, see https://x.org/a/b"),
        ("runs/a.csv, ../b/c.csv, tokens/s, p50 / p99, 1/2/3", "runs/a.csv, ../b/c.csv, tokens/s, p50 / p99, 1/2/3"),
        (Markup("<a>/home/jane/a</a>"), "<a>/home/jane/a</a>"),
        ({"path": ["/home/jane/a.csv", 3], "n": None}, {"path": ["a.csv", 3], "n": None}),
    ],
)  # fmt: skip
def test_texts(text, shown):
    assert strip_local_paths(text) == shown


def test_reports_name_a_trace_and_its_hash_without_folders(tmp_path):
    folder = tmp_path / "some one"
    folder.mkdir()
    write_sample_trace(folder / "trace.csv", "kvgym", num_requests=20)
    chosen = scenario(kv_capacity=20000, workload=str(folder / "trace.csv"))
    made = compare(chosen, ["fcfs"], seeds=1, keep_examples=True)
    text = render(made)
    assert "trace.csv" in text
    assert made.provenance["trace"]["sha256"] in text
    assert str(tmp_path) not in text
    assert "some one" not in text
