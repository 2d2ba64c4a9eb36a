"""kvgym: scheduling LLM inference under a limited KV cache.

The public names, imported on first use so that ``import kvgym`` stays light; importing it registers the environments.
May import every package below; none of them may import it: they take names from the modules that define them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvgym.version import __version__

if TYPE_CHECKING:
    from kvgym.batch_time import make_batch_time
    from kvgym.batch_time.hardware import load_hardware
    from kvgym.experiments.comparison import Comparison, compare
    from kvgym.experiments.scenario import Scenario, load_scenario
    from kvgym.metrics import compute_metrics
    from kvgym.policy import CompiledPolicy, Decision, Policy, PolicyInfo, make_policy, register_policy
    from kvgym.runner import SimulationResult, simulate
    from kvgym.simulator.following import Observer
    from kvgym.simulator.simulation import Simulation
    from kvgym.simulator.system import System
    from kvgym.simulator.view import SystemView
    from kvgym.window import Window
    from kvgym.workloads import RequestTable, make_workload, read_trace

_HOME = {
    "Comparison": "experiments.comparison",
    "CompiledPolicy": "policy",
    "Decision": "simulator.decision",
    "Observer": "simulator.following",
    "Policy": "policy",
    "PolicyInfo": "policy",
    "RequestTable": "workloads",
    "Scenario": "experiments.scenario",
    "Simulation": "simulator.simulation",
    "SimulationResult": "runner",
    "System": "simulator.system",
    "SystemView": "simulator.view",
    "Window": "window",
    "compare": "experiments.comparison",
    "compute_metrics": "metrics",
    "load_hardware": "batch_time.hardware",
    "load_scenario": "experiments.scenario",
    "make_batch_time": "batch_time",
    "make_policy": "policy",
    "make_workload": "workloads",
    "read_trace": "workloads",
    "register_policy": "policy",
    "simulate": "runner",
}

__all__ = [
    "Comparison",
    "CompiledPolicy",
    "Decision",
    "Observer",
    "Policy",
    "PolicyInfo",
    "RequestTable",
    "Scenario",
    "Simulation",
    "SimulationResult",
    "System",
    "SystemView",
    "Window",
    "__version__",
    "compare",
    "compute_metrics",
    "load_hardware",
    "load_scenario",
    "make_batch_time",
    "make_policy",
    "make_workload",
    "read_trace",
    "register_policy",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)


def _register_environments() -> None:
    from kvgym.envs import register_all

    register_all()


_register_environments()
