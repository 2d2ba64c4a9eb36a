"""Figures of what happens inside single runs: requests and their memory over time, and the batches of a stretch."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.policies.runner import SimulationResult
from kvgym.report import series
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.colours import GRID, PALETTE, RAMP
from kvgym.report.numbers import figures
from kvgym.report.plots import TIME, Runs, busiest_minute, capacity_of, examples_of, time_axis
from kvgym.simulator.recording.samples import Samples
from kvgym.simulator.tables import ROLE_PREFILL

ROWS = 60
"""Maximum number of requests in a timeline, evenly spaced in order of arrival."""
BATCHES = 60
"""Number of batches in the figure of batches."""
PIXELS = (440, 120)
"""Width and height of the picture of memory by request."""
WAITING, PREFILL, DECODE, EVICTED = range(4)
KINDS = {
    WAITING: ("waiting", GRID, 0.3, 0.55),
    PREFILL: ("until the first token", PALETTE[4], 0.85, 1.0),
    DECODE: ("decoding", PALETTE[0], 0.85, 1.0),
    EVICTED: ("evicted", PALETTE[1], 0.85, 1.0),
}
"""Name, colour, height (in a row of height 1) and opacity of a request's spans."""
_RAMP = np.array([list(bytes.fromhex(color[1:])) for color in RAMP[2:]], np.float64)
_ARRIVALS = np.stack(
    [np.interp(np.linspace(0, len(_RAMP) - 1, 24), range(len(_RAMP)), part) for part in _RAMP.T], axis=1
)
"""Colours of requests in order of arrival, (24, 3)."""


def timelines(runs: Runs) -> Iterator[tuple[Chart, str]]:
    """Yield the timeline of each run, with its policy: what requests do over time, and the memory that each holds.

    Args:
        runs: the runs, with samples.

    Raises:
        ConfigError: a run has no samples.
    """
    results = examples_of(runs)
    time = time_axis(results)
    for policy, result in results.items():
        yield Chart([_requests(policy, result, time), _memory(policy, result, time)]), policy


def batch_bars(runs: Runs) -> Iterator[tuple[Chart, str]]:
    """Yield the batches of each run from the middle of the arrivals on, with its policy."""
    results = examples_of(runs)
    minute = busiest_minute(results)
    chosen = {policy: batches_of(result, minute and sum(minute) / 2) for policy, result in results.items()}
    most = max(
        (int((log["prefill_tokens"] + log["num_decodes"]).max(initial=1)) for log in chosen.values()),
        default=1,
    )
    for policy, log in chosen.items():
        start, end = log["start_time"], log["end_time"][-1:]
        base = np.zeros(len(log))
        parts = []
        for name, column, color in (
            ("decode", "num_decodes", PALETTE[0]),
            ("prefill", "prefill_tokens", PALETTE[4]),
        ):
            values = {"x": np.append(start, end), "y": np.append(log[column], 0)}
            look = {"color": color, "fill": 1, "base": base.tolist()}
            parts.append(Series(name, None, "steps", values, look=look))
            base = base + log[column]
        span = (float(start[0]), float(end[0])) if len(log) else (0.0, 1.0)
        x = Axis(TIME, *span, start=span)
        tokens = Axis(Quantity("Tokens in the batch"), 0, 1.06 * most)
        yield Chart([Panel(x, tokens, parts, 94.0, title=policy)]), policy


