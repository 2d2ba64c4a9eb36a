"""Compare fleets with measurements that others have published: a table of docs/fleets.md. Nothing is fitted.

    python scripts/fleets/validate_fleets.py                 three seeds, half a minute

- dynamo #10528: Qwen3-8B, prefill and decode workers, prompts of 8,000 and outputs of 1,000 tokens, one sinusoid from 1
  to 8 requests/s over 900 s; Qwen3-30B-A3B, two GPUs each, from 1 to 24 over 2,100 s. Its GPU is not named; here it
  is an H100.
- llm-d-autoscaling #1249 and #1118: Qwen3-32B, about 1,000 and 1,000 tokens, on H100; how many form a replica is not
  said. The length of the stages of #1118 is not either; here they are equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvgym.experiments.scenario import Scenario
from kvgym.studies.capacity.hindsight import FleetRuns

QWEN8, QWEN30 = "roofline:model=qwen3-8b,gpu=h100", "roofline:model=qwen3-30b-a3b,gpu=h100,tp=2"
QWEN32 = "roofline:model=qwen3-32b,gpu=h100,tp={}"
LONG, EVEN = (8000, 1000), (1000, 1000)

PLANNERS = {
    "one prefill worker": "fixed:workers=1/4",
    "two prefill workers": "fixed:workers=2/4",
    "planner by throughput": "dynamo:ttft=3,itl=0.03",
    "planner, with load": "dynamo:ttft=3,itl=0.03,load=true",
    "trend every 60 s": "dynamo:ttft=3,itl=0.03,predictor=trend,adjust=60",
    "`keda`, tokens": "keda:metric=tokens,target=1",
    "`foresight`": "foresight",
}
STAGES = (15.0, 2.0, 10.0, 15.0, 5.0, 2.0)
"""Requests per second of #1118."""


def scenario_of(
    hardware: str,
    workers: Any,
    arrivals: dict[str, Any],
    duration: float,
    lengths: tuple[int, int],
    **fleet: Any,
) -> Scenario:
    """Return workers under a load of equal requests that want a first token within 3 s."""
    prompt, output = ({"kind": "constant", "value": value} for value in lengths)
    return Scenario(
        name="fleet", hardware=hardware, workers=workers, policies=("vllm_v1",), router="join_shortest_queue",
        fleet=fleet or None,
        workload={
            "duration": duration, "arrivals": arrivals, "ttft_slo": 3.0,
            "lengths": {"kind": "independent", "prompt": prompt, "output": output},
        },
    )  # fmt: skip


def swing(high: float) -> dict[str, Any]:
    """Return arrivals from 1 a second to ``high`` and back in 900 s."""
    mean = (1 + high) / 2
    return {"kind": "sinusoid", "rate": mean, "amplitude": 1 - 1 / mean, "period": 900.0, "phase": -np.pi / 2}


def pools(*roles: str) -> tuple[dict[str, Any], ...]:
    """Return pools of 1 to 8 workers."""
    return tuple({"role": role, "count": 1, "least": 1, "most": 8} for role in roles)


def means(scenario: Scenario, autoscaler: str | None, seeds: int, *names: str) -> list[float]:
    """Return the means of metrics over seeds."""
    found = []
    for seed in range(seeds):
        metrics = FleetRuns.of(scenario, seed).metrics(autoscaler)
        found.append([metrics[name] for name in names])
    return np.mean(found, axis=0).tolist()  # type: ignore[no-any-return]


def prefill_knee(seeds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of one prefill worker at constant rates."""
    workers = ({"role": "prefill", "count": 1}, {"role": "decode", "count": 4})
    for rate, published in ((4.5, "saturates at about 4.5/s"), (5.0, "1.3 s"), (6.0, "9.7 s")):
        arrivals = {"kind": "poisson", "rate": rate}
        (late,) = means(scenario_of(QWEN8, workers, arrivals, 180.0, LONG), None, seeds, "ttft_p99")
        yield f"Qwen3-8B, one prefill worker at {rate:g}/s: TTFT p99", published, f"{late:.1f} s"


def planners(seeds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of planners under a burst."""
    names = ("slo_attainment", "ttft_mean", "ttft_p99")
    published = {"planner by throughput": "prefill stays too small", "planner, with load": "no rescue"}
    small = scenario_of(QWEN8, pools("prefill", "decode"), swing(8.0), 900.0, LONG, budget=8)
    for rule, spec in PLANNERS.items():
        met, mean, late = means(small, spec, seeds, *names)
        text = f"{1 - met:.0%} over 3 s, mean {mean:.1f} s, p99 {late:.0f} s"
        yield f"Qwen3-8B, 1 to 8/s, {rule}", published.get(rule, "–"), text
    large = scenario_of(QWEN30, pools("prefill", "decode"), swing(24.0), 2100.0, LONG, budget=16)
    met, mean, late = means(large, "dynamo:ttft=3,itl=0.035", seeds, *names)
    text = f"{1 - met:.0%} over 3 s, mean {mean:.0f} s"
    yield "Qwen3-30B-A3B, 1 to 24/s, planner by throughput", "91 % over a target, mean 160 s", text


def replicas(seeds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of Qwen3-32B: one replica, and a fleet of at most four under bursts."""
    rates = ((1.0, "below 0.14 s"), (2.0, "18.8 s"), (3.0, "most tokens/s, 1,901"), (6.0, "fails"))
    for gpus, shown in ((1, rates[:1]), (2, rates)):
        for rate, published in shown:
            arrivals = {"kind": "poisson", "rate": rate}
            scenario = scenario_of(QWEN32.format(gpus), ({"count": 1},), arrivals, 300.0, EVEN)
            late, tokens = means(scenario, None, seeds, "ttft_p99", "token_throughput")
            text = f"{late:.2f} s, {tokens:,.0f} tokens/s"
            yield f"Qwen3-32B, replica of {gpus} H100 at {rate:g}/s: TTFT p99", published, text
    group = {"count": 1, "least": 1, "most": 4, "startup": 103.0}
    times = tuple(150.0 * k for k in range(len(STAGES)))
    arrivals = {"kind": "piecewise", "times": times, "rates": STAGES}
    scenario = scenario_of(QWEN32.format(2), (group,), arrivals, 900.0, EVEN)
    for rule in ("wva_v1", "wva_v2"):
        late, ready = means(scenario, rule, seeds, "ttft_p99", "ready_workers")
        what = f"Qwen3-32B, 2 to 15/s, at most 4 replicas of 2 H100, `{rule}`: TTFT p99; mean replicas"
        yield what, "262 s; 2.43", f"{late:,.0f} s; {ready:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each run")
    seeds = parser.parse_args(arguments).seeds
    print("| case | published | kvgym |\n|---|---|---|")
    for part in (prefill_knee, planners, replicas):
        for row in part(seeds):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
