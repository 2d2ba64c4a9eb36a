"""The figure of a fleet over time: its workers by state with the target, the load, and the time to first token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvgym.metrics.fleets import counts_by_pool
from kvgym.policies.runner import SimulationResult
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.colours import GRID, PALETTE
from kvgym.report.numbers import figures
from kvgym.report.plots import TIME, Runs, examples_of
from kvgym.simulator.cluster.changing import FleetRecord
from kvgym.simulator.cluster.members import DRAINS, STARTING, UP

BANDS = (
    ("ready", UP, PALETTE[2], 0.75),
    ("draining", DRAINS, PALETTE[4], 0.75),
    ("starting", STARTING, GRID, 1.0),
)
"""Name, state, colour and opacity of the bands, from below."""

BINS = 60
"""Parts of a run for the load and the time to first token."""


def fleet_pictures(runs: Runs) -> Iterator[tuple[Chart, str]]:
    """Yield the picture of each run with a fleet, with its label: workers, load and time to first token.

    Args:
        runs: the runs.
    """
    results = {label: result for label, result in examples_of(runs).items() if result.fleet is not None}
    end = max((result.fleet.end for result in results.values() if result.fleet is not None), default=1.0)
    most = max((result.fleet.fleet.num_places for result in results.values() if result.fleet), default=1)
    for label, result in results.items():
        yield Chart(fleet_panels(label, result, end, most)), label


def fleet_panels(title: str, result: SimulationResult, end: float, most: int) -> list[Panel]:
    """Return the panels of a run with a fleet: workers, load, and time to first token.

    Args:
        title: of the first.
        result: the run, or its outcome so far.
        end: right end of the time axis, seconds.
        most: workers at the upper end of their axis.
    """
    assert result.fleet is not None
    x = Axis(TIME, 0, end)
    return [_workers(title, result.fleet, x, most), _load(result, x), _first_tokens(result, x)]


def _workers(label: str, fleet: FleetRecord, x: Axis, most: int) -> Panel:
    """Return the workers by state, stacked, and the sum of the targets."""
    parts, base = [], np.zeros(0)
    for name, state, color, opacity in BANDS:
        times, counts = counts_by_pool(fleet, (state,))
        workers = counts.sum(axis=1).astype(np.float64)
        base = base if len(base) else np.zeros(len(workers))
        values = {"x": np.append(times, fleet.end), "y": np.append(base + workers, 0)}
        look = {"color": color, "fill": opacity, "width": 0, "base": [*base.tolist(), 0.0]}
        parts.append(Series(name, None, "steps", values, look=look))
        base = base + workers
    at = np.array([time for time, _ in fleet.targets] + [fleet.end])
    wanted = np.array([sum(target) for _, target in fleet.targets] + [sum(fleet.targets[-1][1])])
    parts.append(
        Series("target", None, "steps", {"x": at, "y": wanted}, look={"color": PALETTE[1], "width": 1.2})
    )
    return Panel(x, Axis(Quantity("Workers"), 0, 1.06 * most), parts, 94.0, title=label)


def _load(result: SimulationResult, x: Axis) -> Panel:
    """Return arrivals so far and completions per second."""
    edges, arrival = np.linspace(0, x.high, BINS + 1), result.table.arrival_time
    now = x.high if result.fleet is None else result.fleet.end
    width = edges[1] - edges[0]
    parts = []
    for name, times, color in (
        ("arrivals", arrival[arrival <= now], PALETTE[0]),
        ("completions", result.requests["finish_time"], PALETTE[3]),
    ):
        rate = np.histogram(times[np.isfinite(times)], edges)[0] / width
        parts.append(
            Series(name, None, "steps", {"x": edges, "y": np.append(rate, rate[-1:])}, look={"color": color})
        )
    return Panel(
        x, Axis.over(Quantity("Requests", "1/s"), np.concatenate([s.values["y"] for s in parts])), parts, 70.0
    )


def _first_tokens(result: SimulationResult, x: Axis) -> Panel:
    """Return the median and the 99th percentile of the time to first token by arrival, with the target."""
    edges = np.linspace(0, x.high, BINS + 1)
    arrival = result.table.arrival_time
    ttft = result.requests["first_token_time"] - arrival
    known = np.isfinite(ttft)
    place = np.searchsorted(edges, arrival[known], side="right") - 1
    parts, values = [], ttft[known]
    for name, share, color in (("TTFT, median", 50, PALETTE[0]), ("TTFT, p99", 99, PALETTE[1])):
        found = [np.percentile(own, share) if len(own) else np.nan
                 for own in (values[place == k] for k in range(BINS))]  # fmt: skip
        parts.append(
            Series(
                name, None, "steps", {"x": edges, "y": np.append(found, found[-1:])}, look={"color": color}
            )
        )
    slo = result.table.ttft_slo
    targets = [] if slo is None else [float(v) for v in np.unique(slo[np.isfinite(slo)])[:1]]
    rules = [("y", target, f"target {figures(target)} s") for target in targets]
    y = Axis.over(Quantity("Time to first token", "s"), [*values.tolist(), *targets])
    return Panel(x, y, parts, 70.0, rules=rules)
