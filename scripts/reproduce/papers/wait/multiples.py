"""Rates whose equilibrium has whole thresholds, with memory of 1 to 3 times M*."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import print_table
from kvgym import compare, load_hardware, make_batch_time, make_workload
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.fluid import batch_memory, full_batch_time
from kvgym.theory.nested import segment_memory
from papers.wait.equilibrium import fit_affine, least_equilibrium, rate_at
from papers.wait.setting import BIN_RATES, ENGINE, HARDWARE, scenario_of
from papers.wait.tables import HEADS, fluid_shares, result_rows

MULTIPLES = (1.0, 1.05, 1.5, 3.0)


@dataclass(frozen=True)
class Balanced:
    """A workload at rates for which the fluid equilibrium has whole numbers of requests per stage.

    Attributes:
        preset: name of the workload, whose proportions of rates are kept.
        unit: arrivals of one iteration per unit of the smallest proportion, with the affine model.
        hardware_unit: the same with the calibrated hardware; 0 = not run there.
        proportions: of the classes' rates, whole numbers.
        residences: length of a run with the affine model, in times that the longest request takes at equilibrium.
        hardware_residences: the same with the calibrated hardware.
        most_seeds: seeds at most.
    """

    preset: str
    unit: int
    hardware_unit: int
    proportions: tuple[int, ...]
    residences: float
    hardware_residences: float
    most_seeds: int = 1000


BALANCED = (
    Balanced("wait-low", 313, 5, (1, 1), 10, 300, most_seeds=3),
    Balanced("wait-high", 2, 1, (3, 2, 1), 20, 20),
    Balanced("wait-nested", 1, 1, (1, 2, 4, 8), 20, 20),
    Balanced("wait-bins-low", 1, 0, BIN_RATES, 8, 0, most_seeds=2),
)


def multiples(options: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Run every setting at rates whose equilibrium has whole thresholds, with C = 1 … 3 M*."""
    hardware = load_hardware(HARDWARE)
    d0, d1, median, worst, points = fit_affine(hardware.batch_time(engine=ENGINE), hardware.kv_capacity)
    print(
        f"Affine fit over {points} decode batches: d0 = {1e3 * d0:.3f} ms, d1 = {1e6 * d1:.4f} µs per KV token; "
        f"relative error median {median:.1%}, largest {worst:.1%}.\n"
    )
    affine = {"kind": "affine", "constant": d0, "per_context_token": d1}
    models = {
        "affine": (make_batch_time(affine), affine),
        "hardware": (hardware.batch_time(engine=ENGINE), None),
    }
    shares: dict[tuple[str, str], list[dict[str, float]]] = {}
    for kind, (model, described) in models.items():
        chosen = [b for b in BALANCED if options.preset in (None, b.preset)]
        chosen = [b for b in chosen if kind == "affine" or b.hardware_unit]
        for b in chosen[:1] if options.quick else chosen:
            shares[b.preset, kind] = one_setting(b, kind, model, described, options)
    return shares


def one_setting(
    b: Balanced,
    kind: str,
    model: BatchTimeModel,
    described: dict[str, Any] | None,
    options: argparse.Namespace,
) -> list[dict[str, float]]:
    """Run one setting with one batch-time model, and print its table.

    Args:
        b: the setting.
        kind: "affine" or "hardware".
        model: the batch times.
        described: the same for a scenario; None is the calibrated hardware.
        options: of the command line.

    Returns:
        Shares of the fluid throughput by policy, for each multiple of M*.
    """
    affine = kind == "affine"
    base = make_workload(b.preset).class_statistics
    n = (b.unit if affine else b.hardware_unit) * np.array(b.proportions)
    memory = batch_memory(base, n)
    duration = full_batch_time(base, n, model)
    rate, ends = float(n.sum()) / duration, [round(c.output_len) for c in base]
    load = rate / rate_at(base, 1e9, model)
    horizon = (b.residences if affine else b.hardware_residences) * (ends[-1] + 1) * duration
    if options.quick:
        horizon /= 10
    fluid = float(n @ ends) / duration
    nested = segment_memory(np.cumsum(n[::-1])[::-1], base[0].prompt_len, ends)
    print(
        f"### {b.preset}, {kind}: {rate:.4g} requests/s, load {load:.3f}, M* = {memory:,.0f}, n* = "
        f"{'/'.join(map(str, n))} ({n @ (np.array(ends) + 1):,} requests), iteration {1e3 * duration:.1f} ms, "
        f"fluid throughput {fluid:,.0f} tokens/s, horizon {horizon:.0f} s; M^pi of nested {nested:,.0f}, least "
        f"equilibrium {least_equilibrium(base, rate, model):,.0f}\n"
    )
    workload = {"preset": b.preset, "rate": rate, "duration": horizon}
    rows, shares = [], []
    for multiple in MULTIPLES[:1] if options.quick else MULTIPLES:
        capacity = int(np.ceil(multiple * memory))
        s = scenario_of(b.preset, workload, capacity, described, horizon=horizon)
        policies = balanced_policies(n, ends, multiple)
        seeds = min(options.seeds, b.most_seeds)
        outcome = compare(s, list(policies.values()), seeds=seeds, jobs=options.jobs, ray=options.ray)
        share = fluid_shares(outcome, policies, fluid)
        found = result_rows(outcome, policies, "fcfs")
        rows += [[f"{multiple:g}", name, f"{share[name]:.3f}", *cells] for name, *cells in found]
        shares.append(share)
    print_table(("C/M*", "policy", "share of fluid", *HEADS, "throughput / FCFS"), rows)
    return shares


def balanced_policies(n: np.ndarray, ends: Sequence[int], multiple: float) -> dict[str, str]:
    """Return the policies under the same limit of requests in a batch: those of WAIT's full batch."""
    limit = int(n @ (np.array(ends) + 1))
    tails = np.cumsum(n[::-1])[::-1]
    spread = [int(np.floor(x * multiple + 1e-9)) for x in n]
    wide = [int(np.floor(x * multiple + 1e-9)) for x in tails]
    made = {
        "fcfs": "fcfs",
        "vllm": f"vllm:max_batch_requests={limit},max_batch_tokens={4 * limit},watermark=0.0",
        "sarathi": f"sarathi:max_batch_requests={limit},token_budget={4 * limit},watermark=0.0",
        "wait, n*": f"wait:thresholds={'/'.join(map(str, n))}",
        "wait, n* C/M*": f"wait:thresholds={'/'.join(map(str, spread))}",
        "wait, practical": f"wait:rule=practical,batch_limit={limit}",
        "nested, n*": f"nested_wait:thresholds={'/'.join(map(str, tails))}",
        "nested, n* C/M*": f"nested_wait:thresholds={'/'.join(map(str, wide))}",
    }
    if spread == list(n) or len(n) > 4:  # ten types take long
        del made["wait, n* C/M*"], made["nested, n* C/M*"]
    if len(n) > 4:
        del made["wait, practical"]
    return made
