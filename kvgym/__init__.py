"""kvgym: scheduling LLM inference under a limited KV cache.

The public names, imported on first use so that ``import kvgym`` stays light; importing it registers the environments.
May import every package below; none of them may import it: they take names from the modules that define them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names
from kvgym.version import __version__

if TYPE_CHECKING:
    from kvgym import (
        agents,
        batch_time,
        contract,
        envs,
        errors,
        experiments,
        export,
        kernels,
        metrics,
        policy,
        report,
        routing,
        theory,
        validation,
        workloads,
    )
    from kvgym.agents import load_agent, load_router, train
    from kvgym.batch_time import kv_capacity, load_hardware, make_batch_time
    from kvgym.benchmark import make_task
    from kvgym.envs import AgentPolicy, register_action
    from kvgym.experiments import (
        Comparison,
        Scenario,
        compare,
        find_capacity,
        load_scenario,
        provision,
        sweep,
        tune,
    )
    from kvgym.metrics import compute_metrics, register_metric
    from kvgym.policy import (
        CompiledPolicy,
        Decision,
        Policy,
        PolicyInfo,
        SystemInfo,
        Weight,
        make_policy,
        register_policy,
    )
    from kvgym.report import write_report
    from kvgym.routing import CompiledRouter, Router, RouterInfo, make_router, register_router
    from kvgym.runner import SimulationResult, simulate
    from kvgym.simulator.observer import Observer
    from kvgym.simulator.simulation import Simulation
    from kvgym.simulator.system import System, Worker
    from kvgym.simulator.view import ClusterView, SystemView
    from kvgym.theory.hindsight import bound
    from kvgym.window import Window
    from kvgym.workloads import RequestTable, make_workload, read_trace, register_trace_format
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "agents": "load_agent load_router train",
            "batch_time": "kv_capacity load_hardware make_batch_time",
            "benchmark": "make_task",
            "envs": "AgentPolicy register_action",
            "experiments": "Comparison Scenario compare find_capacity load_scenario provision sweep tune",
            "metrics": "compute_metrics register_metric",
            "policy": "CompiledPolicy Decision Policy PolicyInfo SystemInfo Weight make_policy register_policy",
            "report": "write_report",
            "routing": "CompiledRouter Router RouterInfo make_router register_router",
            "runner": "SimulationResult simulate",
            "simulator.observer": "Observer",
            "simulator.simulation": "Simulation",
            "simulator.system": "System Worker",
            "simulator.view": "ClusterView SystemView",
            "theory.hindsight": "bound",
            "window": "Window",
            "workloads": "RequestTable make_workload read_trace register_trace_format",
        },
        "agents batch_time contract envs errors experiments export kernels "
        "metrics policy report routing theory validation workloads",
    )

__all__ = [
    "AgentPolicy",
    "ClusterView",
    "Comparison",
    "CompiledPolicy",
    "CompiledRouter",
    "Decision",
    "Observer",
    "Policy",
    "PolicyInfo",
    "RequestTable",
    "Router",
    "RouterInfo",
    "Scenario",
    "Simulation",
    "SimulationResult",
    "System",
    "SystemInfo",
    "SystemView",
    "Weight",
    "Window",
    "Worker",
    "__version__",
    "agents",
    "batch_time",
    "bound",
    "compare",
    "compute_metrics",
    "contract",
    "envs",
    "errors",
    "experiments",
    "export",
    "find_capacity",
    "kernels",
    "kv_capacity",
    "load_agent",
    "load_hardware",
    "load_router",
    "load_scenario",
    "make_batch_time",
    "make_policy",
    "make_router",
    "make_task",
    "make_workload",
    "metrics",
    "policy",
    "provision",
    "read_trace",
    "register_action",
    "register_metric",
    "register_policy",
    "register_router",
    "register_trace_format",
    "report",
    "routing",
    "simulate",
    "sweep",
    "theory",
    "train",
    "tune",
    "validation",
    "workloads",
    "write_report",
]


def _register_environments() -> None:
    from kvgym.envs import register_all

    register_all()


_register_environments()