def spans_of(
    result: SimulationResult, chosen: NDArray[np.int64], end: float
) -> list[tuple[int, int, float, float]]:
    """Return what requests do when: request, kind of span, start and end in seconds.

    Arrivals, starts, first tokens and ends are exact, evictions as exact as the samples.

    Args:
        result: the run, with samples.
        chosen: the requests, ascending.
        end: end of the run, seconds.
    """
    samples, r = samples_of(result), result.requests
    held = np.zeros((len(samples.time), len(chosen)), np.bool_)
    for k in range(len(samples.time)):
        held[k] = np.isin(chosen, samples.at(k)[0])
    found: list[tuple[int, int, float, float]] = []
    for column, i in enumerate(chosen.tolist()):
        arrival = float(result.table.arrival_time[i])
        start, first, last = (
            float(np.nan_to_num(r[name][i], nan=end))
            for name in ("start_time", "first_token_time", "finish_time")
        )
        found.append((i, WAITING, arrival, start))
        inside = np.flatnonzero((samples.time > start) & (samples.time < last))
        cuts = [start]
        kind = EVICTED if r["num_evictions"][i] else WAITING  # else it is on its way to a worker
        for k in inside.tolist():
            if held[k, column] != (len(cuts) % 2 == 1):
                cuts.append(float(samples.time[k]))
        cuts.append(last)
        for n, (left, right) in enumerate(pairwise(cuts)):
            if n % 2:
                found.append((i, kind, left, right))
            else:
                found.append((i, PREFILL, left, min(right, max(left, first))))
                found.append((i, DECODE, max(left, min(right, first)), right))
    return [span for span in found if span[3] > span[2]]


