"""Figures of the prefix cache and of speculation over time: what requests find, and how many drafts are right."""

from __future__ import annotations

import numpy as np

from kvgym.report import series
from kvgym.report.alike import join_alike
from kvgym.report.chart import Axis, Chart, Panel, Quantity
from kvgym.report.plots import Runs, capacity_of, examples_of, steps, time_axis, time_bins


def is_cached(runs: Runs) -> bool:
    """Return whether any run has a prefix cache."""
    return any(result.system.prefix_unit for result in examples_of(runs).values())


def cache_use(runs: Runs) -> Chart:
    """Share of the tokens to prefill that requests find in the cache; below it, cached memory without a holder."""
    results = examples_of(runs)
    edges = time_bins(results)
    found, held = [], []
    for policy, result in results.items():
        log = series.iteration_log(result)
        hits, computed = (
            series.rate_bins(log["start_time"], log[name], edges) for name in ("hit_tokens", "prefill_tokens")
        )
        share = hits / np.maximum(hits + computed, 1e-12)
        found.append(steps(policy, edges, np.append(share, share[-1])))
        x, y = series.thin_steps(*series.step_series(log, "kv_cached"))
        held.append(steps(policy, x, y / capacity_of(result)))
    names = "Found in the cache / tokens to prefill", "Cached memory that no request holds / capacity"
    time = time_axis(results)
    panels = [
        Panel(time, Axis(Quantity(name), 0, 1), lines, 95.0)
        for name, lines in zip(names, (found, held), strict=True)
    ]
    return join_alike(Chart(panels))


def speculates(runs: Runs) -> bool:
    """Return whether any run speculates."""
    return any(result.system.speculation is not None for result in examples_of(runs).values())


def draft_use(runs: Runs) -> Chart:
    """Drafts of a request in a batch, its depth; below it, the share of verified drafts that were right."""
    results = examples_of(runs)
    edges = time_bins(results)
    depths, rates = [], []
    for policy, result in results.items():
        log = series.iteration_log(result)
        decodes, drafts, right = (
            series.rate_bins(log["start_time"], log[name], edges)
            for name in ("num_decodes", "draft_tokens", "accepted_tokens")
        )
        depth, rate = (
            part / np.maximum(whole, 1e-12) for part, whole in ((drafts, decodes), (right, drafts))
        )
        depths.append(steps(policy, edges, np.append(depth, depth[-1])))
        rates.append(steps(policy, edges, np.append(rate, rate[-1])))
    most = max(result.system.speculation.depth for result in results.values() if result.system.speculation)
    time = time_axis(results)
    panels = [
        Panel(time, Axis(Quantity("Drafts of a request in a batch"), 0, most), depths, 95.0),
        Panel(time, Axis(Quantity("Right drafts / verified drafts"), 0, 1), rates, 95.0),
    ]
    return join_alike(Chart(panels))
