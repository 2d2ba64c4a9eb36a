"""Tables of a run: their schema, and reading them back."""

import numpy as np
import polars as pl
import pytest

from kvgym import make_batch_time, read_trace, simulate
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.contract.cases import requests, with_common_prefixes
from kvgym.report.export.records import ITERATIONS, REQUESTS, iteration_frame, request_frame, write_frame
from kvgym.simulator.system import System
from kvgym.workloads.forecasts import Forecasts
from kvgym.workloads.graphs import Parents
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

UNIT = make_batch_time({"kind": "unit"})
FULL = RequestTable.from_columns(
    arrival_time=[0.1, 0.30000000000000004, 2 / 3],
    prompt_len=[3, 5, 2],
    output_len=[2, 3, 1],
    predicted_output_len=[2, 4, 1],
    predicted_low=[1, 3, 1],
    predicted_high=[3, 5, 1],
    class_id=[0, 1, 0],
    priority=[0, -1, 2],
    ttft_slo=[1.5, np.inf, 3.0],
    tbt_slo=[1.0, 2.0, np.inf],
    e2e_slo=[5.0, np.inf, 6.0],
    client_id=[2, 0, 0],
    session_id=[4, 4, 0],
    turn=[1, 3, 1],
    think_time=[0.0, 0.1, 0.0],
    gap_kind=[0, 1, 0],
    job_id=[3, 3, 3],
    parents=Parents.from_rows([[], [], [0]]),
    **{f"feature_{k}": [0.5, -1.0 / 3, float(k)] for k in range(4)},
    forecasts=Forecasts.from_rows([range(k, k + 10) for k in (1, 2, 3)], [[2], [3, 4], []], every=1),
    hashes=BlockHashes.from_rows([[0, 1], [0, 2, 3, 4], [5]], [3, 7, 2], 2),
)


def result_of(table=FULL, workers=1, **options):
    system = System(kv_capacity=30, batch_time=UNIT, **options)
    return simulate(system if workers == 1 else system.replicate(workers), table, "fcfs", log=True)


def conforms(frame, fields, missing=()):
    expected = {name: f.dtype for name, f in fields.items() if name not in missing}
    kinds = {"bool": "Boolean", "int64": "Int64", "float64": "Float64", "object": "String"}
    assert {name: kinds[str(frame[name].dtype)] for name in frame.columns} == expected
    assert list(frame.columns) == [name for name in fields if name in expected]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_written_files_match_the_schema(tmp_path, file_format):
    result = result_of(workers=2)
    for name, frame, fields in (
        ("requests", request_frame(result), REQUESTS),
        ("iterations", iteration_frame(result), ITERATIONS),
    ):
        cached = {f.present for f in fields.values()} - {"with a prefix cache", "with speculation"}
        fields = {column: f for column, f in fields.items() if f.present in cached}
        conforms(frame, fields)
        path = write_frame(frame, tmp_path, name, file_format)
        assert path.name == f"{name}.{file_format}"
        types = {column: getattr(pl, f.dtype) for column, f in fields.items()}
        back = pl.read_csv(path, schema=types) if file_format == "csv" else pl.read_parquet(path)
        assert back.to_dict(as_series=False) == frame.to_dict()


def test_optional_columns():
    bare = RequestTable([0.0], [2], [1])
    optional = {name for name, f in REQUESTS.items() if f.present != "always"}
    conforms(request_frame(result_of(bare)), REQUESTS, missing=optional)
    columns = {*FULL.columns(), *FULL.hashes.columns(), *FULL.forecasts.columns(), "parents", "worker"}
    assert optional == columns - {"arrival_time", "prompt_len", "output_len"}


def test_columns_of_the_prefix_cache():
    system = System(40, UnitBatchTime(), prefix_cache="computed", prefix_block=2)
    table = with_common_prefixes(requests(1, 12), 2, 1)
    result = simulate(system, table, "fcfs", log=True, compiled=False)
    frame = iteration_frame(result)
    conforms(frame, ITERATIONS, missing=("draft_tokens", "accepted_tokens"))
    assert sum(frame["hit_tokens"]) == sum(
        result.worker[0][name] for name in ("total_hit_tokens", "total_hit_resumed")
    )
    assert sum(frame["hit_tokens"]) > 0
    assert max(frame["kv_cached"]) > 0
    assert (result.log["kv_tokens"] + result.log["kv_cached"] <= 40).all()


def test_missing_events_are_null():
    late = RequestTable([0.0, 0.0, 9.0], [9, 25, 2], [3, 2, 1])
    frame = request_frame(result_of(late, workers=2, horizon=1.5))
    assert frame["worker"].tolist() == [0, 1, None]
    assert frame["finish_time"].tolist() == [None, 2, None]
    assert frame["start_time"].tolist() == [0, 0, None]
    assert frame["max_token_gap"].tolist() == [1, 1, None]
    assert frame["slo_met"].tolist() == [False, True, False]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_reading_back_gives_the_same_run(tmp_path, file_format):
    result = result_of()
    path = write_frame(request_frame(result), tmp_path, "requests", file_format)
    again = read_trace(path)
    for name, column in FULL.columns().items():
        np.testing.assert_array_equal(again.columns()[name], column, name)
    assert again.hashes.columns()["hash_ids"].tolist() == ["0 1", "0 2 3 4", "5"]
    assert again.hashes.chain_tokens.tolist() == [3, 7, 2]
    assert "slo_met" in next(note for note in again.notes if note.startswith("Ignored columns"))
    assert result_of(again).requests.tobytes() == result.requests.tobytes()


def test_other_formats_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="valid are csv, parquet"):
        write_frame(request_frame(result_of()), tmp_path, "requests", "xlsx")
    with pytest.raises(ValueError, match="log=True"):
        iteration_frame(simulate(System(kv_capacity=30, batch_time=UNIT), FULL, "fcfs"))