def memory_picture(result: SimulationResult, end: float, top: float) -> NDArray[np.uint8]:
    """Return the KV memory by request as a picture, coloured by order of arrival, uint8 (height, width, 4).

    The memory in use is exact at every moment; its division among requests is taken from the next sample, and at
    the end from the last one.

    Args:
        result: the run, with samples.
        end: time at the right edge, seconds.
        top: tokens at the upper edge.
    """
    samples, block = samples_of(result), result.system.block_size
    width, height = PIXELS
    count = len(result.table)
    shade = np.arange(count) * len(_ARRIVALS) // max(count, 1)
    colours = np.insert(_ARRIVALS[shade], 3, 255, axis=1).astype(np.uint8)
    colours[1::2, :3] = (0.82 * colours[1::2, :3]).astype(np.uint8)  # to distinguish neighbours
    since, in_use = series.step_series(series.iteration_log(result), "kv_tokens")
    picture = np.zeros((height, width, 4), np.uint8)
    levels = (np.arange(height) + 0.5) * top / height
    times = (np.arange(width) + 0.5) * end / width
    moments = np.minimum(np.searchsorted(samples.time, times, side="right"), len(samples.time) - 1)
    totals = np.append(0.0, in_use)[np.searchsorted(since, times, side="right")]
    for x, (k, total) in enumerate(zip(moments.tolist(), totals.tolist(), strict=True)):
        ids, tokens = samples.at(k if total and len(samples.at(k)[0]) else max(k - 1, 0))
        tops = np.cumsum(-(-tokens.astype(np.int64) // block) * block)
        if not total or not len(tops) or not tops[-1]:
            continue
        band = np.searchsorted(tops * (total / tops[-1]), levels, side="right")
        filled = np.flatnonzero(band < len(ids))
        picture[height - 1 - filled, x] = colours[ids[band[filled]]]
    return picture


def batches_of(result: SimulationResult, middle: float | None = None) -> NDArray[Any]:
    """Return the rows of the log for :func:`batch_bars`, dtype ITERATION: of the first worker that decodes.

    Args:
        result: the run.
        middle: when they begin, seconds; None = in the middle of the arrivals.
    """
    worker = int(np.flatnonzero(result.worker["role"] != ROLE_PREFILL)[0])
    log = series.iteration_log(result)
    log = log[log["worker"] == worker]
    arrivals = result.table.arrival_time
    if middle is None:
        middle = float(arrivals[0] + arrivals[-1]) / 2 if len(arrivals) else 0.0
    first = min(int(np.searchsorted(log["start_time"], middle)), max(len(log) - BATCHES, 0))
    rows: NDArray[Any] = log[first : first + BATCHES]
    return rows


def samples_of(result: SimulationResult) -> Samples:
    """Return the samples of a run.

    Raises:
        ConfigError: the run has none.
    """
    if result.samples is None:
        raise ConfigError("this run has no samples; simulate with log=True, samples=192")
    return result.samples


def _requests(policy: str, result: SimulationResult, time: Axis) -> Panel:
    """Return the spans of requests, evenly chosen of those in the part that is shown, and what became of them."""
    first, last = time.start or (time.low, time.high)
    left = np.nan_to_num(result.requests["finish_time"], nan=np.inf)
    there = np.flatnonzero((result.table.arrival_time <= last) & (left >= first))
    places = np.linspace(0, max(len(there) - 1, 0), min(len(there), ROWS)).round().astype(np.int64)
    chosen = there[np.unique(places)] if len(there) else there
    ends = (int(there[0]), int(there[-1])) if len(there) else (0, 0)
    row, end = max((ends[1] - ends[0] + 1) / max(len(chosen), 1), 1.0), time.high
    over = float(series.iteration_log(result)["end_time"].max(initial=0.0))
    spans = np.array(spans_of(result, chosen, over), np.float64).reshape(-1, 4)
    spans = spans[spans[:, 2] < end]
    shown = []
    for kind, (name, color, tall, alpha) in KINDS.items():
        own = spans[spans[:, 1] == kind]
        if len(own):
            values = {"x": own[:, 2], "x_end": own[:, 3], "y": own[:, 0]}
            look = {"color": color, "fill": alpha, "tall": tall * row, "quiet": True}
            shown.append(Series(name, None, "boxes", values, look=look))
    r, arrival = result.requests[chosen], result.table.arrival_time[chosen]
    text = [_fate(*values) for values in zip(arrival, *(r[name] for name in _FATE), strict=True)]
    shown.append(Series("request", None, "points", {"x": arrival, "y": chosen}, text, {"size": 0}))
    y = Axis(Quantity("Request"), ends[1] + 0.5 + row / 2, ends[0] - 0.5 - row / 2)
    return Panel(time, y, shown, 124.0, title=policy)


def _memory(policy: str, result: SimulationResult, time: Axis) -> Panel:
    """Return the memory in use over a picture of its division among requests."""
    capacity = capacity_of(result)
    top = 1.12 * capacity
    picture = base64.b64encode(_png(memory_picture(result, time.high, top))).decode()
    x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "kv_tokens"))
    line = Series(policy, policy, "steps", {"x": x, "y": y}, look={"color": "currentColor", "width": 0.7})
    used = Quantity("KV tokens by request, from dark (arrived first) to light")
    return Panel(
        time, Axis(used, 0, top, ticks=(0, capacity)), [line], 108.0, title=policy,
        rules=[("y", capacity, "")], image=f"data:image/png;base64,{picture}",
    )  # fmt: skip


def _png(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture (height, width, 4) as a PNG file."""
    height, width, _ = picture.shape
    rows = np.insert(picture.reshape(height, -1), 0, 0, axis=1)  # without a filter
    parts = {
        b"IHDR": struct.pack(">2I5B", width, height, 8, 6, 0, 0, 0),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = [(len(own).to_bytes(4, "big"), kind + own) for kind, own in parts.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        size + own + zlib.crc32(own).to_bytes(4, "big") for size, own in chunks
    )


_FATE = ("start_time", "finish_time", "num_evictions", "prompt_len", "num_output_tokens")


def _fate(arrival: float, start: float, finish: float, evictions: int, prompt: int, output: int) -> str:
    """Return what became of a request in a few words."""
    waited = f"waited {figures(start - arrival)} s" if np.isfinite(start) else "never started"
    done = f"done after {figures(finish - arrival)} s" if np.isfinite(finish) else "not finished"
    evicted = f", {evictions} evictions" if evictions > 1 else ", 1 eviction" if evictions else ""
    return f"{waited}, {done}{evicted}; {prompt:,} + {output:,} tokens"
