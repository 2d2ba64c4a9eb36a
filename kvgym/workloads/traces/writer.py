"""Write request tables in kvgym's own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.files import write_text
from kvgym.utils.frame import Frame
from kvgym.workloads.table import RequestTable


@explained
def write_requests(table: RequestTable, path: str | Path) -> None:
    """Write a table so that :func:`read_trace` returns the same columns, bit for bit; hashes are numbered again.

    Times since 1970 are read relative to the first one unless ``format="kvgym"`` is given. Columns have the names of
    :class:`RequestTable`, absent columns are omitted, and a target of infinity is an empty value. Notes are not
    written.

    Args:
        table: the requests.
        path: its suffix, ``.csv``, ``.jsonl`` or ``.parquet``, determines the container.

    Raises:
        ConfigError: another suffix, no such folder, or Parquet without PyArrow.
    """
    path = Path(path)
    columns = table.columns()
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")
    suffix = path.suffix.lower()
    frame = Frame(
        {
            name: np.ma.masked_equal(values, np.inf) if name.endswith("_slo") else values
            for name, values in columns.items()
        }
        | ({} if table.hashes is None else table.hashes.columns())
        | ({} if table.forecasts is None else table.forecasts.columns())
        | ({} if table.parents is None else table.parents.columns())
    )
    if suffix == ".csv":
        frame.write_csv(path)
    elif suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".jsonl":
        write_text(path, "".join(json.dumps(_listed(row)) + "\n" for row in frame.rows()))
    else:
        raise ConfigError(f"{path}: unknown suffix {shown(suffix)}; valid: .csv, .jsonl, .parquet")


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its hashes, forecasts and parents as lists."""
    lists = ("hash_ids", "predicted_tenths", "renewed_lens", "parents")
    return {
        name: [int(each) for each in value.split()] if name in lists and value is not None else value
        for name, value in row.items()
    }
