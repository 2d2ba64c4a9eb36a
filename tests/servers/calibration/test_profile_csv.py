"""Calibration with faulty profiles: a clear error, or no effect."""

import re

import pytest

from helpers.servers.profiles import (
    SIZES,
    all_reduce_ms,
    all_reduce_rows,
    attention_row,
    attention_rows,
    linear_rows,
    operator_ms,
    read,
    recipe,
    write,
    write_profiles,
)
from kvgym.errors import ConfigError
from kvgym.servers.calibration.calibrate import calibrate
from kvgym.servers.calibration.profile_csv import read_profiles

MEDIAN = "time_stats.{}.median"


@pytest.fixture
def folder(tmp_path):
    write_profiles(tmp_path, degree=2)
    return tmp_path


@pytest.fixture
def want(folder):
    return calibrate(folder, recipe(degree=2), "2026-01-02")


def _change(folder, name, change):
    """Change the rows of a file in place; ``change`` gets the list of them."""
    rows = read(folder / name)
    change(rows)
    write(folder / name, rows)


def _calibrate(folder, **changes):
    return calibrate(folder, recipe(degree=2, **changes), "2026-01-02")


def test_rows_of_other_settings_are_ignored(folder, want):
    other = {"n_embd": 4096, "n_q_head": 32}
    slow = [
        {**row, "time_stats.attn_decode.median": 9.0, "num_tensor_parallel_workers": 1}
        for row in attention_rows()
        if not row["is_prefill"]
    ]
    write(folder / "attention.csv", slow + attention_rows(degree=2) + attention_rows(degree=4))
    far = [{**row, MEDIAN.format("all_reduce"): 11.0, "devices_per_node": 1} for row in all_reduce_rows()]
    many = [{**row, "num_workers": 4} for row in all_reduce_rows()]
    write(folder / "all_reduce.csv", far + all_reduce_rows() + many)
    write(folder / "linear.csv", [{**row, "n_embd": 4096} for row in linear_rows()] + linear_rows((1, 2, 8)))
    assert _calibrate(folder) == want
    _change(folder, "attention.csv", lambda rows: [row.update(other) for row in rows if row["num_tensor_parallel_workers"] == "1"])  # fmt: skip  # noqa: E501
    with pytest.raises(ConfigError, match="n_q_head"):
        read_profiles(folder, recipe(degree=2, model=recipe().model.model_copy(update={"num_heads": 16})))


def test_the_order_of_rows_and_repeated_ones_change_nothing(folder, want):
    for name in ("linear.csv", "attention.csv", "all_reduce.csv"):
        rows = read(folder / name)
        write(folder / name, [*rows[::-1], *rows])
    assert _calibrate(folder) == want


def test_a_repeated_measurement_counts_as_the_median(folder):
    rows = linear_rows()
    again = [
        {**row, MEDIAN.format("mlp_act"): ms}
        for row in rows
        if row["num_tokens"] == 64
        for ms in (0.03, 0.05)
    ]
    write(folder / "linear.csv", rows + again)
    profiles = read_profiles(folder, recipe(degree=2))
    place = list(profiles.tokens).index(64)
    assert profiles.block[place] == pytest.approx(7 * operator_ms(64) + 0.03)


def test_reshapes_may_be_missing_or_zero(folder):
    for change in (lambda row: row.pop(MEDIAN.format("attn_output_reshape")), lambda row: row.update({MEDIAN.format("attn_input_reshape"): 0.0})):  # fmt: skip  # noqa: E501
        _change(folder, "attention.csv", lambda rows, change=change: [change(row) for row in rows])
        assert not read_profiles(folder, recipe(degree=2)).save[1].any()


