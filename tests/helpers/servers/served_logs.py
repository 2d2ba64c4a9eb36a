"""Logs of a server that is the simulator itself, with an overhead that is known."""

from kvgym.experiments.scenario import load_scenario
from kvgym.policies.runner import simulate
from kvgym.servers.validation.served import ServedLog

TRUE = {"base_ms": 6.0, "per_request_ms": 0.2}


def scenario(rate=5.0, count=200, **changes):
    workload = {"preset": "lmsys", "num_requests": count, "rate": rate}
    return load_scenario("a100-llama2-70b").override(workload=workload, **changes)


def served(chosen, policy="vllm", seed=0):
    table = chosen.make_workload().sample(seed)
    records = simulate(chosen.make_system(), table, policy, router=chosen.make_router()).requests
    start = table.arrival_time[0]
    return ServedLog(
        name="served.csv",
        arrival_time=table.arrival_time - start,
        prompt_len=table.prompt_len,
        output_len=table.output_len,
        ttft=records["first_token_time"] - table.arrival_time,
        e2e_latency=records["finish_time"] - table.arrival_time,
    )
