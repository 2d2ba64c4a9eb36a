"""Small runs with memories below the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.simulator.prefix.host_memory import HostMemory, Tier
from kvgym.simulator.system import System
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def requests(*rows: tuple[float, str, int, int], unit: int = 4) -> RequestTable:
    """Return requests of (arrival, text, prompt, output); equal texts are equal as long as both go on."""
    arrival, texts, prompt, output = zip(*rows, strict=True)
    tokens = np.array(prompt) + output
    chains = [
        [(text, j) for j in range(count // unit)] for text, count in zip(texts, tokens.tolist(), strict=True)
    ]
    hashes = BlockHashes.from_rows(chains, tokens // unit * unit, unit)
    return RequestTable(arrival, prompt, output, predicted_output_len=output, hashes=hashes)


def system_of(capacity: int, host: int, load: str = "wait", seconds: float = 0.25, **settings: Any) -> System:
    """Return a worker with batches of a second and blocks of 4; ``seconds`` per token of a transfer."""
    own = {name: settings.pop(name) for name in ("outputs", "load_if", "write", "below") if name in settings}
    return System(
        capacity,
        UnitBatchTime(),
        progress_on_evict="recompute",
        requeue="front",
        block_size=4,
        output_kv="next_iteration",
        prefix_cache="scheduled",
        host_memory=HostMemory(host, seconds, seconds, load=load, **own),
        **settings,
    )


A_B_A = requests((0.0, "a", 12, 1), (10.0, "b", 20, 1), (20.0, "a", 14, 1))
"""The second request takes all of a GPU with 20 tokens; the third begins as the first."""


def random_case(seed: int, n: int = 40) -> tuple[System, RequestTable]:
    """Return requests that share beginnings, on a small GPU, with a small memory below it."""
    rng = np.random.default_rng(seed)
    rows = sorted(
        (
            float(np.floor(60 * rng.random())),
            f"text {rng.integers(5)}",
            int(rng.integers(1, 24)),
            int(rng.integers(1, 9)),
        )
        for _ in range(n)
    )
    load = str(rng.choice(["wait", "overlap"]))
    host, seconds = int(rng.integers(4, 80)), float(rng.choice([0.0, 0.1, 0.5]))
    below = Tier(120, 0.2, 0.3, 0.1) if seed % 4 >= 2 else None
    own = {
        "load_if": ("always", "cheaper")[seed % 2],
        "below": below,
        "write": ("through", "back")[seed // 4],
    }
    return system_of(40, host, load, seconds, **own), requests(*rows)
