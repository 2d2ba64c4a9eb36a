"""Everything public, called with a wrong type for each argument in turn: a result, or an error of kvgym."""

from __future__ import annotations

import inspect
import math
import traceback
import types

import numpy as np
import pytest
from test_public_names import MODULES

import kvgym
from kvgym.arguments import explained, explained_class
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.scenario import load_scenario
from kvgym.simulator.system import System
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

WRONG = (None, "x", 5, [1], object(), math.nan)
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
    found = {}
    for module in MODULES.values():
        for name in module.__all__:
            value = getattr(module, name)
            own = str(getattr(value, "__module__", "")).startswith("kvgym")
            raises = isinstance(value, type) and issubclass(value, BaseException)
            made = (
                callable(value) and not inspect.isabstract(value) and not isinstance(value, types.ModuleType)
            )
            if made and own and not raises and not hasattr(value, "py_func"):
                found[f"{module.__name__}:{name}"] = value
    return {name: value for name, value in found.items() if name.partition(":")[0] not in INSIDE_KERNELS}


PUBLIC = public()


@pytest.fixture(scope="module")
def samples():
    """Valid arguments by name."""
    table = RequestTable.from_columns(arrival_time=[0, 0, 2], prompt_len=[3] * 3, output_len=[3, 2, 2])
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


def sample(parameter, samples):
    """Return a value for an argument: by its name, or by the beginning of its annotation."""
    text = str(parameter.annotation)
    c = ClassStatistics("a", rate=1.0, prompt_len=10.0, output_len=10.0)
    by_kind = {
        "int": 5, "float": 0.5, "bool": False, "str": "x", "ArrayLike": np.array([3, 4, 5]), "NDArray": np.ones(3),
        "Sequence[ClassStatistics]": [c], "ClassStatistics": c, "Sequence": [1], "Iterable": [1], "tuple": (1, 2),
        "Mapping": {}, "dict": {}, "Callable": print,
    }  # fmt: skip
    return samples.get(
        parameter.name, next((v for kind, v in by_kind.items() if text.startswith(kind)), None)
    )


def outcome(call):
    """Return what is wrong with what a call raises, "" if nothing is."""
    try:
        made = call()
        if inspect.isgenerator(made):
            next(made, None)
    except KVGymError:
        return ""
    except TypeError as error:
        # Arguments that are too many or missing are Python's to refuse, at the call itself.
        own = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.endswith("arguments.py")
        ]
        return "" if len(own) <= 2 else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLIC)
def test_wrong_types(name, samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = PUBLIC[name]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of named tuples and what C code makes
        pytest.skip("no signature")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = {p.name: sample(p, samples) for p in named if p.default is p.empty}
    tried = [p.name for p in named if p.name in needed or name.partition(":")[2] not in RUNS]
    faults = []
    for argument in tried:
        for wrong in WRONG if argument not in ELSEWHERE else ():
            fault = outcome(lambda given={**needed, argument: wrong}: function(**given))
            if fault:
                faults.append(f"{argument}={wrong!r}: {fault[:200]}")
    assert not faults, f"{len(faults)} of {len(tried) * len(WRONG)}: {faults[:3]}"


class Missing:
    """A class that annotations name as a type checker would."""


@explained
def halved(number: int, more: list[int] | None = None, other: Missing | None = None, **rest: str) -> float:
    return (number + sum(more or []) + (0 if other is None else other.value)) / 2  # type: ignore[attr-defined]


def test_the_first_wrong_argument_is_named():
    assert halved(3, [1]) == 2
    for arguments, words in (
        (("x",), r"halved: number = 'x'; expected int \(TypeError: "),
        ((1, ["a"]), r"halved: more = \['a'\]; expected list\[int\] \| None"),
        ((1, None, 5), r"halved: other = 5; expected Missing \| None"),
        ((1, 5), r"halved: more = 5"),
    ):
        with pytest.raises(ConfigError, match=words):
            halved(*arguments)
    for arguments in ((), (1, [], None, 5)):
        with pytest.raises(TypeError, match="argument"):
            halved(*arguments)


def test_errors_that_no_argument_explains_stay():
    @explained
    def fails(number: int = 0, whatever: object = None) -> None:
        raise ZeroDivisionError("own")

    @explained_class
    class Held:
        def __init__(self, size: float) -> None:
            self.size = 1 / size

    with pytest.raises(ZeroDivisionError, match="own"):
        fails(3, "x")
    with pytest.raises(ZeroDivisionError):
        Held(0.0)
    with pytest.raises(ConfigError, match=r"Held: size = '0'; expected float"):
        Held("0")
