"""Writes request tables in kvgym's own format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.files import write_text
from kvgym.utils.frame import Frame
from kvgym.workloads.table import RequestTable


@explained
def write_requests(table: RequestTable, path: str | Path) -> None:
    """Write a table so that :func:`read_trace` returns the same columns, bit for bit.

    Times that count from 1970 are read from the first on unless ``format="kvgym"`` is told. Columns carry the names of
    :class:`RequestTable`, absent ones are left out, and a service-level target of infinity is an empty value. Notes
    are not written.

    Args:
        table: the requests.
        path: ends in ``.csv``, ``.jsonl`` or ``.parquet``, which decides the container.

    Raises:
        ConfigError: another ending, no such folder, or Parquet without PyArrow.
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
    )
    if suffix == ".csv":
        frame.write_csv(path)
    elif suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".jsonl":
        write_text(path, "".join(json.dumps(row) + "\n" for row in frame.rows()))
    else:
        raise ConfigError(f"{path}: unknown ending {shown(suffix)}; valid: .csv, .jsonl, .parquet")
