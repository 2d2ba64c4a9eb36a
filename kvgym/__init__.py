"""kvgym: scheduling LLM inference under a limited KV cache.

The public names, imported on first use so that ``import kvgym`` stays light; importing it registers the environments.
May import every package below; none of them may import it: they take names from the modules that define them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names
from kvgym.utils.version import __version__

if TYPE_CHECKING:
    from kvgym import (
        agents,
        batch_time,
        envs,
        errors,
        experiments,
        kernels,
        metrics,
        policies,
        report,
        servers,
        studies,
        theory,
        workloads,
    )
    from kvgym.agents import load_agent, load_router, train
    from kvgym.batch_time import kv_capacity, load_hardware, make_batch_time
    from kvgym.envs import AgentPolicy, register_action
    from kvgym.experiments import Comparison, Scenario, compare, load_scenario
    from kvgym.metrics import compute_metrics, register_metric
    from kvgym.policies.hyperparameters import Weight
    from kvgym.policies.policy import (
        CompiledPolicy,
        Decision,
        Policy,
        PolicyInfo,
        SystemInfo,
        make_policy,
        register_policy,
    )
    from kvgym.policies.routing import CompiledRouter, Router, RouterInfo, make_router, register_router
    from kvgym.policies.runner import SimulationResult, simulate
    from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, make_autoscaler, register_autoscaler
    from kvgym.report import write_report
    from kvgym.simulator.observer import Observer
    from kvgym.simulator.recording.window import Window
    from kvgym.simulator.simulation import Simulation
    from kvgym.simulator.system import System, Worker
    from kvgym.simulator.view import ClusterView, SystemView
    from kvgym.studies import find_capacity, make_task, provision, sweep, tune
    from kvgym.theory.hindsight import bound
    from kvgym.workloads import RequestTable, make_workload, read_trace, register_trace_format
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "agents": "load_agent load_router train",
            "batch_time": "kv_capacity load_hardware make_batch_time",
            "envs": "AgentPolicy register_action",
            "experiments": "Comparison Scenario compare load_scenario",
            "metrics": "compute_metrics register_metric",
            "policies.hyperparameters": "Weight",
            "policies.policy": "CompiledPolicy Decision Policy PolicyInfo SystemInfo make_policy register_policy",
            "report": "write_report",
            "policies.routing": "CompiledRouter Router RouterInfo make_router register_router",
            "policies.runner": "SimulationResult simulate",
            "policies.scaling": "Autoscaler AutoscalerInfo make_autoscaler register_autoscaler",
            "simulator.observer": "Observer",
            "simulator.recording.window": "Window",
            "simulator.simulation": "Simulation",
            "simulator.system": "System Worker",
            "simulator.view": "ClusterView SystemView",
            "studies": "find_capacity make_task provision sweep tune",
            "theory.hindsight": "bound",
            "workloads": "RequestTable make_workload read_trace register_trace_format",
        },
        "agents batch_time envs errors experiments kernels metrics policies report servers studies theory workloads",
    )

__all__ = [
    "AgentPolicy",
    "Autoscaler",
    "AutoscalerInfo",
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
    "envs",
    "errors",
    "experiments",
    "find_capacity",
    "kernels",
    "kv_capacity",
    "load_agent",
    "load_hardware",
    "load_router",
    "load_scenario",
    "make_autoscaler",
    "make_batch_time",
    "make_policy",
    "make_router",
    "make_task",
    "make_workload",
    "metrics",
    "policies",
    "provision",
    "read_trace",
    "register_action",
    "register_autoscaler",
    "register_metric",
    "register_policy",
    "register_router",
    "register_trace_format",
    "report",
    "servers",
    "simulate",
    "studies",
    "sweep",
    "theory",
    "train",
    "tune",
    "workloads",
    "write_report",
]


def _register_environments() -> None:
    from kvgym.envs import register_all

    register_all()


_register_environments()
