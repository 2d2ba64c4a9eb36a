"""Figures of what happens inside single runs."""

import base64
import io
from itertools import pairwise

import numpy as np
import pytest

from kvgym import RequestTable, System, make_batch_time, simulate
from kvgym.errors import ConfigError
from kvgym.report import inside
from kvgym.report.inside import DECODE, EVICTED, PREFILL, WAITING

UNIT = make_batch_time({"kind": "unit"})


@pytest.fixture(scope="module")
def evicting():
    """Two requests of 2 + 6 tokens in 10 tokens of memory: the second has to leave, and comes back."""
    table = RequestTable([0.0, 0.0, 1.0], [2, 2, 2], [6, 6, 1])
    system = System(kv_capacity=10, batch_time=UNIT)
    return simulate(system, table, "vllm_v1", log=True, samples=64)


def test_spans_cover_the_life_of_a_request(evicting):
    end = float(evicting.log["end_time"].max())
    spans = inside.spans_of(evicting, np.arange(3), end)
    assert evicting.requests["num_evictions"].sum() > 0
    for i in range(3):
        own = [span for span in spans if span[0] == i]
        assert own[0][2] == evicting.table.arrival_time[i]
        assert own[-1][3] == evicting.requests["finish_time"][i]
        assert all(a[3] == b[2] for a, b in pairwise(own))
        assert {kind for _, kind, _, _ in own} <= {WAITING, PREFILL, DECODE, EVICTED}
        evicted = any(kind == EVICTED for _, kind, _, _ in own)
        assert evicted == (evicting.requests["num_evictions"][i] > 0)
    first = [(kind, left, right) for i, kind, left, right in spans if i == 0]
    token = float(evicting.requests["first_token_time"][0])
    assert first[0] == (PREFILL, 0.0, token)


def test_the_picture_of_memory_is_as_high_as_the_memory_in_use(evicting):
    end = float(evicting.log["end_time"].max())
    picture = inside.memory_picture(evicting, end, 10.0)
    width, height = inside.PIXELS
    assert picture.shape == (height, width, 4)
    filled = (picture[:, :, 3] > 0).sum(axis=0) / height * 10
    middle = evicting.log[len(evicting.log) // 2]
    moment = (middle["start_time"] + middle["end_time"]) / 2
    assert filled[int(moment / end * width)] == pytest.approx(middle["kv_tokens"], abs=0.2)
    assert evicting.log[0]["num_active"] == 2
    first = {tuple(c) for c in picture[:, int(0.5 / end * width)] if c[3]}
    assert len(first) == 2  # a colour for each request


def test_batches_begin_in_the_middle_of_the_arrivals(comparison):
    result = comparison.examples["fcfs"]
    rows = inside.batches_of(result)
    assert 0 < len(rows) <= inside.BATCHES
    log, arrivals = result.log, result.table.arrival_time
    later = log[log["start_time"] >= (arrivals[0] + arrivals[-1]) / 2]
    assert rows[0]["start_time"] <= later[0]["start_time"]
    assert rows.tobytes() == log[-len(rows) :].tobytes() or rows[0] == later[0]


def test_numbers_of_the_figures(comparison):
    for chart, policy in inside.batch_bars(comparison):
        (panel,) = chart.panels
        decode, prefill = panel.series
        rows = inside.batches_of(comparison.examples[policy])
        assert decode.values["y"][:-1].tolist() == rows["num_decodes"].tolist() == prefill.look["base"]
        assert prefill.values["y"][:-1].tolist() == rows["prefill_tokens"].tolist()
    for chart, policy in inside.timelines(comparison):
        requests, memory = chart.panels
        *spans, arrivals = requests.series
        assert arrivals.values["y"].tolist() == list(range(30))
        assert "waited" in arrivals.text[0]
        assert {span.name for span in spans} >= {"until the first token", "decoding"}
        log = comparison.examples[policy].log
        assert max(memory.series[0].values["y"]) == log["kv_tokens"].max()
        assert memory.rules == [("y", 30, "")]


def test_the_picture_of_memory_is_a_png_file(evicting):
    image = pytest.importorskip("PIL.Image")
    (chart, _), *_ = inside.timelines({"a": evicting})
    kind, _, text = chart.panels[1].image.partition(",")
    assert kind == "data:image/png;base64"
    end = float(evicting.log["end_time"].max())
    drawn = inside.memory_picture(evicting, end, 1.12 * 10)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(base64.b64decode(text)))), drawn)


def test_a_run_without_samples_is_refused(evicting):
    table = evicting.table
    bare = simulate(System(kv_capacity=10, batch_time=UNIT), table, "fcfs", log=True)
    with pytest.raises(ConfigError, match="samples=192"):
        next(inside.timelines(bare))
