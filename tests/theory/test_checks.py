"""Every public function of the theory, and of the formulas of reproductions, rejects nan and infinity."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reproduce import formulas

import kvgym.theory
from kvgym.batch_time import GPU, AffineBatchTime, ModelShape, TileBatchTime
from kvgym.errors import ConfigError
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.groups import SegmentGroup
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

CLASSES = (ClassStatistics("a", 0.5, 10.0, 4.0), ClassStatistics("b", 0.25, 20.0, 8.0))
TIME = AffineBatchTime.from_wait(0.01, 1e-5)
NODE = TileBatchTime(
    GPU(name="toy", peak_flops=1e6, memory_bandwidth=1e5, memory=1e9, num_sms=108),
    ModelShape(name="toy", num_layers=2, hidden=16, num_heads=4, num_kv_heads=2, ffn=32, vocab=16),
    t_row=8, t_col=4, t_red=2, gemv_row=4, gemv_col=2, overhead=0.0,
).node  # fmt: skip
TABLE = RequestTable([0.0, 1.0], [3, 5], [2, 4])
LENGTHS = {"prompt_len": [3, 5], "output_len": [2, 4]}
SEGMENTS = {"rates": [2.0, 1.0], "prompt_len": 5.0, "output_lens": [3, 6]}
PIECES = {"times": [0.0, 10.0], "rates": [[1.0, 2.0], [1.0, 1.0]]}
STEP = {"n_prev": 10.0, "n_k": 8.0, "p_k": 0.5}
BUFFER = {"num_batches": 100.0, "delta": 0.1}
PREDICTED = {"prompt_len": 3, "predicted_len": [2, 4], "kv_capacity": 100}
GROUPS = (
    SegmentGroup(5.0, (3, 6), (ClassStatistics("a", 2.0, 5.0, 3.0), ClassStatistics("b", 1.0, 5.0, 6.0))),
)

ARGUMENTS: dict[str, dict[str, Any]] = {
    "buffers.theta": STEP,
    "buffers.theta_lower_bound": STEP,
    "buffers.memory_bound": {"thresholds": [10, 8], **SEGMENTS, **BUFFER, "survival": [0.5]},
    "buffers.segment_design": {
        "rates": [2.0, 1.0], "prompt_len": 5.0, "num_segments": 2, "batch_time": TIME, "output_lens": [3, 6],
        "slack": 0.1, "max_memory": 1e6,
    },
    "buffers.memory_by_segments": {
        "rates": [2.0, 1.0], "prompt_len": 5.0, "segments": [1, 2], "batch_time": TIME, **BUFFER,
        "output_lens": [3, 6], "slack": 0.1,
    },
    "flow.request_workload": LENGTHS,
    "flow.mean_workload": {},
    "flow.class_load": {"classes": CLASSES, "slot": 1.0},
    "flow.load": {"rate": 1.0, "workload": 10.0},
    "flow.is_overloaded": {"arriving": 10.0, "kv_capacity": 20.0},
    "flow.peak_memory": {"classes": CLASSES, "budgets": [1, 2]},
    "flow.sufficient": {"classes": CLASSES, "budgets": [1, 2], "kv_capacity": 1e4, "slot": 1.0},
    "flow.sufficient_unknown": {
        "budget": 2.0, "rate": 1.0, "workload": 10.0, "kv_capacity": 100.0, "epsilon": 0.1,
    },
    "flow.overflow_bound": {
        "slots": 100, "kv_capacity": 100.0, "epsilon": 0.1, "largest_budget": 3, "longest": 10,
    },
    "flow.largest_budgets": {"classes": CLASSES, "kv_capacity": 1e4},
    "flow.smallest_budgets": {"classes": CLASSES, "slot": 1.0},
    "flow.largest_budget_unknown": {"workload": 10.0, "kv_capacity": 100.0, "epsilon": 0.1},
    "flow.drift_bound": {"queue": 3.0, "rate": 1.0, "budget": 2.0, "variance": 1.0},
    "flow.mean_queue_bound": {"rate": 1.0, "budget": 2.0, "variance": 1.0},
    "flow.mean_latency_bound": {"classes": CLASSES, "budgets": [1, 2], "slot": 1.0},
    "flow.unfinished_growth": {"arriving": 30.0, "kv_capacity": 20.0, "largest_workload": 10.0},
    "flow.least_unfinished": {"workloads": [3.0, 5.0], "kv_capacity": 2.0, "slots": 3},
    "fluid.class_load": {},
    "fluid.stability_load": {"classes": CLASSES, "d1": 1e-5},
    "fluid.is_unstable": {"classes": CLASSES, "d1": 1e-5},
    "fluid.fluid_equilibrium": {"classes": CLASSES, "d0": 0.01, "d1": 1e-5},
    "fluid.batch_memory": {"classes": CLASSES, "thresholds": [2, 1]},
    "fluid.load_time": {
        "batch_time": TIME, "prefills": 1.0, "prefill_tokens": 5.0, "prefill_squares": 25.0, "decodes": 2.0,
        "decode_context": 9.0,
    },
    "fluid.full_batch_time": {"classes": CLASSES, "thresholds": [2, 1], "batch_time": TIME},
    "fluid.wait_margin": {"classes": CLASSES, "thresholds": [2, 1], "batch_time": TIME},
    "fluid.wait_condition": {"classes": CLASSES, "thresholds": [2, 1], "batch_time": TIME},
    "fluid.wait_thresholds": {"classes": CLASSES, "batch_time": TIME, "slack": 0.1, "max_memory": 1e6},
    "fluid.practical_thresholds": {"classes": CLASSES, "batch_limit": 128},
    "fluid.safe_arrivals": {"classes": CLASSES, "per_stage": [2, 1], "capacity": 1e3, "iterations": 2},
    "fluid.fcfs_overflow_probability": {
        "classes": CLASSES, "per_stage": [2, 1], "capacity": 1e3, "iterations": 2,
    },
    "fluid.at_least": {"x": [1.5, 2.0]},
    "fluid.least_thresholds": {
        "step": lambda n: n, "start": np.ones(2), "memory": lambda n: 1.0, "max_memory": 10.0, "condition": "",
    },
    "fluid.whole_numbers": {"name": "values", "values": [1, 2]},
    "groups.common_pieces": {"classes": CLASSES},
    "groups.group_batch_time": {"groups": GROUPS, "thresholds": np.array([10, 8]), "batch_time": TIME},
    "groups.group_memory": {"groups": GROUPS, "thresholds": np.array([10, 8])},
    "groups.group_memory_bound": {"groups": GROUPS, "thresholds": np.array([10, 8]), **BUFFER},
    "groups.group_thresholds": {"groups": GROUPS, "batch_time": TIME, "slack": 0.1, "max_memory": 1e6},
    "groups.merged": {"classes": CLASSES},
    "groups.safest_thresholds": {"groups": GROUPS, "batch_time": TIME, **BUFFER},
    "groups.segment_loads": {"groups": GROUPS},
    "groups.split_thresholds": {"groups": GROUPS, "thresholds": np.array([10, 8])},
    "limits.best_throughput": {"capacity": 4, "known": True, "evictions": 1, "share": 0.5},
    "limits.least_backlog": {"rate": 2.0, "service": 1.0, "time": 10.0},
    "limits.least_latency": {"rate": 2.0, "service": 1.0, "time": 10.0},
    "limits.service_rate": {"classes": CLASSES, "capacity": 1e4, "d0": 0.01, "d1": 1e-5},
    "limits.unknown_types_equilibrium": {},
    "memory_constrained.competitive_ratio_at_most": {"alpha": 2.0, "exponent": 3},
    "memory_constrained.group_of": {"predicted_len": [2, 4]},
    "memory_constrained.latency_at_most": {**PREDICTED, "alpha": 1.0, "exponent": 3},
    "memory_constrained.meets_theorem": PREDICTED,
    "memory_constrained.optimum_at_least": {**PREDICTED, "alpha": 1.0},
    "memory_constrained.ordered_volume": {"prompt_len": 3, "predicted_len": [2, 4]},
    "memory_constrained.spans_at_most": {**PREDICTED, "alpha": 1.0, "exponent": 2},
    "nested.chain": {"first": 10.0, "p": np.array([0.5]), "slack": 0.1},
    "nested.least_above": {"x": 1.0},
    "nested.survival_probabilities": {"rates": [2.0, 1.0]},
    "nested.segment_memory": {"thresholds": [10, 8], "prompt_len": 5.0, "output_lens": [3, 6]},
    "nested.nested_batch_time": {
        "thresholds": [10, 8], "prompt_len": 5.0, "output_lens": [3, 6], "batch_time": TIME,
    },
    "nested.nested_condition": {"thresholds": [10, 8], **SEGMENTS, "batch_time": TIME},
    "nested.nested_thresholds": {**SEGMENTS, "batch_time": TIME, "slack": 0.1, "max_memory": 1e6},
    "nested.practical_nested_thresholds": {
        "rates": [2.0, 1.0], "output_lens": [3, 6], "batch_limit": 128, "slack": 0.1,
    },
    "nested.least_chain": {
        "arrivals": lambda t: t, "p": np.array([0.5]), "prompt_len": 5.0, "ends": np.array([3, 6]),
        "batch_time": TIME, "slack": 0.1, "max_memory": 1e6, "condition": "",
    },
    "nested.above": {"n": 2.0, "x": 1.0},
    "nested.drifts_down": {"n": np.array([2.0, 2.0]), "p": np.array([0.5])},
    "nested.ends_of": {"output_lens": [3, 6]},
    "nested.thresholds_of": {"thresholds": [10, 8]},
    "nested.same_length": {},
    "queues.check_whole": {"num_batches": 3},
    "queues.expected_walk_maximum": {"mean": 1.0, "threshold": 2.0, "num_batches": 3},
    "queues.kingman_bound": {"mean": 1.0, "threshold": 2.0},
    "queues.poisson_excess": {"mean": 1.0, "level": 2.0},
    "queues.poisson_queue_law": {"mean": 1.0, "threshold": 2, "num_batches": 3, "most": 10},
    "queues.queue_bound": {"mean": 1.0, "threshold": 2.0, "num_batches": 3},
    "queues.segment_queue_bound": STEP,
    "queues.segment_queue_law": {"n_prev": 10, "n_k": 8, "p_k": 0.5, "num_batches": 3, "most": 10},
    "queues.segment_queue_tail": {**STEP, "level": 2.0},
    "queues.throughput_gap": {"mean": 1.0, "threshold": 2.0, "num_batches": 3},
    "queues.zero_drift_bound": {"threshold": 2.0, "num_batches": 3},
    "stability.outstanding_memory": {**LENGTHS, "chunk": 4, "prefilled": [0, 5], "generated": [0, 1]},
    "stability.cumulative_memory": {**LENGTHS, "chunk": 4},
    "stability.mean_cumulative_memory": {"requests": TABLE, "chunk": 4},
    "stability.mean_cumulative_memory_uniform": {"prompt_len": (1, 5), "output_len": (2, 4), "chunk": 4},
    "stability.service_rate": {"kv_capacity": 100.0, "batch_time": 0.1, "mean_memory": 20.0},
    "stability.implied_batch_time": {"kv_capacity": 100.0, "rate": 1.0, "mean_memory": 20.0},
    "stability.memory_slack": {"kv_capacity": 100.0, "longest": 20.0},
    "stability.is_stable": {"rate": 1.0, "service": 2.0, "slack": 0.1},
    "stability.is_overloaded": {"rate": 1.0, "service": 2.0},
    "stability.provision": {"rate": 9.0, "service": 2.0, "utilisation": 0.9},
    "stability.batch_durations": {},
    "stability.typical_batch_time": {"durations": [0.1, 0.2]},
    "tile_capacity.request_time": {**LENGTHS, "chunk": 4},
    "tile_capacity.time_besides_prefill_attention": LENGTHS,
    "tile_chunks.attained_request_time": LENGTHS,
    "tile_chunks.best_chunks": {"prompt_len": 20, "overhead": 0.1},
    "tile_chunks.capacity_gap": LENGTHS,
    "tile_chunks.least_request_time": LENGTHS,
    "tile_chunks.prefill_time": {"chunks": [8, 4], "overhead": 0.1},
    "tile_capacity.mean_request_time": {**LENGTHS, "chunk": 4},
    "tile_capacity.max_rate": {"mean_time": 0.5, "num_nodes": 2},
    "tile_capacity.load_slack": {"rate": 1.0, "mean_time": 0.5, "num_nodes": 2},
    "tile_capacity.worst_request_time": {"longest_prompt": 10, "longest_output": 5},
    "tile_capacity.requests_per_cycle": {"slack": 0.1, "mean_time": 0.5, "worst_time": 2.0, "t_col": 64},
    "tile_capacity.cycle_length": {"num_requests": 10, "mean_time": 0.5, "worst_time": 2.0, "t_col": 64},
    "time_varying.peak_arrivals": {"c": CLASSES[0], "window": 2.0},
    "time_varying.time_varying_wait_thresholds": {
        "classes": CLASSES, "batch_time": TIME, "slack": 0.1, "max_memory": 1e6,
    },
    "time_varying.worst_arrivals": {**PIECES, "window": 2.0, "period": 20.0},
    "time_varying.worst_survival": PIECES,
    "time_varying.time_varying_condition": {"thresholds": [10, 8], **PIECES, "full_batch_time": 0.1},
    "time_varying.time_varying_thresholds": {
        **PIECES, "prompt_len": 5.0, "output_lens": [3, 6], "batch_time": TIME, "slack": 0.1, "max_memory": 1e6,
    },
}  # fmt: skip
"""Good arguments of every public function; empty if none is a number."""


@functools.cache
def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions by module and name, without checks and what takes requests alone."""
    found = {}
    for package, left_out in ((kvgym.theory, "checks"), (formulas, "classes")):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name == left_out:
                continue
            home = importlib.import_module(f"{package.__name__}.{module.name}")
            for name, function in inspect.getmembers(home, inspect.isfunction):
                if function.__module__ == home.__name__ and not name.startswith("_"):
                    found[f"{module.name}.{name}"] = function
    return found


