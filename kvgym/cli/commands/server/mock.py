"""``kvgym server mock``: a local OpenAI-compatible server that answers with the simulator's times."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import one_policy, policies_option
from kvgym.cli.stopping import until_stopped
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import SERVER_SCENARIO, ScenarioOptions


@scenario_options(*group("hardware"))
def mock(
    options: ScenarioOptions,
    scenario: ScenarioOption = SERVER_SCENARIO,
    policies: Annotated[
        list[str] | None, policies_option("The scheduler, e.g. vllm_v1:max_num_seqs=128 (default: vllm_v1).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the policy.")] = 0,
    speed: Annotated[
        float,
        typer.Option(
            help="Simulated seconds per second; kvgym server observe measures in simulated seconds."
        ),
    ] = 1.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 = a free one.")] = 8000,
) -> None:
    """Answer OpenAI-compatible requests on this machine with the simulator's times.

    Serves completions and chat completions, streamed or not: as many tokens as requested (max_tokens), each when the
    simulator delivers it, with the hits of a prefix cache in usage, and vLLM's metrics at /metrics. To try clients,
    dashboards and kvgym server observe without a GPU. Ctrl-C or SIGTERM ends it.
    """
    from kvgym.experiments.changes import build_scenario

    if find_spec("aiohttp") is None or find_spec("prometheus_client") is None:
        raise ConfigError(
            'kvgym server mock needs aiohttp and prometheus_client; install them with: pip install "kvgym[observe]"'
        )
    from kvgym.experiments.describing import describe_hardware, served_name
    from kvgym.policies.policy import make_policy
    from kvgym.servers.endpoint.mock import MockServer
    from kvgym.servers.endpoint.online import OnlineRun

    policy = make_policy(one_policy(policies or ["vllm_v1"], "server mock"))
    chosen = build_scenario(scenario, options)
    fixed = {"horizon": None, "sessions": "open"}  # clients decide when a turn comes, and when all ends
    system = chosen.override(system={**chosen.system.model_dump(), **fixed}).make_system()
    server = MockServer(
        OnlineRun(system, policy, seed=seed), model=served_name(chosen), speed=speed, port=port
    )
    server.start()
    try:
        with until_stopped():
            console.print_line(f"serving {describe_hardware(chosen)} at {server.url}  (Ctrl-C ends it)")
            server.wait()
    finally:
        server.close()
