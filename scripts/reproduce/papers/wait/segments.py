"""The memory bound against the number of segments."""

from __future__ import annotations

import argparse

import numpy as np

from harness import print_table
from kvgym import load_hardware, make_batch_time
from kvgym.errors import ConfigError
from kvgym.theory.buffers import memory_bound, memory_by_segments
from kvgym.theory.fluid import stability_load
from kvgym.workloads.classes import ClassStatistics
from papers.wait.equilibrium import fit_affine
from papers.wait.setting import BIN_RATES, ENGINE, HARDWARE
from papers.wait.tables import number


def segments(options: argparse.Namespace) -> None:
    """The memory bound (17) against the number of segments, Figures 16 to 18."""
    hardware = load_hardware(HARDWARE)
    d0, d1, *_ = fit_affine(hardware.batch_time(engine=ENGINE), hardware.kv_capacity)
    shares = np.repeat(np.array(BIN_RATES) / sum(BIN_RATES) / 50, 50)
    for name, prompt_len, lengths, n, rates in (
        ("m = 4, 15/14/12/8", 10, (20, 40, 80, 160), (15, 14, 12, 8), (20, 40, 80, 160)),
        ("m = 4, 8/8/7/5", 10, (20, 40, 80, 160), (8, 8, 7, 5), (20, 40, 80, 160)),
        ("ten bins, one each", 60, range(50, 501, 50), (1,) * 10, BIN_RATES),
        ("ten bins, 66/43/…/1", 60, range(50, 501, 50), (66, 43, 32, 24, 17, 11, 7, 4, 2, 1), BIN_RATES),
    ):
        bound = memory_bound(n, prompt_len, lengths, rates, 201, 0.1)
        print(f"{name}: M^pi = {bound.batch:,.0f} tokens, bound (14) {number(bound.total)}.\n")
    counts = (5, 10) if options.quick else (1, 2, 4, 5, 10, 20, 25, 50, 100)
    rows = []
    # This GPU cannot sustain 500 requests/s of these lengths: those rows are for faster ones.
    for total, faster, horizon, delta in (
        (50, 1, 200, 0.1),
        (50, 1, 200, 1e-5),
        (500, 7, 200, 0.1),
        (500, 7, 200, 1e-5),
        (500, 6, 200, 0.1),
        (500, 5, 200, 0.1),
        (50, 1, 20, 1e-3),
        (50, 1, 2000, 1e-3),
    ):
        classes = [ClassStatistics(str(o), total * s, 62, o) for o, s in enumerate(shares, start=1)]
        load = f"{stability_load(classes, d1 / faster):.2f}"
        model = make_batch_time({"kind": "affine", "constant": d0 / faster, "per_context_token": d1 / faster})
        totals = {}
        for part in ("batch", "queues", "buffer", "total"):
            row = [f"{total}", f"{faster}", load, f"{horizon}", f"{delta:g}", part]
            for count in counts:
                try:
                    bound = memory_by_segments(total * shares, 62, [count], model, horizon + 1, delta)[0]
                except ConfigError:  # so few segments that no thresholds satisfy (16)
                    row.append("none")
                    continue
                totals[count] = bound.total
                row.append(number(getattr(bound, part) / 1e3))
            least = str(min(totals, key=lambda c: totals[c], default="none"))
            rows.append([*row, least if part == "total" else ""])
    head = ("rate", "GPU speed", "load", "T", "δ", "thousand tokens")
    print_table((*head, *(f"L={c}" for c in counts), "least at"), rows)
