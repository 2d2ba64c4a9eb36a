"""Replays of engines at fixed concurrency: by hand, fits, and a frozen part of the table of accuracy."""

from dataclasses import replace

import numpy as np
import pytest
from validation.accuracy import engine_of, loop_lines, spread, summary_table
from validation.closed_loops import Row, errors, fit, hardware_of, read_rows, replay

from helpers.measured_rows import AUTUMN, MEASURED
from kvgym.batch_time import load_hardware
from kvgym.batch_time.hardware.overhead import EngineOverhead

BOUNDS = {
    ("deepseek-v3", "b200", "fp4", "sglang", "0.5.9"): 7.7,
    ("deepseek-v3", "b200", "fp4", "sglang", AUTUMN): 14.7,
    ("deepseek-v3", "b200", "fp4", "trtllm", "1.2.0rc6.post2"): 8.1,
    ("deepseek-v3", "b200", "fp4", "trtllm", AUTUMN): 12.1,
    ("deepseek-v3", "b200", "fp8", "sglang", "0.5.9"): 12.2,
    ("deepseek-v3", "b200", "fp8", "trtllm", "1.2.0rc6.post2"): 10.3,
    ("llama3-70b", "h100-80gb", "fp8", "vllm", AUTUMN): 2.7,
    ("llama3-70b", "h200", "fp8", "trtllm", AUTUMN): 6.5,
    ("llama3-70b", "h200", "fp8", "vllm", AUTUMN): 4.7,
    ("llama3-8b", "h100-80gb", "bf16", "trtllm", "1.0.0rc3"): 10.8,
    ("qwen3-235b-a22b", "h200", "fp8", "sglang", "0.5.6.post2"): 11.6,
}
"""Largest median error of time per output token, per cent: two points above the present one."""

ROW = Row("vllm", AUTUMN, "h100-80gb", 1, 1, "llama3-8b", "bf16", 100, 4, 1, 10.0, 5.0, drawn=False)
ENGINE = EngineOverhead(base_ms=0.0, per_layer_ms=0.01, per_request_ms=0.1, asynchronous=True)


def frozen(group):
    model, gpu, dtype, engine, release = group
    drawn = release not in ("1.0.0rc3", "0.5.6.post2")
    return [
        Row(engine, release, gpu, tp, ep, model, dtype, *settings, drawn=drawn)
        for tp, ep, *settings in MEASURED[group]
    ]


def test_one_request_at_a_time_by_hand():
    """A prompt of 100 tokens and decodes with 100, 101 and 102 in the cache; the next request comes at once."""
    model = load_hardware(hardware_of(ROW)).batch_time(engine=ENGINE.model_dump())
    first = 1e3 * float(model(num_prefills=1, prefill_tokens=100, prefill_squares=100**2))
    decodes = [1e3 * float(model(num_decodes=1, decode_context=context)) for context in (100, 101, 102)]
    times = replay(ROW, ENGINE)
    assert times.ttft == pytest.approx(first)
    assert times.tpot == pytest.approx(np.mean(decodes))
    assert ROW.latency_ms == 10 + 3 * 5
    expected = (times.tpot / 5 - 1, (first + 3 * times.tpot) / 25 - 1, first / 10 - 1)
    assert errors([ROW], lambda row: ENGINE)[0] == pytest.approx(expected)


def test_hardware_has_the_types_of_checkpoints():
    row = Row("sglang", "0.5.9", "b200", 8, 8, "deepseek-v3", "fp4", 1024, 1024, 4, 1.0, 1.0)
    assert hardware_of(row) == "kernels:model=deepseek-v3,gpu=b200,tp=8,ep=8,weights=nvfp4,kv_dtype=fp8"
    assert hardware_of(ROW) == "kernels:model=llama3-8b,gpu=h100-80gb,tp=1,ep=1"


def test_a_fit_finds_the_times_that_rows_were_made_with():
    """The replay is linear in both times, so that the grid's point is exact, drawn lengths or not."""
    made = ENGINE.model_copy(update={"per_layer_ms": 0.025, "per_request_ms": 0.008})
    rows = []
    for concurrency, drawn in ((2, False), (16, True), (5, True)):
        row = replace(ROW, tp=2, input=300, output=40, concurrency=concurrency, drawn=drawn)
        times = replay(row, made)
        rows.append(replace(row, ttft_ms=times.ttft, tpot_ms=times.tpot))
    found = fit(rows, ENGINE)
    assert (found.engine.per_layer_ms, found.engine.per_request_ms) == (0.025, 0.008)
    assert found.engine.asynchronous
    assert np.abs(found.errors).max() < 1e-9


def test_rows_of_a_table(tmp_path):
    head = "engine,release,gpu,tp,ep,moe_tp,model,dtype,input,output,concurrency,ttft_ms,tpot_ms,measured,note,source"
    line = "vllm,0.12.0,h200,2,1,2,llama3-70b,fp8,1024,{},{},90.5,10,{},{},x{}"
    lines = [
        line.format(1024, 4, "2025-10-29", "", 1),
        line.format(1024, 4, "2025-10-29", "", 2),
        line.format(8192, 32, "", "", 3),
        line.format(8192, 33, "", "", 4),
        line.format(1024, 8, "", "perhaps", 5),
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["# a source", head, *lines]), "utf-8")
    rows = read_rows(path)
    assert [(row.output, row.concurrency, row.drawn, row.used) for row in rows] == [
        (1024, 4, True, True),
        (8192, 32, False, True),
        (8192, 33, False, False),
        (1024, 8, False, False),
    ]
    assert rows[0].latency_ms == pytest.approx(90.5 + 10 * 1023)


def test_tables_count_compared_rows():
    rows = [ROW, replace(ROW, note="marked"), replace(ROW, engine="sglang", release="0.5.1")]
    other, line = loop_lines(rows)
    [error] = errors([ROW], engine_of)
    assert line == [
        "llama3-8b",
        "h100-80gb",
        "bf16",
        "vllm",
        AUTUMN,
        "0.04 + 0.024",
        "1",
        *(spread([x]) for x in error),
    ]
    assert other[3:7] == ["sglang", "0.5.1", "0.034 + 0", "1"]
    assert f"| dense on H100, TP 1 | 1 | {spread([error[0]])} |" in summary_table(rows)
    [fitted] = loop_lines([replace(ROW, model="llama3-70b", tp=4)])
    assert fitted[5] == "0.04 + 0.024, fitted"
    assert spread([-0.1, 0.3, 0.2]) == "20.0, 28.0, +20.0"


@pytest.mark.parametrize("group", MEASURED, ids=" ".join)
def test_errors_stay_within_bounds(group):
    """Of time per output token, median of five rows, with the engine of their release."""
    found = 100 * np.median(np.abs(errors(frozen(group), engine_of)[:, 0]))
    assert found < BOUNDS[group], f"{' '.join(group)}: {found:.1f} %"
