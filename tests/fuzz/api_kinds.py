"""Kinds of input from programs: specs, request tables, forecasts, seeds, actions, arguments of environments."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.file_kinds import SMALL
from fuzz.kinds import Kind, refuse

SPECS = (
    "fcfs",
    "mc_sf:protection=0.1",
    "alpha_greedy:alpha=0.25",
    "sarathi:token_budget=512,order=spf",
    "ranked",
    "vllm_v1",
    "wait",
    "work_conserving_sjf",
    "flow_control:budget=3",
    "slai",
    "clairvoyant",
    "rad",
)


def spec_seeds() -> list[Any]:
    routers = ("round_robin", "join_shortest_queue", "weighted:work=1.5", "uniform_random")
    hardware = (
        "roofline:model=llama3-70b,gpu=h200,tp=4",
        "llama2-70b-a100-tp2",
        "roofline:model=llama3-8b,gpu=a100-80gb",
    )
    return [
        *[{"what": "policy", "text": text} for text in SPECS],
        *[{"what": "router", "text": text} for text in routers],
        *[{"what": "hardware", "text": text} for text in hardware],
        *[{"what": "extent", "text": text} for text in ("200r", "3.5", 2.0)],
        *[{"what": "target", "text": text} for text in ("ttft_p99<=1.5", "slo_attainment>=0.9")],
        *[{"what": "workload", "text": text} for text in ("lmsys", "wait-low", "trace.csv")],
    ]


def play_spec(content: Any, folder: Path) -> None:
    from kvgym.batch_time.deployments.load import load_hardware
    from kvgym.policies.policy import make_policy
    from kvgym.policies.routing import make_router
    from kvgym.simulator.recording.window import parse_extent
    from kvgym.studies.capacity.targets import parse_targets
    from kvgym.workloads import make_workload

    content = content if isinstance(content, dict) else {}
    text, what = content.get("text"), content.get("what")
    if what in ("policy", "router"):
        made: Any = (make_policy if what == "policy" else make_router)(text)  # type: ignore[operator]
        for name, value in made.hyperparameters().items():
            refuse(
                isinstance(value, float) and math.isnan(value),
                f"a hyperparameter that is not a number: {name}",
            )
    elif what == "hardware":
        load_hardware(str(text))
    elif what == "extent":
        parse_extent(text, "warm_up")
    elif what == "target":
        parse_targets([str(text)])
    else:
        make_workload(str(text))


SPEC = Kind("spec", spec_seeds, play_spec)


def table_seeds() -> list[Any]:
    columns = {
        "arrival_time": [0.0, 0.5, 0.5, 2.0],
        "prompt_len": [10, 20, 30, 5],
        "output_len": [4, 9, 1, 30],
    }
    more = {
        "predicted_output_len": [4, 8, 2, 30],
        "predicted_low": [1, 2, 1, 3],
        "predicted_high": [9, 9, 9, 40],
        "class_id": [0, 1, 0, 1],
        "priority": [0, -1, 5, 0],
        "ttft_slo": [1.0, 2.0, 3.0, math.inf],
        "tbt_slo": [0.1] * 4,
    }
    system = {"kv_capacity": 200, "horizon": 100.0, "stall_limit": 5000, "block_size": 4, "first_token": "counted",
              "progress_on_evict": "lost", "requeue": "arrival", "swap_time": 0.0, "replicas": 1}  # fmt: skip
    run = {"policy": "fcfs", "seed": 3}
    return [
        {"columns": columns, "system": system, "run": run},
        {"columns": {**columns, **more}, "system": system, "run": run},
    ]


def play_table(content: Any, folder: Path) -> None:
    """Simulate requests; accepted values must equal the given ones."""
    from kvgym.batch_time import AffineBatchTime
    from kvgym.metrics.compute import compute_metrics
    from kvgym.policies.runner import simulate
    from kvgym.simulator.system import System
    from kvgym.workloads.table import RequestTable

    content = content if isinstance(content, dict) else {}
    parts = [content.get(name) for name in ("columns", "system", "run")]
    given, rules, run = (
        {str(k): v for k, v in part.items()} if isinstance(part, dict) else {} for part in parts
    )
    table = RequestTable.from_columns(**given)
    for name, values in given.items():
        if values is not None:
            _check_column(name, values, table)
    replicas = rules.pop("replicas", 1)
    known = {field.name for field in dataclasses.fields(System)}
    rules = {name: value for name, value in rules.items() if name in known}
    system = System(**{"kv_capacity": 200, **rules, "batch_time": AffineBatchTime(0.01)})
    for name in ("stall_limit", "kv_capacity", "block_size"):
        refuse(_no_count(rules.get(name, 1)), f"no whole number of {name}")
    refuse(
        _no_count(replicas) and replicas is not None and system.replicate(replicas) is not None, "replicas"
    )
    seed = run.get("seed", 0)
    policy = run.get("policy")
    result = simulate(system, table, policy[:200] if isinstance(policy, str) else "fcfs", seed=seed)
    refuse(_no_seed(seed), "an invalid seed")
    compute_metrics(result)


def speculation_seeds() -> list[Any]:
    run = {
        "policy": "vllm_v1:max_num_batched_tokens=24,max_num_seqs=6",
        "seed": 3,
        "capacity": 120,
        "size": 4,
    }
    lengths = {"prompt": [10, 20, 30, 5, 1, 17], "output": [4, 9, 1, 30, 12, 25], "gap": 0.02}
    table = {"acceptance": [0.7, 0.5], "depth": 3, "choose": "table", "by_batch": [[1, 2, 3], [3, 9, 1]]}
    each = {"acceptance": "ngram-code", "depth": 4, "choose": "cost_each", "spread": 1.0, "lookahead": 2}
    return [
        {"speculation": given, "lengths": lengths, "run": run | {"policy": policy}}
        for given in (table, each, "eagle-chat:depth=5,choose=cost")
        for policy in (run["policy"], "fcfs", "lpm", "cost_aware")
    ]


def play_speculation(content: Any, folder: Path) -> None:
    """Simulate requests with drafts, compiled; every request ends with its tokens, and memory is empty again."""
    from kvgym.batch_time import AffineBatchTime
    from kvgym.policies.runner import simulate
    from kvgym.simulator.drafts.settings import make_speculation
    from kvgym.simulator.system import System
    from kvgym.workloads.table import RequestTable

    content = content if isinstance(content, dict) else {}
    run, lengths = (part if isinstance(part := content.get(n), dict) else {} for n in ("run", "lengths"))
    prompts, outputs = lengths.get("prompt"), lengths.get("output")
    count = len(prompts) if isinstance(prompts, list) else 0
    table = RequestTable.from_columns(
        arrival_time=[0.02 * i for i in range(count)], prompt_len=prompts, output_len=outputs
    )
    model = AffineBatchTime(0.01, per_decode_token=1e-4)
    rules = {"kv_capacity": run.get("capacity"), "block_size": run.get("size"), "stall_limit": 5000}
    engine = {"output_kv": "next_iteration", "progress_on_evict": "recompute", "requeue": "front"}
    speculation = make_speculation(content.get("speculation"))
    system = System(batch_time=model, speculation=speculation, **rules, **engine)
    policy = run.get("policy")
    result = simulate(system, table, policy[:200] if isinstance(policy, str) else "fcfs", seed=3, log=True)
    made = result.requests["num_output_tokens"]
    refuse(made.tolist() != table.output_len.tolist(), "a request without all of its tokens")
    refuse(int(result.worker["kv_allocated"][0]) != 0, "memory in use after the last request")
    refuse(bool((result.log["kv_tokens"] > system.kv_capacity).any()), "more memory than there is")


SPECULATION = Kind("speculation", speculation_seeds, play_speculation, quick=False)


def _check_column(name: str, values: Any, table: Any) -> None:
    """Fail if a column accepted something other than a number, or changed a value."""
    found = np.asarray(getattr(table, name)).tolist()
    try:
        whole = list(values)
    except TypeError:
        refuse(True, f"a column that is none: {name}")
    wrong = [v for v in whole if v is None or isinstance(v, str | bytes | complex | dict | list)]
    wrong += [
        v for v in whole[:1] if {type(v) for v in whole} == {bool}
    ]  # next to numbers NumPy converts them
    refuse(bool(wrong), f"values that are no numbers: {name}")
    refuse(
        sorted(map(float, whole)) != sorted(map(float, found)),
        f"values that differ from the given ones: {name}",
    )
    records = table.to_records()
    if name in ("priority", "class_id"):
        refuse(records[name].tolist() != found, f"values that change in records: {name}")


def _no_count(value: Any) -> bool:
    """Whether a value is clearly not a whole number ≥ 1; None stands for a default."""
    return value is not None and (_no_seed(value) or operator.index(value) < 1)


def _no_seed(value: Any) -> bool:
    """Whether a value is not a whole number ≥ 0."""
    try:
        return isinstance(value, bool | np.bool_) or operator.index(value) < 0
    except TypeError:
        return True


TABLE = Kind("table", table_seeds, play_table, odd=True, weight=3)


FORECAST_POLICIES = ("trail", "tie", "after_sagesched", "learned_rank", "mc_sf", "fcfs")


def forecast_seeds() -> list[Any]:
    tenths = [2, 2, 3, 3, 5, 8, 8, 9, 20, 40]  # of every request
    renewed = {"every": 2, "renewed": [5, 6, 9, 3, 4, 30], "start": [0, 2, 2, 3], "count": [2, 1, 0, 3]}
    plain = {"every": 0, "renewed": [], "start": [0] * 4, "count": [0] * 4}
    overlapping = {"every": 1, "renewed": [1, 2**31 - 1], "start": [0, 1, 0, 2], "count": [2, 1, 1, 0]}
    return [
        *[{"tenths": given, **renewed, "policy": "trail"} for given in (tenths, None)],
        *[{"tenths": tenths, **plain, "policy": name} for name in ("tie", "after_sagesched")],
        {"tenths": None, **overlapping, "policy": "trail"},
        {"tenths": tenths, "every": 3, "rows": [[4, 5], [9], [], [30] * 9], "policy": "trail"},
    ]


def play_forecasts(content: Any, folder: Path) -> None:
    """Simulate requests with forecasts; what compiled code reads must lie inside of the arrays."""
    from kvgym.batch_time import AffineBatchTime
    from kvgym.policies.runner import simulate
    from kvgym.simulator.system import System
    from kvgym.workloads import Forecasts, RequestTable

    content = content if isinstance(content, dict) else {}
    tenths, every = content.get("tenths"), content.get("every", 0)
    if isinstance(tenths, list) and len(tenths) == 10:
        tenths = [tenths] * 4
    if "rows" in content:
        forecasts = Forecasts.from_rows(tenths, content["rows"], every)
    else:
        parts = [content.get(name) for name in ("renewed", "start", "count")]
        forecasts = Forecasts(tenths, every, *parts)
    start, count, renewed = forecasts.start, forecasts.count, forecasts.renewed
    refuse(
        bool((start < 0).any() or (count < 0).any() or (start + count > len(renewed)).any()),
        "renewals outside of the array",
    )
    refuse(bool((renewed < 1).any() or (renewed >= 2**31).any()), "a renewal that is no length")
    given = forecasts.tenths
    refuse(
        given is not None and bool((given < 1).any() or (np.diff(given) < 0).any()), "tenths that are none"
    )
    table = RequestTable.from_columns(
        arrival_time=[0.0, 0.5, 0.5, 2.0], prompt_len=[10, 20, 30, 5], output_len=[4, 9, 1, 30],
        predicted_output_len=[4, 8, 2, 30], client_id=[0, 1, 0, 7], forecasts=forecasts,
    )  # fmt: skip
    for rows in (slice(None), slice(1, 3)):
        name = content.get("policy")
        policy = name if isinstance(name, str) and name in FORECAST_POLICIES else "trail"
        result = simulate(System(200, AffineBatchTime(0.01), horizon=100.0), table.select(rows), policy)
        refuse(not result.completed, "a run that does not end")


FORECASTS = Kind("forecasts", forecast_seeds, play_forecasts, odd=True, weight=2)


def seed_seeds() -> list[Any]:
    return [
        {"env": env, "seed": seed, "options": options}
        for env in ("scalar", "vector", "route")
        for seed in (None, 3)
        for options in (None, {"workload_seed": 5})
    ] + [{"env": "vector", "seed": [1, 2], "options": {"reset_mask": [True, False], "workload_seed": [1, 2]}}]


@functools.cache
def environment(name: str) -> Any:
    """Return an environment; each is made once."""
    import gymnasium as gym

    import kvgym  # noqa: F401

    small: dict[str, Any] = {"scenario": "mc-sf-noisy", "num_requests": 20}
    if name == "vector":
        return gym.make_vec(
            "kvgym/AdmitCount-v0", num_envs=2, vectorization_mode="vector_entry_point", **small
        )
    if name == "route":
        return gym.make("kvgym/Route-v0", num_requests=20, disable_env_checker=True).unwrapped
    return gym.make(IDS.get(name, "kvgym/AdmitCount-v0"), disable_env_checker=True, **small).unwrapped


def play_seed(content: Any, folder: Path) -> None:
    content = content if isinstance(content, dict) else {}
    name = content.get("env")
    seed, options = content.get("seed"), content.get("options")
    name = name if isinstance(name, str) and name in ("vector", "route") else "scalar"
    env = environment(name)
    env.reset(seed=seed, options=options)
    if name != "vector":
        refuse(seed is not None and _no_seed(seed), "an invalid seed")
        if isinstance(options, dict) and "workload_seed" in options:
            refuse(_no_seed(options["workload_seed"]), "an invalid workload_seed")
    refuse(bool(options) and not isinstance(options, dict), "options that are not a mapping")


SEED = Kind("seed", seed_seeds, play_seed, odd=True)

IDS = {
    "count": "kvgym/AdmitCount-v0",
    "evict": "kvgym/AdmitEvict-v0",
    "flags": "kvgym/AdmitEvictFlags-v0",
    "knobs": "kvgym/Knobs-v0",
    "rank": "kvgym/Rank-v0",
}


def action_seeds() -> list[Any]:
    from kvgym.envs import IDS as ALL

    IDS.update({name.removeprefix("kvgym/"): name for name in ALL if name != "kvgym/Route-v0"})
    found = []
    for name in [n for n in IDS if n.endswith("v0")] + ["route"]:
        space = environment(name).action_space
        space.seed(0)
        found += [{"env": name, "action": np.asarray(space.sample()).tolist()} for _ in range(3)]
    return found


def play_action(content: Any, folder: Path) -> None:
    content = content if isinstance(content, dict) else {}
    name = content.get("env")
    if not IDS.get("AdmitCount-v0"):
        action_seeds()
    env = environment(name if isinstance(name, str) and (name in IDS or name == "route") else "count")
    action = content.get("action")
    env.reset(seed=0)
    _, reward, *_ = env.step(action)
    refuse(not math.isfinite(reward), "a reward that is not finite")
    given = np.asarray(action)
    refuse(given.dtype.kind not in "biuf", f"an action without numbers: {given.dtype}")
    refuse(given.shape != (env.action_space.shape or ()), "an action with another shape")
    space = env.action_space
    low = getattr(space, "low", getattr(space, "start", 0))
    refuse(
        bool((given.astype(float) < low).any() or np.isnan(given.astype(float)).any()),
        "an action out of bounds",
    )


ACTION = Kind("action", action_seeds, play_action, odd=True, weight=2)


def argument_seeds() -> list[Any]:
    usual = {
        "action": "admit_count",
        "queue_window": 4,
        "active_window": 4,
        "workload": SMALL["workload"],
        "kv_capacity": 400,
        "batch_time": SMALL["batch_time"],
        "load": [0.5, 1.5],
        "information": ["predicted_length"],
        "horizon": 50.0,
    }
    rules = {
        "scenario": "mc-sf-noisy",
        "num_requests": 20,
        "rate": 3.0,
        "reward": {"latency": 1.0, "tokens": 0.5},
    }
    more = {
        "system": {"requeue": "front"},
        "time_scale": 3.0,
        "reward_scale": 2.0,
        "stall_limit": 50,
        "hold": 3,
    }
    return [usual, rules, {**rules, **more}, {**rules, "action": "knobs", "knobs": {"quantum": [0]}},
            {**rules, "action": "rank_scores", "weights": {"prompt": 0.5}},
            {**rules, "action": "priority", "answer": "score", "scheduler": "ranked", "ask_every": 4}]  # fmt: skip


def play_arguments(content: Any, folder: Path) -> None:
    from kvgym.envs.scheduling.environment import ServingEnv

    arguments = (
        {str(k): v for k, v in content.items()} if isinstance(content, dict) else {"scenario": content}
    )
    env = ServingEnv(**arguments)
    observation, _ = env.reset(seed=0)
    flat = observation if isinstance(observation, np.ndarray) else np.zeros(1)
    refuse(not np.isfinite(flat).all(), "observations that are not finite")


ARGUMENTS = Kind("arguments", argument_seeds, play_arguments, odd=True)
