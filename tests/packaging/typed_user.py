"""A user's script that ``mypy --strict`` must accept: public names have their exact types."""

from __future__ import annotations

from collections.abc import Mapping

import kvgym
from kvgym import errors, metrics, report, theory
from kvgym.agents import agent_names, load_agent
from kvgym.batch_time import kv_capacity
from kvgym.envs import AgentPolicy, ServingEnv, play
from kvgym.experiments import Estimate
from kvgym.studies import parse_targets


@kvgym.register_policy
class OneAtATime(kvgym.Policy):
    """Admit the head of the queue when no request is running."""

    info = kvgym.PolicyInfo(name="typed_one_at_a_time", summary="one request at a time")

    def schedule(self, view: kvgym.SystemView) -> kvgym.Decision:
        """Decide."""
        if view.num_active or not view.num_waiting:
            return kvgym.Decision()
        return kvgym.Decision(admit=[int(view.waiting.request_id[0])])


def measured(policy: str | kvgym.Policy, seed: int) -> dict[str, float]:
    """Run a policy on a small system."""
    system = kvgym.System(kv_capacity=4096, batch_time=kvgym.make_batch_time({"kind": "unit"}))
    requests: kvgym.RequestTable = kvgym.make_workload("lmsys", num_requests=10, rate=1.0).sample(seed=seed)
    try:
        return metrics.compute_metrics(kvgym.simulate(system, requests, policy))
    except errors.RunError as error:
        raise SystemExit(str(error)) from error


def figures(spec: str) -> tuple[Estimate, str]:
    """Compare an agent with the scheduler above."""
    agent: kvgym.Policy = load_agent(spec)
    comparison: kvgym.Comparison = kvgym.compare(policies=[agent, "typed_one_at_a_time"], seeds=2)
    path = report.write_report(comparison, "report.html")
    return comparison.estimate("typed_one_at_a_time", "e2e_latency_mean"), str(path)


def taking_part(model: object, env: ServingEnv) -> list[str]:
    """Play a policy in an environment, and use types of agents."""
    result, total = play(env, "fcfs")
    names: Mapping[str, str] = agent_names()
    policy: type[AgentPolicy] = AgentPolicy
    rates: float = theory.stability.service_rate(1000.0, 0.1, 50.0) + total
    return [*names, policy.__name__, str(result.completed), str(rates), str(parse_targets("ttft_p99<1"))]


def planned() -> int:
    """Return the KV capacity of a deployment."""
    return kv_capacity("a100-80gb", "llama3-8b")