def is_numeric(value: Any) -> bool:
    return not isinstance(value, str) and np.asarray(value).dtype.kind in "iuf"


def spoilt(value: Any, bad: float) -> Any:
    """Return a number as ``bad``, a list of numbers with ``bad`` at its end."""
    if np.ndim(value) == 0:
        return bad
    changed = np.array(value, dtype=np.float64)
    changed.flat[-1] = bad
    return tuple(changed.tolist()) if isinstance(value, tuple) else changed


def complete(name: str) -> dict[str, Any]:
    """Return the arguments of a function, with the node where it takes one."""
    takes = inspect.signature(public_functions()[name]).parameters
    nodes = {"node": NODE} if "node" in takes else {}
    return ARGUMENTS[name] | nodes | ({"nodes": [NODE]} if "worst_request" in name else {})


def cases() -> Iterator[tuple[str, str]]:
    for name, arguments in ARGUMENTS.items():
        yield from ((name, key) for key, value in arguments.items() if is_numeric(value))


def test_every_public_function_is_listed() -> None:
    assert set(ARGUMENTS) == set(public_functions())


def test_numbers_are_found_by_inspection() -> None:
    """A parameter that takes numbers is given one above; what is left are objects, texts and flags."""
    other = {
        "requests", "c", "classes", "batch_time", "form", "step", "memory", "condition", "arrivals", "name", "a",
        "b", "closed_form", "result", "estimator", "node", "nodes", "longer", "groups", "peak", "known",
        "kind", "printed",
    }  # fmt: skip
    for name, function in public_functions().items():
        given = {key for key, value in ARGUMENTS[name].items() if is_numeric(value)}
        left = set(inspect.signature(function).parameters) - given - other
        left -= {"slack"} if name == "stability.provision" else set()  # excludes utilisation: below
        assert not left, f"{name}: {left}"


