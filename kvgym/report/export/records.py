"""Per-request records and the per-iteration log of a run as tables with a documented schema, CSV or Parquet.

docs/exports.md shows the schema. A file of requests is also a trace in kvgym's own format: reading it as a trace
ignores the other columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, shown
from kvgym.metrics.attainment import slo_met
from kvgym.policies.runner import SimulationResult
from kvgym.utils.arguments import explained
from kvgym.utils.frame import Frame, pyarrow
from kvgym.workloads.layout import FEATURE_COLUMNS

FILE_FORMATS = ("csv", "parquet")


@dataclass(frozen=True)
class Field:
    """A column of a table.

    Attributes:
        dtype: its type; CSV has the same values as text.
        unit: unit, "" where there is none.
        meaning: what it is, and when it is null.
        present: when the table has the column.
    """

    dtype: str
    unit: str
    meaning: str
    present: str = "always"


REQUESTS: dict[str, Field] = {
    "request_id": Field("Int64", "", "row of the run's requests, by arrival"),
    "arrival_time": Field("Float64", "s", "when it arrived"),
    "prompt_len": Field("Int64", "tokens", "its prompt"),
    "output_len": Field("Int64", "tokens", "its true output"),
    "predicted_output_len": Field(
        "Int64", "tokens", "the prediction that schedulers saw", "with predictions"
    ),
    "predicted_low": Field("Int64", "tokens", "lower end of the predicted interval", "with intervals"),
    "predicted_high": Field("Int64", "tokens", "upper end of the predicted interval", "with intervals"),
    "class_id": Field("Int64", "", "its class", "with classes"),
    "priority": Field("Int64", "", "larger is more important", "with priorities"),
    "ttft_slo": Field("Float64", "s", "target of its time to first token; inf = none", "with targets"),
    "tbt_slo": Field("Float64", "s", "target of every gap between its tokens; inf = none", "with targets"),
    "e2e_slo": Field("Float64", "s", "deadline after its arrival; inf = none", "with deadlines"),
    "client_id": Field("Int64", "", "its client", "with clients"),
    "session_id": Field("Int64", "", "its session", "with sessions"),
    "turn": Field("Int64", "", "its turn in the session, from 1", "with sessions"),
    "think_time": Field("Float64", "s", "from the end of the previous turn to this one", "with think times"),
    "gap_kind": Field("Int64", "", "what that time is: 0 a person, 1 a tool", "with kinds of gaps"),
    "job_id": Field("Int64", "", "its job", "with jobs"),
    **{
        name: Field("Float64", "", "a number known at its arrival", "with feature columns")
        for name in FEATURE_COLUMNS
    },
    "hash_ids": Field("String", "", "its block hashes, separated by spaces", "with hashes"),
    "hash_block": Field("Int64", "tokens", "what a hash stands for", "with hashes"),
    "hash_tokens": Field("Int64", "tokens", "that its hashes cover", "with hashes"),
    "predicted_tenths": Field(
        "String", "tokens", "its predicted distribution, ten lengths", "with distributions"
    ),
    "renewed_lens": Field("String", "tokens", "its renewed predictions", "with renewals"),
    "renew_every": Field("Int64", "tokens", "between two renewals", "with renewals"),
    "parents": Field(
        "String", "", "request_id of those that had to end before it arrived", "with agent graphs"
    ),
    "start_time": Field("Float64", "s", "first admission; null: never"),
    "first_token_time": Field("Float64", "s", "first output token; null: none yet"),
    "finish_time": Field("Float64", "s", "last output token; null: not finished"),
    "max_token_gap": Field("Float64", "s", "longest time between two new output tokens; null: no two"),
    "worker": Field("Int64", "", "its last worker, from 0; null: none yet", "in clusters"),
    "num_evictions": Field("Int64", "", "evictions: returns to the queue"),
    "num_recomputed_tokens": Field("Int64", "tokens", "KV tokens lost to evictions"),
    "slo_met": Field("Boolean", "", "finished within all of its targets"),
}
"""Columns of the per-request records, in order."""

_CACHED, _DRAFTED = "with a prefix cache", "with speculation"

ITERATIONS: dict[str, Field] = {
    "start_time": Field("Float64", "s", "when the batch began"),
    "end_time": Field("Float64", "s", "when it ended; rows are in this order"),
    "worker": Field("Int64", "", "worker of the batch, from 0"),
    "num_admitted": Field("Int64", "requests", "admitted before it"),
    "num_evicted": Field("Int64", "requests", "evicted before it"),
    "num_finished": Field("Int64", "requests", "finished with it"),
    "num_active": Field("Int64", "requests", "active while it ran, paused ones included"),
    "num_waiting": Field("Int64", "requests", "in the queue when it began"),
    "num_prefills": Field("Int64", "requests", "with a prefill chunk"),
    "prefill_tokens": Field("Int64", "tokens", "in those chunks"),
    "num_decodes": Field("Int64", "requests", "that decoded a token"),
    "num_output_tokens": Field("Int64", "tokens", "output made, repeats after lost progress included"),
    "draft_tokens": Field("Int64", "tokens", "drafts that decodes verified", _DRAFTED),
    "accepted_tokens": Field("Int64", "tokens", "drafts that were right", _DRAFTED),
    "kv_tokens": Field("Int64", "tokens", "memory in use while it ran, of whole blocks"),
    "hit_tokens": Field("Int64", "tokens", "found in the prefix cache by the admitted requests", _CACHED),
    "kv_cached": Field("Int64", "tokens", "in the prefix cache and not in use while it ran", _CACHED),
}
"""Columns of the per-iteration log, in order."""


def schema_table(fields: Mapping[str, Field]) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return headings and rows of a schema for docs/exports.md."""
    rows = {name: (f"`{f.dtype}`", f.unit or "–", f.meaning, f.present) for name, f in fields.items()}
    return ("column", "type", "unit", "meaning", "present"), rows


