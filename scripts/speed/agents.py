"""CPU time of runs of an agent that is asked once per request, and of the scheduler below it alone.

The agent is a network of 32 units with random weights, one input and one output, in ``kvgym/Priority-v0``; its answers
do not matter here. What a question costs is the difference of the runs by the number of questions; it includes the
observation, and what other answers change in the schedule.

    python scripts/speed/agents.py             # half a minute
    python scripts/speed/agents.py --smoke     # seconds, to test that it runs
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kvgym
from harness import command_line, time_runs, write_json
from kvgym.agents.reinforce.export import as_agent, feature_places
from kvgym.agents.reinforce.network import Network
from kvgym.envs.scheduling.config import EnvConfig
from policies import print_row

SCENARIOS = ("hidden-kinds", "hidden-kinds-large", "conversations")
BELOW = "ranked_latency"


def agent_of(scenario: str) -> kvgym.AgentPolicy:
    """Return an agent of random weights that reads the prompt."""
    rng = np.random.default_rng(0)
    network = Network(1, (32,), rng)
    network.numbers[-2][:] = 0.3 * rng.standard_normal((32, 1))
    config = EnvConfig.of(action="priority", scenario=scenario, scheduler=BELOW, information=())
    places = np.asarray(feature_places(config)["asked.prompt"])
    model = as_agent(
        config,
        network,
        places,
        np.array([0.5]),
        np.array([0.2]),
        algorithm="reinforce",
        noise=1.0,
        metadata={},
    )
    return kvgym.AgentPolicy(model, **model.header.env_arguments)


def measured(scenario: str, repeats: int) -> dict[str, Any]:
    """Return the times of runs in a scenario."""
    made = kvgym.load_scenario(scenario)
    system, table = made.make_system(), made.make_workload().sample(3_000_000)
    policies = {"agent": agent_of(scenario), "below": kvgym.make_policy(BELOW)}
    for policy in policies.values():
        time_runs(system, table, policy, 1)  # compile
    found = {name: time_runs(system, table, policy, repeats) for name, policy in policies.items()}
    agent, below = (1e3 * found[name].run for name in ("agent", "below"))
    return {
        "scenario": scenario,
        "questions": len(table),
        "iterations": found["agent"].iterations,
        "run, ms": agent,
        "scheduler below, ms": below,
        "µs per question": 1e3 * (agent - below) / len(table),
    }


def main() -> None:
    """Measure what the command line asks for."""
    options = command_line(__doc__).parse_args()
    rows = []
    for scenario in SCENARIOS[: 1 if options.smoke else None]:
        rows.append(measured(scenario, 1 if options.smoke else 31))
        print_row(rows[-1])
    write_json(options.json, {"agents": rows})


if __name__ == "__main__":
    main()