@pytest.mark.parametrize("name", [name for name, arguments in ARGUMENTS.items() if arguments])
def test_the_good_arguments_are_good(name: str) -> None:
    public_functions()[name](**complete(name))


@pytest.mark.parametrize(("name", "key"), list(cases()))
def test_non_numbers_are_rejected(name: str, key: str) -> None:
    arguments = complete(name)
    wanted = {"segments": "num_segments", "ends": "output_lens"}.get(key, key)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ConfigError) as caught:
            public_functions()[name](**arguments | {key: spoilt(arguments[key], bad)})
        assert wanted in str(caught.value) or name in ("nested.drifts_down",)
        assert str(abs(bad)) in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.0, -0.1])
def test_provision_with_slack(bad: float) -> None:
    with pytest.raises(ConfigError, match="slack"):
        public_functions()["stability.provision"](rate=1.0, service=2.0, slack=bad)


def test_messages_name_the_expected_range() -> None:
    assert check_number("x", 3, least=3, most=3) == 3
    with pytest.raises(ConfigError, match=r"^x must be a finite whole number >= 1 and < 4, got 2\.5$"):
        check_number("x", 2.5, least=1, below=4, whole=True)
    for wrong in ("3", None, [1.0], True, 4, 0):
        with pytest.raises(ConfigError, match="x must be a finite number > 0 and <= 3"):
            check_number("x", wrong, above=0, most=3)  # type: ignore[arg-type]
    assert check_numbers("x", [[1, 2]]).tolist() == [[1.0, 2.0]]
    with pytest.raises(ConfigError, match=r"^x: each must be a finite number >= 0, got \[1, nan\]$"):
        check_numbers("x", [1, np.nan], least=0)
