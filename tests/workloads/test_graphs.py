"""Agent graphs in files: written and read again, in any order of rows, with rows that are dropped, and mistakes."""

import numpy as np
import pytest

from kvgym.errors import TraceFormatError
from kvgym.workloads import Parents, RequestTable, load_trace, read_trace, write_requests


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_graph_is_written_and_read_again(suffix, tmp_path):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    table = RequestTable.from_columns(
        arrival_time=[0.0, 1, 1, 5],
        prompt_len=[3, 4, 5, 6],
        output_len=[1, 1, 2, 2],
        session_id=[0, 1, 2, 0],
        turn=[1, 1, 1, 2],
        think_time=[0.0, 0, 0.25, 1],
        job_id=[7, 7, 7, 7],
        parents=Parents.from_rows([[], [0], [0], [1, 2]]),
    )
    path = tmp_path / f"graph.{suffix}"
    write_requests(table, path)
    again = read_trace(path)
    for name, column in table.columns().items():
        np.testing.assert_array_equal(getattr(again, name), column)
    assert again.parents.start.tolist() == [0, 0, 1, 2, 5]
    assert again.parents.rows.tolist() == [0, 0, 0, 1, 2]


ROWS = """arrival_time,prompt_len,output_len,job_id,parents
9,5,1,b,"3 2"
4,5,1,b,
5,5,0,b,1
6,5,1,b,2
"""


def test_rows_may_be_in_any_order_and_dropped_ones_hand_their_parents_on(tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text(ROWS)
    trace = load_trace(path)
    assert trace.arrival_time.tolist() == [4, 6, 9]
    assert [each.tolist() for each in trace.extra["parents"].edges] == [[0, 0, 1], [1, 2, 2]]
    assert trace.extra["job_id"].tolist() == [0, 0, 0]
    assert trace.to_table(start=5).parents.edges[0].tolist() == [0]


@pytest.mark.parametrize(
    ("parents", "problem"),
    [
        ("0", r"graph.csv \(rows from 0\): parents, row 1: its parent, row 0, does not arrive before it"),
        ("9", "parents, row 1: there is no row 9; the last is 3"),
        ("x", "parents: rows has .* expected .* integers"),
    ],
)
def test_mistakes(parents, problem, tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text(ROWS.replace("4,5,1,b,", f"4,5,1,b,{parents}"))
    with pytest.raises(TraceFormatError, match=problem):
        load_trace(path)
