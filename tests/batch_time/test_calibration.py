"""Calibration from small synthetic profiles whose truth is known, and the fits it uses."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.batch_time.calibration import calibrate, fit_all_reduce, thin, write_hardware
from kvgym.batch_time.fitting import fit_prefill, isotonic, isotonic_surface
from kvgym.batch_time.hardware import load_hardware
from kvgym.batch_time.profile_csv import BLOCK_OPERATORS
from kvgym.batch_time.recipes import RECIPES
from kvgym.errors import ConfigError

TP2, TP1, _ = RECIPES


def _write(path: Path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def decode_ms(n, k):
    return 0.01 + 1e-6 * n * k


def prefill_ms(c, k):
    return 0.02 + 1e-7 * c * c + 2e-7 * c * k


def _profiles(folder: Path, recipe, sampled):
    linear = [
        {
            **{f"time_stats.{name}.median": 0.01 * (1 + t / 256) for name in BLOCK_OPERATORS},
            "time_stats.add.median": 0.002,
            "time_stats.add.min": 0.001,
            "time_stats.emb.median": 0.003,
            "num_tokens": t,
            "num_tensor_parallel_workers": workers,
        }
        for t in (1, 8, *range(16, 513, 16))
        for workers in (1, 2)
    ]
    _write(folder / recipe.linear, linear)

    def row(batch, chunk, context, prefill, decode):
        values = {
            "attn_prefill": prefill,
            "attn_decode": decode,
            "attn_input_reshape": 0.0,
            "attn_output_reshape": 0.001,
        }
        name = "{}_median_ms" if sampled else "time_stats.{}.median"
        return {
            **{name.format(key): value for key, value in values.items()},
            "batch_size": batch,
            "prefill_chunk_size": chunk,
            "kv_cache_size": context,
            "is_prefill": chunk > 0,
        }

    attention = [row(n, 0, k, "", decode_ms(n, k)) for n in (1, 2, 4, 8, 16) for k in (32, 128, 512, 1024)]
    attention += [row(1, c, k, prefill_ms(c, k), "") for c in (64, 128, 256, 512) for k in (0, 128, 512)]
    _write(folder / recipe.attention, attention)
    if recipe.all_reduce:
        sizes = [2048 * 2**i for i in range(16)]
        wait = [0.05 if i % 2 and size < 7e6 else 0.0 for i, size in enumerate(sizes)]
        _write(
            folder / recipe.all_reduce,
            [
                {
                    "time_stats.all_reduce.min": 0.01 + size * 5e-9,
                    "time_stats.all_reduce.median": 0.01 + size * 5e-9 + w,
                    "size": size,
                    "num_workers": 2,
                }
                for size, w in zip(sizes, wait, strict=True)
            ],
        )


@pytest.mark.parametrize(("recipe", "sampled"), [(TP2, False), (TP1, True)])
def test_calibrating_recovers_the_truth(tmp_path, recipe, sampled):
    _profiles(tmp_path, recipe, sampled)
    content = calibrate(tmp_path, recipe, "2026-01-02")
    write_hardware(content, tmp_path / "made.yaml")
    hardware = load_hardware(tmp_path / "made.yaml")
    assert hardware.date == "2026-01-02"
    assert hardware.valid_range["prefill_chunk"] == (64, 512)
    assert hardware.fit_error["linear"].median < 0.001
    assert hardware.fit_error["attention_prefill"].median < 0.05

    layers, tokens = hardware.model.num_layers, 100
    linear = 8 * 0.01 * (1 + tokens / 256) + 2 * 0.002 + 0.001
    reduce = 2 * (0.01 + tokens * 16384 * 5e-9) if recipe.tensor_parallel == 2 else 0.0
    head = hardware.tables.lm_head.weights_ms
    expected = layers * (linear + reduce + prefill_ms(100, 200)) + 0.003 + head
    got = hardware.batch_time(engine="none")(
        num_prefills=1,
        prefill_tokens=100,
        prefill_context=200,
        prefill_squares=10_000,
        prefill_products=20_000,
    )
    assert 1e3 * got == pytest.approx(expected, rel=0.03)

    linear = 8 * 0.01 * (1 + 8 / 256) + 2 * 0.002 + 0.001
    reduce = 2 * (0.01 + 8 * 16384 * 5e-9) if recipe.tensor_parallel == 2 else 0.0
    expected = layers * (linear + reduce + decode_ms(8, 300)) + 0.003 + head
    for composition in ("kvgym", "homogeneous"):
        model = hardware.batch_time(composition=composition, engine="none")
        assert 1e3 * model(num_decodes=8, decode_context=2400) == pytest.approx(expected, rel=0.02)


def test_calibrating_twice_gives_the_same_file(tmp_path):
    _profiles(tmp_path, TP1, True)
    for name in ("a.yaml", "b.yaml"):
        write_hardware(calibrate(tmp_path, TP1, "2026-01-02"), tmp_path / name)
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"llama2-7b\.mlp\.csv: no such file"):
        calibrate(tmp_path, TP1)
    _write(tmp_path / TP1.linear, [{"num_tokens": 1, "num_tensor_parallel_workers": 1}])
    with pytest.raises(ConfigError, match="missing columns input_layernorm"):
        calibrate(tmp_path, TP1)
    _profiles(tmp_path, TP1, True)
    text = (tmp_path / TP1.linear).read_text().replace(",1\n", ",4\n").replace(",1\r\n", ",4\r\n")
    (tmp_path / TP1.linear).write_text(text)
    with pytest.raises(ConfigError, match="num_tensor_parallel_workers = 1"):
        calibrate(tmp_path, TP1)


def test_all_reduce_envelope_drops_the_wait():
    size = np.array([1.0, 2, 3, 4, 5])
    low = np.array([1.0, 9, 2, 3, 3])
    nodes, envelope, median = fit_all_reduce(size, low, np.array([1.0, 9, 3, 3, 3]))
    np.testing.assert_array_equal(nodes, size)
    np.testing.assert_array_equal(envelope, [1, 2, 2, 3, 3])
    np.testing.assert_array_equal(median, [1, 4.5, 4.5, 4.5, 4.5])


def test_isotonic_by_hand():
    np.testing.assert_allclose(isotonic(np.array([1.0, 3, 2, 4])), [1, 2.5, 2.5, 4])
    np.testing.assert_allclose(isotonic(np.array([3.0, 1]), np.array([3.0, 1])), [2.5, 2.5])


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=2, max_size=5))
def test_monotone_surfaces(rows):
    table = np.array(rows)
    result, change = isotonic_surface(table, np.ones_like(table))
    assert np.all(np.diff(result, axis=0) >= 0)
    assert np.all(np.diff(result, axis=1) >= 0)
    assert result.min() >= table.min() - 1e-9
    assert 0 <= change.median <= change.largest


def test_prefill_fit_recovers_its_own_form():
    chunk, cached = (axis.ravel() for axis in np.meshgrid([64.0, 128, 256, 512], [0.0, 128, 1024]))
    value = 0.01 + chunk * (1e-5 + 1e-7 * chunk) + cached * 2e-7 * np.minimum(chunk, 128)
    fit = fit_prefill(np.array([0.0, 64, 128, 256, 512]), (chunk, cached, value))
    np.testing.assert_allclose(fit.predict(chunk, cached), value, rtol=1e-6)
    assert 0 < fit.launch < 0.015
    assert np.all(np.diff(fit.own) >= 0)


def test_thin_keeps_the_steps():
    x = np.arange(0.0, 100)
    y = np.where(x < 50, 1.0, 2.0)
    kept = thin(x, [y])
    assert list(kept) == [0, 49, 50, 99]
    np.testing.assert_allclose(np.interp(x, x[kept], y[kept]), y)
