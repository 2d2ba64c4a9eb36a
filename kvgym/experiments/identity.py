"""What a run depends on, as a hash: equal for equal bits, another as soon as anything may change them."""

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
from kvgym.policy import Policy
from kvgym.routing import Router
from kvgym.utils.user_code import calling
from kvgym.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
DECISIVE = (
    "agents", "baselines", "batch_time", "compiling", "configs/gpu", "configs/hardware", "configs/model",
    "configs/scenario", "envs", "experiments/runs.py", "experiments/scenario.py", "kernels", "metrics.py",
    "policy.py", "routing.py", "runner.py", "simulator", "theory", "utils", "window.py", "workloads",
)  # fmt: skip
"""Parts of the library that decide what a run gives; an agent's scales are those of the scenario of its training."""


def run_key(
    setting: str, policy: Policy, router: Router | None, seed: int, measure: Callable[..., Any] | None = None
) -> str:
    """Return the hash of a run, see :func:`run_keys`."""
    return run_keys(setting, policy, router, [seed], measure)[0]


def run_keys(
    setting: str,
    policy: Policy,
    router: Router | None,
    seeds: Iterable[int],
    measure: Callable[..., Any] | None = None,
) -> list[str]:
    """Return the hashes of runs that differ in their seeds.

    Args:
        setting: of :func:`setting_key`.
        policy: the policy, not yet run.
        router: the router of a cluster, None where there is one worker.
        seeds: the seeds.
        measure: what measures the run, see :class:`~kvgym.experiments.runs.Run`.
    """
    who: dict[str, Any] = {"setting": setting, "policy": _made(policy), "router": _made(router)}
    if measure is not None:
        who["measure"] = {"name": measure.__qualname__, "code": _sources([measure.__module__])}
    return [_digest({**who, "seed": seed}) for seed in seeds]


def setting_key(scenario: Scenario) -> str:
    """Return the hash of system and workload of a scenario, of the files they are made from, and of the library's code.

    Where a file lies does not matter, what is in it does.

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
        }
    )


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Return the hash of the library's version and of all its code that decides what a run gives.

    Versions of NumPy and Numba count too: one draws, the other compiles.
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
    return sorted(path for kind in ("py", "yaml") for path in folder.glob(f"**/*.{kind}"))


def _made(made: Policy | Router | None) -> dict[str, Any] | None:
    """Return what a policy or router is: its content, and its code where that is not the library's."""
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
    """Return hashes of the files of modules; a module without one, such as that of a notebook, counts by its name."""
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
    """Return what JSON does not know as something that it does, an array with all its numbers."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
