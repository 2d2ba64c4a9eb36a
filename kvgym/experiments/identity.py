"""Hash of everything that determines the results of a run."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvgym.batch_time.deployments.load import load_hardware
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import METRICS
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.utils.user_code import calling
from kvgym.utils.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
DECISIVE = (
    "agents", "baselines", "batch_time", "compiling", "configs/gpu", "configs/hardware",
    "configs/model", "configs/operators", "configs/scenario", "envs", "experiments/caches",
    "experiments/disaggregation.py", "experiments/resolving.py", "experiments/runs.py", "experiments/scenario.py",
    "experiments/fleet",
    "kernels.py", "metrics", "policies", "simulator", "theory", "utils", "workloads",
)  # fmt: skip
"""Parts of the library that determine the results of runs; agents take scales from the scenario of their training."""


def run_keys(
    setting: str,
    policy: Policy,
    router: Router | None,
    seeds: Iterable[int],
    measure: Callable[..., Any] | None = None,
) -> list[str]:
    """Return the hashes of runs that differ only in their seeds.

    Args:
        setting: hash from :func:`setting_key`.
        policy: the policy, not yet run.
        router: the router of a cluster, None for one worker.
        seeds: the seeds.
        measure: function that measures the run, see :class:`~kvgym.experiments.runs.PlannedRun`.
    """
    parts: dict[str, Any] = {"setting": setting, "policy": _made(policy), "router": _made(router)}
    if measure is not None:
        parts["measure"] = {"name": measure.__qualname__, "code": _sources([measure.__module__])}
    return [_digest({**parts, "seed": seed}) for seed in seeds]


def setting_key(scenario: Scenario) -> str:
    """Return the hash of a scenario's system and workload, of their files, and of the library's code.

    The contents of files count, their paths do not.

    Raises:
        KVGymError: the scenario is contradictory, or a file cannot be read.
    """
    resolved = scenario.resolved()
    content = resolved.model_dump(
        mode="json", exclude={"name", "summary", "policies", "seeds", "workload", "router"}
    )
    groups = () if isinstance(resolved.workers, int) else resolved.workers
    names = {resolved.hardware, *(group.hardware for group in groups)} - {None}
    workload = scenario.make_workload().provenance()
    if workload["trace"] is not None:
        workload["trace"].pop("path")
        workload["spec"]["lengths"].pop("path", None)
        workload["spec"].pop("name", None)
    return _digest(
        {
            "code": code_digest(),
            "scenario": content,
            "workload": workload,
            "hardware": {str(name): _hardware_digest(str(name)) for name in sorted(map(str, names))},
            **_metrics(),
        }
    )


def _metrics() -> dict[str, Any]:
    """Return the registered metrics with their code; empty if there are none."""
    measures = {name: METRICS[name].measure for name in METRICS}
    own = {
        name: [getattr(measure, "__qualname__", type(measure).__qualname__), *_sources([measure.__module__])]
        for name, measure in measures.items()
    }
    return {"metrics": own} if own else {}


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Return the hash of the library's version and of all code that determines the results of runs.

    Versions of NumPy and Numba count too: NumPy draws the random numbers, and Numba compiles the code.
    """
    versions = (__version__, version("numpy"), version("numba"))
    digest = hashlib.sha256(" ".join(versions).encode())
    for part in DECISIVE:
        path = _PACKAGE / part
        for source in [path] if path.is_file() else _sources_in(path):
            digest.update(source.relative_to(_PACKAGE).as_posix().encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _sources_in(folder: Path) -> list[Path]:
    return sorted(path for kind in ("py", "yaml", "npz") for path in folder.glob(f"**/*.{kind}"))


def _made(made: Policy | Router | None) -> dict[str, Any] | None:
    """Return the class and content of a policy or router, and its code if it is not the library's."""
    if made is None:
        return None
    cls = type(made)
    modules = sorted({base.__module__ for base in cls.__mro__ if not base.__module__.startswith("kvgym.")})
    with calling(made, "policy or router", "content"):
        content = made.content()
    return {
        "class": f"{cls.__module__}.{cls.__qualname__}",
        "content": content,
        "code": _sources(m for m in modules if m not in sys.stdlib_module_names),
    }


def _sources(modules: Iterable[str]) -> list[str]:
    """Return hashes of the files of modules; a module without a file, as in a notebook, counts by its name."""
    found = []
    for name in modules:
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        found.append(hashlib.sha256(Path(path).read_bytes()).hexdigest()[:20] if path else name)
    return found


def _hardware_digest(name: str) -> str:
    hardware = load_hardware(name)
    return hashlib.sha256(hardware.model_copy(update={"name": ""}).model_dump_json().encode()).hexdigest()[
        :20
    ]


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not support; an array becomes all of its numbers."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
