"""Figures of what happens inside single runs: requests and their memory over time, and the batches of a stretch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.report import series
from kvgym.report.chart import Chart, Quantity
from kvgym.report.numbers import figures
from kvgym.report.plots import TIME, Runs, axis_label, capacity_of, end_of, examples_of, thousands
from kvgym.report.style import GRID, INK, PALETTE, styled, text_of
from kvgym.runner import SimulationResult
from kvgym.simulator.samples import Samples
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
_ARRIVALS = colormaps["viridis"](np.linspace(0.25, 0.98, 24))
_MARGINS = (0.78, 0.12)
"""Space on the left and on the right of the axes, inches; wide enough for 1,000,000."""

Floats = NDArray[np.float64]


def timelines(runs: Runs, *, width: float) -> Iterator[tuple[Chart, str]]:
    """Yield the timeline of each run, with its policy: what requests do over time, and the memory that each holds.

    Args:
        runs: the runs, with samples.
        width: width in inches.

    Raises:
        ConfigError: a run has no samples.
    """
    results, styles = examples_of(runs)
    end = end_of(results)
    for policy, result in results.items():
        yield _timeline(tuple(styles), policy, result, end, width), policy


def batch_bars(runs: Runs, *, width: float) -> Iterator[tuple[Chart, str]]:
    """Yield the batches of each run from the middle of the arrivals on, with its policy.

    Args:
        runs: the runs.
        width: width in inches.
    """
    results, styles = examples_of(runs)
    chosen = {policy: batches_of(result) for policy, result in results.items()}
    most = max(
        (int((log["prefill_tokens"] + log["num_decodes"]).max(initial=1)) for log in chosen.values()),
        default=1,
    )
    for policy, log in chosen.items():
        yield _batches(tuple(styles), policy, log, most, width), policy


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

    The memory in use is exact at every moment; its division among requests is that of the next sample, and at
    the end that of the last one.

    Args:
        result: the run, with samples.
        end: time at the right edge, seconds.
        top: tokens at the upper edge.
    """
    samples, block = samples_of(result), result.system.block_size
    width, height = PIXELS
    count = len(result.table)
    shade = np.arange(count) * len(_ARRIVALS) // max(count, 1)
    colours = (255 * _ARRIVALS[shade]).astype(np.uint8)
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


def batches_of(result: SimulationResult) -> NDArray[Any]:
    """Return the rows of the log for :func:`batch_bars`, dtype ITERATION: of the first worker that decodes."""
    worker = int(np.flatnonzero(result.worker["role"] != ROLE_PREFILL)[0])
    log = series.iteration_log(result)
    log = log[log["worker"] == worker]
    arrivals = result.table.arrival_time
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


def _axes(chart: Chart, width: float, height: float, bottom: float, tall: float) -> Axes:
    """Add axes at a place in inches from below."""
    left, right = _MARGINS
    return chart.add_axes((left / width, bottom / height, 1 - (left + right) / width, tall / height))


