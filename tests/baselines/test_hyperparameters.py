"""Wrong values of the hyperparameters of all policies and routers are refused by name."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.errors import ConfigError
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import make_router

NAN, INF = math.nan, math.inf
COUNT = (0, -3, 1.5, 2.0, True, "many", NAN, INF)
SHARE = (1, 1.5, -0.1, "much", True, NAN)
FLAG = (1, 2, "maybe", None)
CHUNKS = {"chunk": (*COUNT, None), "budget": (3,)}
TILES = {"cycle": COUNT, "decodes": COUNT, "chunk": COUNT}
RATES = {"patience": (0, -1.0, INF, NAN, "long"), "drain": ("maybe", 2), "batch_limit": (0, -5)}

WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "fcfs": {"protection": SHARE},
    "cost_aware": {"protection": SHARE},
    "alpha_greedy": {"alpha": (0, 1, NAN)},
    "alpha_beta": {"alpha": (1.2,), "beta": (0, 1.01, "half")},
    "lpm": {"most_waiting": (0,), "small_hit": (-1,), "common": (0,), "protection": (1.0,)},
    "request_level": {"batch": COUNT},
    "rad": TILES,
    "rad_batched": TILES,
    "dist_serve": {"decodes": COUNT},
    "vllm": {
        "max_batch_tokens": COUNT,
        "max_batch_requests": COUNT,
        "watermark": SHARE,
        "engine_memory": FLAG,
        "padded": FLAG,
    },
    "sarathi": {
        "token_budget": COUNT,
        "max_batch_requests": COUNT,
        "watermark": SHARE,
        "order": ("sjf",),
        "engine_memory": FLAG,
        "chunk": (512,),
    },
    "slai": {
        "token_budget": COUNT,
        "max_active": COUNT,
        "max_decodes": COUNT,
        "order": ("sjf", 1, None),
        "offset": (-1, NAN, INF, "much", True),
        "low_offset": (-1, NAN, INF, "much", True),
        "memory_threshold": (-0.1, 1.5, "96%", True, NAN),
        "watermark": SHARE,
        "paying_first": FLAG,
    },
    "mc_sf": {"protection": SHARE, "overrun": ("never",), "strict": FLAG},
    "mc_benchmark": {"protection": SHARE},
    "mc_longest": {"protection": (1,), "overrun": ("never",)},
    "ageing": {"rate": (-0.1, NAN, INF, "fast", True), "protection": (1,), "overrun": ("never",)},
    "flow_control": {
        # whole numbers unless random
        "budget": (0, -1, 1.5, NAN, INF, "many", True, "0/0", "1/-1", [1, 1.5], []),
        "random": ("perhaps",),
        "greedy": (1.5, "much"),
    },
    "flow_control:random=true": {"budget": ("1/2", 0, -0.5, NAN, INF, "many")},
    "flow_control_classes": {"budgets": (0, "4/-1/4", "4/1.5", "", "4/x", True)},
    "work_conserving_fcfs": CHUNKS,
    "work_conserving_sjf": {**CHUNKS, "resume": ("last", "", None, True, 1)},
    "work_conserving_fcfs_lookahead": CHUNKS,
    "work_conserving_sjf_lookahead": CHUNKS,
    "wait": {
        **RATES,
        "thresholds": ("0", "4/-1", "4/1.5", "four", []),
        "rule": ("best",),
        "segments": ("1/2",),
    },
    "nested_wait": {
        **RATES,
        "thresholds": ("0/1", "two"),
        "segments": ("2/1", "2/2", "0/2", "1/2.5"),
        "rule": ("exact",),
        "needs": ("class",),
    },
    "learned_rank": {"guard": (-1,)},
    "trail": {"share": (1.5,)},
    "gamma_boost": {"gamma": (0,)},
    "fast_serve": {"prompt_time": (-1,)},
    "bounded_srpt": {"most": (-1,)},
    "tie": {"batch": (0,)},
    "vtc": {"input_weight": (0,)},
    "dlpm": {"quantum": (0,), "most_waiting": (0,)},
    "past_future": {"window": (1,)},
    "ranked": {"hidden": (-1, 1.5, 65, True, "two")},
    "ranked:hidden=2": {"network": ((0.5,) * 27, (0.5,) * 29, (NAN,) * 28, (0.5, "x") * 14)},
}


@pytest.mark.parametrize("spec", WRONG)
def test_wrong_values_are_refused(spec: str) -> None:
    for name, values in WRONG[spec].items():
        for value in values:
            with pytest.raises(ConfigError, match=name):
                make_policy(spec, **{name: value})


def test_weights_of_ranked() -> None:
    for weight in WEIGHTS:
        expected = f"{weight.name} = .*; expected a number from {weight.low:g} to {weight.high:g}"
        for value in (weight.low - 0.1, weight.high + 0.1, NAN, INF, "much", True, None):
            with pytest.raises(ConfigError, match=expected):
                make_policy("ranked", **{weight.name: value})
        for value in (weight.low, weight.default, weight.high):
            make_policy("ranked", **{weight.name: value})
    make_policy("ranked", hidden=2, network=(0.5,) * 28)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clairvoyant:rule=best", "rule = 'best'; expected one of auto, ranked, look_ahead"),
        ("clairvoyant:ranking=fcfs", "ranking = 'fcfs'; expected ranked, or an agent"),
        ("clairvoyant:passed=-1", "passed = -1; expected a whole number"),
        ("work_conserving_sjf:resume=last", "resume = 'last'; expected one of first, by_work"),
        ("dist_serve:decodes=0", "decodes = 0; expected a whole number ≥ 1, or None"),
        ("vllm_v1:max_num_batched_tokens=0", "max_num_batched_tokens = 0; expected a whole number ≥ 1, or auto"),
        ("vllm_v1:max_num_seqs=2.5", "max_num_seqs = 2.5; expected a whole number ≥ 1, or auto"),
        ("vllm_v1:max_num_batched_tokens=true", "max_num_batched_tokens = True; expected a whole number ≥ 1"),
        ("vllm_v1:max_num_batched_tokens=255,max_num_seqs=256", "_tokens = 255 is below max_num_seqs = 256"),
        ("vllm_v1:long_prefill_token_threshold=-1", "token_threshold = -1; expected a whole number ≥ 0"),
        ("vllm_v1:policy=sjf", "policy = 'sjf'; expected fcfs or priority"),
        ("vllm_v1:enable_chunked_prefill=0", "enable_chunked_prefill = 0; expected True or False"),
        ("vllm_v1:scheduler_reserve_full_isl=no", "scheduler_reserve_full_isl = .*; expected True or False"),
        ("vllm_v1:watermark=1.0", r"watermark = 1.0; expected a fraction in \[0, 1\)"),
        ("vllm_v1:engine_version=0.28", "engine_version = 0.28; expected 0.24, 0.33, or auto"),
        ("vllm_v1:max_num_active_seqs=0", "max_num_active_seqs = 0; expected a whole number ≥ 1"),
        ("vllm_v1:max_num_active_seqs=9,max_num_seqs=8", "_active_seqs = 9 is above max_num_seqs = 8"),
        ("vllm_v1:prefill_schedule_interval=0", "prefill_schedule_interval = 0; expected a whole number ≥ 1"),
        ("vllm_v1:long_prefill_token_threshold_adaptive=1", "threshold_adaptive = 1; expected True"),
        (
            "vllm_v1:engine_version=0.24,prefill_schedule_interval=2",
            "engine_version = 0.24 has no prefill_schedule_interval = 2; use engine_version = 0.33",
        ),
        ("weighted:pace=11", "pace = 11; expected a number from -5 to 10"),
        ("weighted:pace=nan", "pace = nan; expected a number"),
        ("weighted:pace=true", "pace = True; expected a number"),
        ("weighted:pace=fast", "pace = 'fast'; expected a number from -5 to 10"),
        ("weighted:pase=1", "pase"),
        ("prefix_aware:queue=-1", "queue = -1; expected a number from 0 to 1000"),
        ("cache_aware:threshold=2", "threshold = 2; expected a number from 0 to 1"),
        ("cache_aware:ratio=0.5", "ratio = 0.5; expected"),
        ("lmetric:queued=1", "queued = 1; expected True or False"),
        ("preble:output=0", "output = 0; expected a whole number"),
    ],
)  # fmt: skip
def test_messages(spec: str, message: str) -> None:
    routers = re.match("weighted|prefix_aware|cache_aware|lmetric|preble", spec)
    with pytest.raises(ConfigError, match=message):
        make_router(spec) if routers else make_policy(spec)
