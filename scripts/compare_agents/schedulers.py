"""Schedulers that agents are compared with, and the values searched for each."""

from __future__ import annotations

from typing import Any

from compare_agents.contestants import SCHEDULER, Given, Tuned
from kvgym.errors import ConfigError
from kvgym.policy import POLICIES
from kvgym.runner import check_needs
from kvgym.workloads.table import RequestTable

Space = dict[str, tuple[Any, ...]]

_MARGINS = (0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2)
_BUDGETS = (64, 128, 192, 256, 320, 384, 448, 512, 1024)
_CHUNKS: Space = {"chunk": (128, 256, 512, 1024)}

SPACES: dict[str, Space] = {
    "fcfs": {"protection": _MARGINS},
    "cost_aware": {"protection": _MARGINS},
    "alpha_greedy": {"alpha": (0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3)},
    "alpha_beta": {"alpha": (0.05, 0.1, 0.15, 0.2), "beta": (0.05, 0.1, 0.2)},
    "flow_control": {"budget": (1, 2, 3, 4, 5, 6, 8)},
    "mc_sf": {"protection": _MARGINS},
    "mc_benchmark": {"protection": _MARGINS},
    "mc_longest": {"protection": (0.0, 0.05)},
    "ageing": {"protection": _MARGINS, "rate": (0.01, 0.1, 1.0)},
    "vllm": {
        "max_batch_tokens": (512, 2048, 8192), "max_batch_requests": (32, 64, 128, 256),
        "watermark": (0.0, 0.01, 0.05, 0.1),
    },
    "vllm_v1": {
        "max_num_batched_tokens": (128, 256, 512, 2048), "max_num_seqs": (128, 256),
        "watermark": (0.0, 0.02, 0.05, 0.1),
    },
    "sarathi": {
        "token_budget": _BUDGETS, "order": ("fcfs", "spf"), "watermark": (0.0, 0.02, 0.05, 0.1),
        "max_batch_requests": (128, 256),
    },
    "slai": {
        "token_budget": (256, 320, 384, 448, 512), "low_offset": (None, 5.0), "order": ("fcfs", "spf"),
        "paying_first": (False, True),
    },
    "rad": {"cycle": (50, 200), "decodes": (32, 64, 128), "chunk": (256, 512)},
    "rad_batched": {"cycle": (50, 200), "decodes": (32, 64, 128), "chunk": (256, 512)},
    "work_conserving_fcfs": _CHUNKS,
    "work_conserving_sjf": _CHUNKS | {"resume": ("first", "by_work")},
    "work_conserving_fcfs_lookahead": _CHUNKS,
    "work_conserving_sjf_lookahead": _CHUNKS,
}  # fmt: skip
"""Search spaces that differ from the library's: values that never win at these loads are left out."""

OVERRUN = {"mc_sf", "mc_benchmark", "ageing"}
"""Look-ahead schedulers that livelock with short predictions unless they extend them."""

OF_PAPERS = {
    "noisy": ("mc_sf:protection=0.1,overrun=extend", "mc_benchmark:protection=0.1,overrun=extend"),
    "interval": ("alpha_greedy:alpha=0.3", "alpha_beta:alpha=0.2,beta=0.1"),
}
"""Published settings, compared untuned: the best ones on tuning seeds may fail on others."""

NOT_COMPARED = {
    "ranked": "is compared on its own",
    "dist_serve": "needs separate prefill and decode workers",
    "request_level": "serves batches of whole requests, many times slower",
    "tie": "needs distributions of lengths",
    "after_sagesched": "needs distributions of lengths",
    "trail": "needs predictions that are renewed",
    "vtc": "needs clients",
}


def eligible(table: RequestTable) -> list[str]:
    """Return the schedulers of the library that need no more information than requests carry.

    Those that read objectives are included if requests have some.
    """
    found = []
    for name in sorted(POLICIES):
        cls = POLICIES[name]
        own = cls.__module__.startswith("kvgym.baselines")
        aims = "slo" not in cls.info.needs or table.tbt_slo is not None
        if own and aims and not cls.info.clairvoyant and name not in NOT_COMPARED and _carried(cls(), table):
            found.append(name)
    return found


def _carried(policy: Any, table: RequestTable) -> bool:
    try:
        check_needs(policy, table)
    except ConfigError:
        return False
    return True


def tuned_schedulers(
    table: RequestTable, kind: str, names: list[str] | None = None
) -> tuple[Tuned | Given, ...]:
    """Return schedulers to tune, and those with published settings.

    Args:
        table: requests, for the information that they carry.
        kind: of the predictions.
        names: of the schedulers; None = all eligible ones.
    """
    found: list[Tuned | Given] = []
    for name in eligible(table) if names is None else names:
        spec = f"{name}:overrun=extend" if kind == "noisy" and name in OVERRUN else name
        found.append(Tuned(SCHEDULER, spec, spec, SPACES.get(name)))
    published = OF_PAPERS.get(kind, ()) if names is None else ()
    return (*found, *(Given(SCHEDULER, f"{spec} (paper)", spec) for spec in published))