@explained
def request_frame(result: SimulationResult) -> Frame:
    """Return one row per request with the columns of :data:`REQUESTS`."""
    r, table = result.requests, result.table
    columns: dict[str, Any] = {"request_id": np.arange(len(table))}
    columns |= table.columns()
    columns |= {} if table.hashes is None else table.hashes.columns()
    columns |= {} if table.forecasts is None else table.forecasts.columns()
    columns |= {} if table.parents is None else table.parents.columns()
    for name in ("start_time", "first_token_time", "finish_time"):
        columns[name] = r[name]
    columns["max_token_gap"] = np.where(r["max_token_gap"] > 0, r["max_token_gap"], np.nan)
    if len(result.worker) > 1:
        columns["worker"] = np.where(r["worker"] >= 0, r["worker"].astype(np.float64), np.nan)
    columns["num_evictions"] = r["num_evictions"]
    columns["num_recomputed_tokens"] = r["num_recomputed_tokens"]
    columns["slo_met"] = slo_met(result)
    return _frame(columns, REQUESTS)


@explained
def iteration_frame(result: SimulationResult) -> Frame:
    """Return the per-iteration log with the columns of :data:`ITERATIONS`.

    Raises:
        ValueError: the run kept no log.
    """
    if result.log is None:
        raise ValueError("this run kept no per-iteration log; run it with log=True")
    absent = {
        *([] if result.system.prefix_unit else [_CACHED]),
        *([] if result.system.speculation else [_DRAFTED]),
    }
    names = [name for name, f in ITERATIONS.items() if f.present not in absent]
    return _frame({name: result.log[name] for name in names}, ITERATIONS)


def write_frame(frame: Frame, folder: Path, name: str, file_format: str) -> Path:
    """Write a table as ``name.csv`` or ``name.parquet``.

    Raises:
        ConfigError: another format, or Parquet without PyArrow.
    """
    path = folder / f"{name}.{check_format(file_format)}"
    if file_format == "csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


def check_format(file_format: str) -> str:
    """Return a format of tables.

    Raises:
        ConfigError: an unknown format, or Parquet without PyArrow.
    """
    if file_format not in FILE_FORMATS:
        raise ConfigError(f"records as {shown(file_format)}: valid are {', '.join(FILE_FORMATS)}")
    if file_format == "parquet":
        pyarrow()
    return file_format


def _frame(columns: Mapping[str, Any], fields: Mapping[str, Field]) -> Frame:
    """Return columns as a table, NaN as a missing value, in the types of their fields."""
    return Frame({name: _typed(np.asarray(column), fields[name].dtype) for name, column in columns.items()})


def _typed(column: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a column as int64, float64 or bool, masked where it is NaN."""
    missing = np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool)
    kind = {"String": object, "Int64": np.int64, "Float64": np.float64, "Boolean": np.bool_}[dtype]
    if not missing.any():
        return column.astype(kind)
    return np.ma.MaskedArray(np.where(missing, 0, column).astype(kind), missing)
