"""Random configurations of environments: scenarios, kinds of action, engine rules, blocks, clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.experiments.scenario import load_scenario, scenario_names

SHORT = {"preset": "lmsys", "limits": {"max_prompt_len": 60, "max_output_len": 40}}
"""Short requests, several of which fit into a few hundred tokens of memory."""

APART = [{"count": 2, "role": "prefill"}, {"count": 3, "role": "decode"}]

SWITCHES = {
    "must_admit": ("admit_evict", "admit_count", "flags"),
    "unit_actions": ("rank", "rank_scores", "tokens", "priority"),
}
"""Arguments that are true or false, and the kinds of action that have them."""

CLUSTERS: dict[str, dict[str, Any]] = {
    "equal": {"workers": 4},
    "unlike": {"workers": [{"count": 2}, {"kv_capacity": 400}, {"batch_time": {"composition": "vidur"}}]},
    "apart": {"workers": APART, "system": {"transfer_latency": 0.02, "transfer_time": 1e-4}},
    "lonely": {"workers": [{"role": "prefill"}, {"count": 2, "role": "decode"}]},
}


def share_prefixes(arguments: dict[str, Any], rng: np.random.Generator) -> None:
    """Let the requests of a configuration begin alike, and the system have a prefix cache."""
    unit = arguments["block_size"] * int(rng.integers(1, 4))
    prefixes = {
        "levels": [{"count": 3, "tokens": 14, "zipf": 1.0}],
        "turns": {
            "number": 3,
            "open": int(rng.integers(1, 9)),
            "max_context": 110,
            "gaps": [{"kind": "tool", "median": 0.5, "mean": 1.0}, {"median": 2.0}],
        },
        "block": unit,
    }
    limits = {"max_prompt_len": 40, "max_output_len": 30}
    arguments["workload"] = {**arguments["workload"], "limits": limits, "prefixes": prefixes}
    rules = ("lru", "fixed:user=2.0,tool=inf", "reload_cost", "order", "clairvoyant")
    cache = {
        "prefix_cache": ("computed", "scheduled")[int(rng.integers(2))],
        "prefix_block": unit,
        "cache_rule": rules[int(rng.integers(len(rules)))],
        "sessions": ("open", "closed")[int(rng.integers(2))],
    }
    if arguments.get("action") == "keep":
        cache["cache_rule"] = "lru"  # the agent decides
    arguments["system"] = {**arguments["system"], **cache}


def serving_arguments(rng: np.random.Generator) -> dict[str, Any]:
    """Return a valid configuration of an environment that schedules one worker, with any scenario and action."""

    def one(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    # Adversarial requests are a fixed list; their number and rate cannot be set.
    names = (name for name in scenario_names() if name != "mc-sf-adversarial")
    scenario = one(*(name for name in names if load_scenario(name).workers == 1))
    arguments: dict[str, Any] = {
        "action": one(
            "admit_evict",
            "admit_count",
            "flags",
            "knobs",
            "tokens",
            "rank",
            "rank_scores",
            "priority",
            "keep",
        ),
        "scenario": scenario,
        "observation": one("flat", "dict", "rllib"),
        "queue_window": one(1, 2, 5, 16),
        "active_window": one(1, 3, 16),
        "epochs": one("iteration", "decision"),
        "overflow": one("lifo", "clear"),
        "num_requests": int(rng.integers(1, 40)),
        "hold": int(rng.integers(1, 10)),
        "stall_limit": one(10, 200),
        "block_size": one(1, 1, 4),  # a divisor of the memory of slotted requests, 40 tokens
        "system": {
            "first_token": one("counted", "uncounted", "decode"),
            "progress_on_evict": one("lost", "recompute", "kept"),
            "requeue": one("arrival", "front", "back"),
        },
        "reward": {
            name: float(w)
            for name, w in zip(REWARD_TERMS, rng.uniform(-1, 1, len(REWARD_TERMS)), strict=True)
            if w > 0
        },
    }
    if scenario != "mc-sf-model-2" and rng.random() < 0.8:  # little memory
        arguments |= {
            "workload": SHORT,
            "kv_capacity": int(rng.integers(116, 300)),
            "block_size": one(1, 1, 5, 16),
            "rate": one(5.0, 50.0, 500.0),
        }
        predictor = one(
            {"kind": "exact"}, {"kind": "noisy", "epsilon": 0.5}, {"kind": "interval", "epsilon": 0.5}
        )
        if predictor["kind"] != "exact":
            arguments["workload"] = {**SHORT, "predictions": predictor}
        information = [n for n in ("true_length", "slo") if rng.random() < 0.3]
        if rng.random() < 0.7:
            information.append("length_interval" if predictor["kind"] == "interval" else "predicted_length")
        arguments["information"] = information
    elif rng.random() < 0.3 or load_scenario(scenario).make_workload().sample(0).predicted_output_len is None:
        arguments["information"] = []
    if arguments["action"] in ("priority", "keep"):
        arguments.setdefault("information", [])
    shown = arguments.get("information", ["predicted_length"])
    arguments["queue_order"] = one(
        "queue", "prompt", "attained", *(["predicted", "volume"] if "predicted_length" in shown else [])
    )
    if arguments["action"].startswith("rank"):
        arguments["queue_order"] = one("rank", arguments["queue_order"])
        arguments["features"] = [n for n in ("rank", "priority", "saved_duration") if rng.random() < 0.5]
    if arguments["action"] == "priority":
        arguments |= one(
            {"scheduler": one("ranked", "work_conserving_sjf"), "ask_every": one(0, 1, 5)},
            {"answer": "score", "ask_every": one(0, 1, 5)},
            {"answer": "class", "scheduler": one("ranked", "flow_control_classes")},
        )
    if arguments["action"] == "keep":
        arguments |= {"scheduler": one("fcfs", "vllm_v1", "sarathi"), "lifetimes": one([0.5, 4.0], [])}
    if arguments["action"] == "rank_scores" and rng.random() < 0.5:
        arguments["weights"] = {"cost": 0.8, "gate": 1.0, "value": 0.05}
    if rng.random() < 0.3:
        arguments["load"] = one((0.5, 2.0), (3.0, 3.0))
    if rng.random() < 0.3:
        arguments["reward"] = {name: 0.5 for name in ("latency", "ttft", "goodput") if rng.random() < 0.7}
        arguments["reward_reference"] = one("fcfs", "alpha_beta:alpha=0.2,beta=0.3", "sarathi")
    if arguments["action"] == "knobs" and rng.random() < 0.3:
        arguments["knobs"] = {one("protection", "budget", "quantum"): (0, 3), "cap": one((0, 5), (7,))}
    if rng.random() < 0.2:
        arguments["horizon"] = float(rng.uniform(0.5, 20))
    for name, kinds in SWITCHES.items():
        if arguments["action"] in kinds:
            arguments[name] = one(False, True)
    if "kv_capacity" in arguments and (rng.random() < 0.4 or scenario == "agent-sessions"):
        share_prefixes(arguments, rng)
        if rng.random() < 0.7:
            arguments["features"] = [*arguments.get("features", ()), "prefix_cache"]
    return arguments


def routing_arguments(rng: np.random.Generator) -> dict[str, Any]:
    """Return a valid configuration of an environment that routes."""

    def one(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    arguments: dict[str, Any] = {
        **CLUSTERS[one(*CLUSTERS)],
        "policy": one("mc_sf", "fcfs", "alpha_greedy:alpha=0.2", "sarathi", "work_conserving_fcfs"),
        "workload": {**SHORT, "predictions": {"kind": "noisy", "epsilon": 0.3}},
        "kv_capacity": int(rng.integers(150, 400)),
        "num_requests": int(rng.integers(1, 50)),
        "rate": one(20.0, 200.0, 2000.0),
        "observation": one("flat", "dict", "rllib"),
        "information": one([], ["predicted_length"], ["true_length", "slo"]),
        "stall_limit": one(None, 100),
        "block_size": one(1, 1, 4),
    }
    system = {
        "first_token": one("counted", "uncounted"),
        "progress_on_evict": one("lost", "recompute", "kept"),
        "requeue": one("arrival", "front", "back"),
    }
    arguments["system"] = {**arguments.get("system", {}), **system}
    if rng.random() < 0.3:
        arguments["horizon"] = float(rng.uniform(0.1, 5))
    if rng.random() < 0.4:
        share_prefixes(arguments, rng)
    return arguments
