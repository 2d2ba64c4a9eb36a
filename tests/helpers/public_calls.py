"""Everything public that can be called, with valid arguments to begin with."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator

import numpy as np

import kvgym
from kvgym.experiments.scenario import load_scenario
from kvgym.simulator.system import System
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable


def public_modules(module: types.ModuleType = kvgym) -> Iterator[types.ModuleType]:
    """Yield kvgym and all modules that a public module lists in ``__all__``."""
    yield module
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            assert value.__name__.startswith(f"{module.__name__}.")
            assert value.__name__.endswith(f".{name}")
            yield from public_modules(value)


MODULES = {module.__name__: module for module in public_modules()}

INSIDE_KERNELS = {"kvgym.kernels"}
"""Helpers that are called by compiled kernels, not by programs; so are compiled functions elsewhere."""

RUNS = {
    "bound", "compare", "demonstrate", "examine", "export", "find_capacity", "fit_overhead", "make_sb3_env",
    "provision", "replay_log", "resume", "sweep", "train", "tune", "unbeatable",
}  # fmt: skip
"""What takes long once all arguments are right: only those without a default are tried."""

ELSEWHERE = {"jobs", "ray", "progress", "tell"}
"""Arguments that start processes, or are called later."""


def public() -> dict[str, object]:
    """Return every public callable once, by the first module that lists it and its name."""
    found, seen = {}, list[object]()
    for module in MODULES.values():
        for name in module.__all__:
            value = getattr(module, name)
            own = str(getattr(value, "__module__", "")).startswith("kvgym")
            raises = isinstance(value, type) and issubclass(value, BaseException)
            made = (
                callable(value) and not inspect.isabstract(value) and not isinstance(value, types.ModuleType)
            )
            new = not any(value is other for other in seen)
            if new and made and own and not raises and not hasattr(value, "py_func"):
                seen.append(value)
                found[f"{module.__name__}:{name}"] = value
    return {name: value for name, value in found.items() if name.partition(":")[0] not in INSIDE_KERNELS}


PUBLIC = public()


@functools.cache
def samples():
    """Valid arguments by name."""
    table = RequestTable([0, 0, 2], [3] * 3, [3, 2, 2])
    batch_time = kvgym.make_batch_time({"kind": "unit"})
    system = System(kv_capacity=20, batch_time=batch_time)
    scenario = load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 10, "rate": 5}
    )
    return {
        "table": table, "requests": table, "system": system, "scenario": scenario, "policy": "fcfs", "seed": 0,
        "router": "round_robin", "batch_time": batch_time, "hardware": "llama2-70b-a100-tp2", "path": "x.csv",
        "folder": "f", "seeds": 1, "metric": "e2e_latency_mean", "kv_capacity": 200, "capacity": 200.0,
        "result": kvgym.simulate(system, table, "fcfs", log=True), "targets": "ttft_p99<=1.5", "plan": {},
    }  # fmt: skip


def sample(parameter):
    """Return a value for an argument: by its name, or by the beginning of its annotation."""
    text = str(parameter.annotation)
    c = ClassStatistics("a", rate=1.0, prompt_len=10.0, output_len=10.0)
    by_kind = {
        "int": 5, "float": 0.5, "bool": False, "str": "x", "ArrayLike": np.array([3, 4, 5]), "NDArray": np.ones(3),
        "Sequence[ClassStatistics]": [c], "ClassStatistics": c, "Sequence": [1], "Iterable": [1], "tuple": (1, 2),
        "Mapping": {}, "dict": {}, "Callable": print,
    }  # fmt: skip
    return samples().get(
        parameter.name, next((v for kind, v in by_kind.items() if text.startswith(kind)), None)
    )


def parameters_of(name):
    """Return the named arguments of a public function, and a value for each that has no default."""
    try:
        parameters = inspect.signature(PUBLIC[name]).parameters.values()
    except ValueError:  # of named tuples and what C code makes
        return [], {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return named, {p.name: sample(p) for p in named if p.default is p.empty}