def test_kv_writes_of_decodes_are_extrapolated_at_the_bandwidth(folder):
    for row in (rows := attention_rows(degree=2)):
        row["attn_kv_cache_save_median_ms"] = 5.0 if row["is_prefill"] else 0.003
    write(folder / "attention.csv", rows)
    count, ms = read_profiles(folder, recipe(degree=2)).save
    assert ms[0] == pytest.approx(0.004)
    per_token = 2 * 4 * 128 * 2 / 2  # K and V of four heads of 128 in 2 bytes, on two GPUs
    assert ms[-1] == pytest.approx(0.004 + 2e3 * per_token / 2.039e12 * (count[-1] - 16))


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("linear.csv", MEDIAN.format("mlp_act"), "missing columns mlp_act; has "),
        ("attention.csv", "kv_cache_size", "missing columns kv_cache_size"),
        ("all_reduce.csv", "time_stats.all_reduce.min", "missing columns all_reduce.min"),
        ("attention.csv", "num_tensor_parallel_workers", "no column num_tensor_parallel_workers.*any_tensor_parallel"),
    ],
)  # fmt: skip
def test_missing_columns_are_named(folder, name, column, message):
    _change(folder, name, lambda rows: [row.pop(column) for row in rows])
    with pytest.raises(ConfigError, match=rf"{name}: {message}"):
        _calibrate(folder)


def test_a_file_without_a_degree_needs_the_recipes_consent(folder, want):
    for name in ("linear.csv", "attention.csv"):
        rows = [row for row in read(folder / name) if row.pop("num_tensor_parallel_workers") == "2"]
        write(folder / name, rows)
    assert _calibrate(folder, profiles={"any_tensor_parallel": True}) == want


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_parallel": 4}, r"linear\.csv: no rows with num_tensor_parallel_workers = 4; there are 1, 2$"),
        ({"profiles": {"devices_per_node": 1}}, r"all_reduce\.csv: no rows with devices_per_node = 1; there are 2"),
        ({"profiles": {"linear": "gone.csv"}}, r"gone\.csv: no such file"),
        (
            {"profiles": {"linear": {"file": "linear.csv", "where": {"num_tokens": 7}}}},
            "num_tokens = 7; there are 1, 8, 16",
        ),
        ({"profiles": {"linear": {"file": "linear.csv", "where": {"gpu": "b"}}}}, "missing columns gpu"),
    ],
)  # fmt: skip
def test_errors_about_missing_rows_name_the_existing_values(folder, changes, message):
    with pytest.raises(ConfigError, match=message):
        _calibrate(folder, **changes)


@pytest.mark.parametrize(
    ("name", "operator", "factor", "unit"),
    [
        ("linear.csv", "attn_pre_proj", 1e-3, "seconds"),
        ("linear.csv", "attn_pre_proj", 1e3, "microseconds"),
        ("attention.csv", "attn_decode", 1e3, "microseconds"),
        ("attention.csv", "attn_prefill", 1e-3, "seconds"),
        ("all_reduce.csv", "all_reduce", 1e3, "microseconds"),
    ],
)
def test_other_units_are_refused(folder, name, operator, factor, unit):
    def change(rows):
        for row in rows:
            for column in row:
                if column.startswith(f"time_stats.{operator}.") and row[column]:
                    row[column] = float(row[column]) * factor

    _change(folder, name, change)
    with pytest.raises(
        ConfigError, match=f"{operator}.*must be milliseconds, these look like {unit}.*expected 0.02 to 50"
    ):
        _calibrate(folder)


PLACES = {
    "mlp_act": ("linear.csv", 11),
    "add": ("linear.csv", 65),
    "attn_decode": ("attention.csv", 5),
    "attn_prefill": ("attention.csv", 24),
    "all_reduce": ("all_reduce.csv", 15),
    "all_reduce.min": ("all_reduce.csv", 15),
}
"""File and row of times at which one is changed."""


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        *(("mlp_act", value, "is not a number > 0") for value in ("nan", "-0.5", "0", "")),
        ("attn_decode", "fast", "'fast' is not a number > 0"),
        ("attn_prefill", "inf", "is not a number > 0"),
        ("all_reduce", "nan", "is not a number > 0"),
        *((column, 1000, "times off the rows") for column in PLACES),
        ("all_reduce.min", 0.2, "times off the rows .*allowed: 4"),
        ("attn_decode", 0.001, "times off the rows"),
        ("mlp_act", 30, "times off the rows"),
    ],
)
def test_wrong_times_are_named(folder, column, value, message):
    """A text replaces a time, a number multiplies it. A smallest time bounds the times of all smaller sizes."""
    name, row = PLACES[column]
    full = f"time_stats.{column}" if column.endswith(".min") else MEDIAN.format(column)

    def change(rows):
        rows[row][full] = value if isinstance(value, str) else value * float(rows[row][full])

    _change(folder, name, change)
    with pytest.raises(
        ConfigError, match=rf"{re.escape(name)}: line {row + 2}, column {re.escape(column)}: .*{message}"
    ):
        _calibrate(folder)