@styled
def _timeline(
    policies: tuple[str, ...], policy: str, result: SimulationResult, end: float, width: float
) -> Chart:
    height = 4.7
    chart = Chart(policies, figsize=(width, height))
    requests = _axes(chart, width, height, 2.42, 1.72)
    memory = _axes(chart, width, height, 0.5, 1.5)
    chart.text(
        _MARGINS[0] / width, 1 - 0.17 / height, text_of(policy), fontsize=10, weight="bold", va="center"
    )
    _draw_requests(chart, requests, result, end)
    capacity = capacity_of(result)
    top = 1.12 * capacity
    chart.panel(memory, TIME, Quantity("KV memory in use", "tokens"), title=policy)
    memory.imshow(
        memory_picture(result, end, top), extent=(0, end, 0, top), aspect="auto", interpolation="none"
    )
    x, y = series.thin_steps(*series.step_series(series.iteration_log(result), "kv_tokens"))
    lines = memory.plot(x, y, drawstyle="steps-post", color=INK, linewidth=0.7)
    chart.record(memory, policy, "steps", {"x": x, "y": y}, artists=lines)
    memory.axhline(capacity, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    memory.set_ylim(0, top)
    memory.set_yticks([0, capacity])
    thousands(memory)
    memory.set_title("KV tokens by request, from dark (arrived first) to light", pad=3)
    memory.set_xlabel(axis_label(TIME))
    for ax in (requests, memory):
        ax.set_xlim(0, end)
    return chart


def _draw_requests(chart: Chart, ax: Axes, result: SimulationResult, end: float) -> None:
    """Draw the spans of requests, evenly chosen, and record what became of them."""
    count = len(result.table)
    chosen = np.unique(np.linspace(0, max(count - 1, 0), min(count, ROWS)).round().astype(np.int64))
    row = max(count / max(len(chosen), 1), 1.0)
    over = float(series.iteration_log(result)["end_time"].max(initial=0.0))
    spans = np.array(spans_of(result, chosen, over), np.float64).reshape(-1, 4)
    spans = spans[spans[:, 2] < end]
    for kind, (_, color, tall, alpha) in KINDS.items():
        own = spans[spans[:, 1] == kind]
        if len(own):
            half = row * tall / 2
            corners = np.stack((own[:, 2], own[:, 0] - half, own[:, 3], own[:, 0] + half), axis=1)
            ax.add_patch(PathPatch(_boxes(corners), color=color, alpha=alpha, linewidth=0))
    r, arrival = result.requests[chosen], result.table.arrival_time[chosen]
    chart.panel(ax, TIME, Quantity("Request"), title="Arrival of a request")
    text = [_fate(*values) for values in zip(arrival, *(r[name] for name in _FATE), strict=True)]
    chart.record(ax, None, "points", {"x": arrival, "y": chosen}, name="request", text=text)
    ax.set_ylim(max(count, 1) - 0.5 + row / 2, -0.5 - row / 2)
    ax.grid(axis="y", visible=False)
    ax.tick_params(labelbottom=False)
    thousands(ax)
    ax.set_ylabel("Request")
    shown = [kind for kind in KINDS if (spans[:, 1] == kind).any()]
    handles = [Patch(color=KINDS[kind][1], alpha=KINDS[kind][3], label=KINDS[kind][0]) for kind in shown]
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 0.97), ncols=4, fontsize=8.5, handlelength=0.8,
        handleheight=0.8, handletextpad=0.4, columnspacing=1.2, borderpad=0.2,
    )  # fmt: skip


_FATE = ("start_time", "finish_time", "num_evictions", "prompt_len", "num_output_tokens")


def _fate(arrival: float, start: float, finish: float, evictions: int, prompt: int, output: int) -> str:
    """Return what became of a request in a few words."""
    waited = f"waited {figures(start - arrival)} s" if np.isfinite(start) else "never started"
    done = f"done after {figures(finish - arrival)} s" if np.isfinite(finish) else "not finished"
    evicted = f", {evictions} evictions" if evictions > 1 else ", 1 eviction" if evictions else ""
    return f"{waited}, {done}{evicted}; {prompt:,} + {output:,} tokens"


@styled
def _batches(policies: tuple[str, ...], policy: str, log: NDArray[Any], most: int, width: float) -> Chart:
    height = 2.25
    chart = Chart(policies, figsize=(width, height))
    ax = _axes(chart, width, height, 0.5, 1.3)
    chart.panel(ax, TIME, Quantity("Tokens in the batch"), title=policy)
    start, end = log["start_time"], log["end_time"]
    decode, prefill = (log[name].astype(np.float64) for name in ("num_decodes", "prefill_tokens"))
    parts: Mapping[str, tuple[str, Floats, Floats]] = {
        "decode": (PALETTE[0], np.zeros(len(log)), decode),
        "prefill": (PALETTE[4], decode, decode + prefill),
    }
    gap = 0.1 * (end - start)
    for name, (color, low, high) in parts.items():
        used = high > low
        if used.any():
            corners = np.stack((start, low, end - gap, high), axis=1)[used]
            ax.add_patch(PathPatch(_boxes(corners), color=color, linewidth=0, label=name))
        chart.record(
            ax, None, "steps", {"x": np.append(start, end[-1:]), "y": np.append(high - low, 0.0)}, name=name
        )
    ax.set_ylim(0, 1.06 * most)
    ax.set_xlim(*((float(start[0]), float(end[-1])) if len(log) else (0.0, 1.0)))
    thousands(ax)
    ax.set_xlabel(axis_label(TIME))
    ax.set_ylabel("Tokens")
    chart.text(
        _MARGINS[0] / width, 1 - 0.17 / height, text_of(policy), fontsize=10, weight="bold", va="center"
    )
    ax.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.96), ncols=2, fontsize=8.5, handlelength=0.8, handleheight=0.8,
        handletextpad=0.4, columnspacing=1.2, borderpad=0.2,
    )  # fmt: skip
    return chart


def _boxes(corners: Floats) -> Path:
    """Return rectangles (left, low, right, high) as one path."""
    left, low, right, high = corners.T
    points = np.stack(
        [np.stack(c, axis=1) for c in ((left, low), (right, low), (right, high), (left, high), (left, low))],
        axis=1,
    )
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(corners))
    return Path(points.reshape(-1, 2), codes)
