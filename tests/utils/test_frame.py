"""Tables of results: types, missing values, and files that other libraries read back unchanged."""

import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym.errors import ConfigError
from kvgym.experiments.result_files import write_table
from kvgym.utils.frame import Frame

MIXED = Frame(
    {
        "whole": [1, None, -3],
        "number": [0.1, 2, None],
        "flag": [True, None, False],
        "text": ["", None, 'a,"b"\n'],
        "array": np.array([np.nan, np.inf, 1e-7]),
        "scalar": [np.float64(1.5), np.int64(2), None],
    }
)
VALUES = {
    "whole": [1, None, -3],
    "number": [0.1, 2.0, None],
    "flag": [True, None, False],
    "text": ["", None, 'a,"b"\n'],
    "scalar": [1.5, 2.0, None],
}


def test_columns_have_one_type_and_none_for_missing_values():
    assert {name: MIXED[name].dtype.kind for name in MIXED.columns} == {
        "whole": "i", "number": "f", "flag": "b", "text": "O", "array": "f", "scalar": "f",
    }  # fmt: skip
    found = MIXED.to_dict()
    del found["array"]
    assert found == VALUES
    assert len(MIXED) == 3
    assert [row["whole"] for row in MIXED.rows()] == VALUES["whole"]
    assert Frame({"x": [1, "a", None, True]}).to_dict() == {"x": ["1", "a", None, "True"]}
    assert len(Frame.from_rows([])) == len(Frame({"x": []})) == 0


def test_csv(tmp_path):
    MIXED.write_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text("utf-8") == (
        "whole,number,flag,text,array,scalar\n"
        '1,0.1,true,"",NaN,1.5\n'
        ",2.0,,,inf,2.0\n"
        '-3,,false,"a,""b""\n",1e-07,\n'
    )


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"))
KINDS = (st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), TEXT)
COLUMNS = st.one_of(*(st.lists(st.one_of(st.none(), values), min_size=4, max_size=4) for values in KINDS))


@settings(max_examples=number(100, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.lists(COLUMNS, min_size=1, max_size=4))
def test_polars_reads_the_same_values(columns, tmp_path):
    frame = Frame({f"c{i}": values for i, values in enumerate(columns)})
    types = {"i": pl.Int64, "f": pl.Float64, "b": pl.Boolean, "O": pl.String}
    schema = {name: types[frame[name].dtype.kind] for name in frame.columns}
    expected = pl.DataFrame(frame.to_dict(), schema=schema)
    frame.write_parquet(tmp_path / "a.parquet")
    assert pl.read_parquet(tmp_path / "a.parquet").equals(expected)
    if len(columns) > 1:  # a line of one missing value is an empty line
        frame.write_csv(tmp_path / "a.csv")
        assert pl.read_csv(tmp_path / "a.csv", schema=schema).equals(expected)


def test_tables_are_equal_by_type_and_value():
    nan = Frame({"x": np.array([np.nan, 1.0])})
    assert nan.equals(Frame({"x": [float("nan"), 1.0]}))
    assert not nan.equals(Frame({"x": [None, 1.0]}))
    assert not Frame({"x": [1]}).equals(Frame({"x": [1.0]}))
    assert not Frame({"x": [1]}).equals(Frame({"y": [1]}))
    assert not Frame({"x": [1]}).equals(Frame({"x": [1], "y": [1]}))


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ConfigError, match="equally long, these are: a 1, b 2"):
        Frame({"a": [1], "b": [1, 2]})


def test_without_pyarrow_tables_are_csv_and_other_files_stay(tmp_path, monkeypatch):
    write_table(tmp_path, "tables", MIXED)
    (tmp_path / "runs.parquet").write_text("mine")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("kvgym.experiments.result_files.has_pyarrow", lambda: False)
    write_table(tmp_path, "runs", MIXED)
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs.csv",
        "runs.parquet",
        "tables.csv",
        "tables.parquet",
    }
    assert (tmp_path / "runs.parquet").read_text() == "mine"
    with pytest.raises(ConfigError, match=r'pip install "kvgym\[parquet\]", or use CSV'):
        MIXED.write_parquet(tmp_path / "runs.parquet")