def test_invalid_times_in_unused_rows_are_ignored(folder, want):
    _change(folder, "linear.csv", lambda rows: rows[10].update({MEDIAN.format("mlp_act"): "nan"}))  # degree 1
    assert _calibrate(folder) == want


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("is_prefill", "maybe", "must be True or False, got 'maybe'"),
        ("batch_size", "0", "is not a number >= 1"),
        ("kv_cache_size", "-3", "is not a number >= 0"),
        ("num_tensor_parallel_workers", "two", "'two' is not a number"),
    ],
)
def test_keys_are_checked(folder, column, value, message):
    _change(folder, "attention.csv", lambda rows: rows[2].update({column: value}))
    with pytest.raises(ConfigError, match=rf"attention\.csv: line 4, column {column}: .*{message}"):
        _calibrate(folder)


def test_different_methods_of_measurement_are_not_mixed(folder, want):
    rows = [{**row, "attention_backend": "A"} for row in attention_rows(degree=2)]
    rows += [{**row, "attention_backend": "B"} for row in attention_rows(degree=2)]
    write(folder / "attention.csv", rows)
    with pytest.raises(
        ConfigError, match="several values of attention_backend: A, B; choose one in the recipe"
    ):
        _calibrate(folder)
    chosen = {"file": "attention.csv", "where": {"attention_backend": "B"}}
    assert _calibrate(folder, profiles={"attention": chosen}) == want


def test_too_few_rows(folder):
    write(folder / "attention.csv", [row for row in attention_rows(degree=2) if not row["is_prefill"]])
    with pytest.raises(ConfigError, match="0 rows of prefills of one request"):
        _calibrate(folder)
    prefills = [row for row in attention_rows(degree=2) if row["is_prefill"]]
    write(folder / "attention.csv", [attention_row(1, 0, k, 0.01, degree=2) for k in (32, 64)] + prefills)
    with pytest.raises(ConfigError, match="decode attention: 2 different measurements; at least 4"):
        _calibrate(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfea\x00", "encoded as UTF-16"),
        (b"", "the file is empty"),
        (b"{}", "not a CSV file|no records"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 fields; expected 2"),
    ],
)
def test_files_without_a_table_are_refused(folder, content, message):
    (folder / "linear.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^profile .*linear\.csv.*({message})"):
        _calibrate(folder)


def test_all_reduce_uses_the_minimum_times(folder):
    size, low, median = read_profiles(folder, recipe(degree=2)).all_reduce
    assert list(size) == SIZES
    assert low[3] == pytest.approx(all_reduce_ms(SIZES[3]))
    assert median[3] == pytest.approx(all_reduce_ms(SIZES[3]) + 0.05)


@pytest.mark.parametrize("column", ["attn_output_reshape", "attn_kv_cache_save"])
def test_implausible_reshapes_and_writes_are_refused(folder, column):
    """They are in no held-out operator group, so only this check detects them."""
    rows = [{**row, MEDIAN.format(column): 0.001} for row in attention_rows(degree=2)]
    write(folder / "attention.csv", rows)
    read_profiles(folder, recipe(degree=2))
    for factor, message in ((1e3, "look like microseconds"), (1e-3, "look like seconds")):
        write(folder / "attention.csv", [{**row, MEDIAN.format(column): 0.001 * factor} for row in rows])
        with pytest.raises(ConfigError, match=f"{column}: times must be milliseconds, these {message}"):
            read_profiles(folder, recipe(degree=2))
    write(folder / "attention.csv", [*rows[:5], {**rows[5], MEDIAN.format(column): 100.0}, *rows[6:]])
    with pytest.raises(
        ConfigError, match=rf"attention\.csv: line 7, column {column}: 100 ms is .*times off the rows"
    ):
        read_profiles(folder, recipe(degree=2))
