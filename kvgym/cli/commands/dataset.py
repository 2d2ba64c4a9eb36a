"""``kvgym render dataset``: episodes of a scheduler or an agent as a Minari dataset, for offline learning."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO


def dataset(
    policy: Annotated[
        str,
        typer.Argument(
            help="Scheduler or agent (kvgym list policies, agents), an agent's folder or .npz, or as --env says."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Arguments of the environment, e.g. queue_window=256 overflow=clear."),
    ] = None,
    env: Annotated[
        str,
        typer.Option(help="Id of the environment; its actions carry out the decisions."),
    ] = "kvgym/AdmitEvict-v0",
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", "-s", help="Scenario (default: the agent's, or as in kvgym compare)."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="Workload seed of the first episode.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset (default: kvgym/SCENARIO/POLICY-v0).")
    ] = None,
) -> None:
    """Write episodes of a scheduler or an agent as a Minari dataset, for offline learning.

    A scheduler plays where the environment's actions express its decisions: kvgym/AdmitEvict-v0 admits one request
    after the other, kvgym/AdmitCount-v0 needs a queue_window of all that begin at once. In kvgym/Route-v0 routers play,
    in kvgym/Scale-v0 autoscalers, and everywhere greedy (but in these two) and random.

    Needs the extra minari. The dataset has observations, actions, rewards and action masks of whole episodes. Minari
    keeps it in the folder of MINARI_DATASETS_PATH, by default ~/.minari/datasets; minari.load_dataset(NAME) reads it.
    """
    import gymnasium as gym

    from kvgym.agents.library import is_agent, load_agent
    from kvgym.agents.runs.config import pair
    from kvgym.cli.commands.render import id_of
    from kvgym.envs import CLUSTER_IDS
    from kvgym.envs.agents import AgentPolicy
    from kvgym.envs.demonstrations.dataset import load_minari, record_dataset, write_minari
    from kvgym.envs.recordable import RANDOM
    from kvgym.policies.policy import make_policy
    from kvgym.utils.files import plain_name

    load_minari()  # before minutes of play
    made: Any = policy
    given: dict[str, Any] = {} if scenario is None else {"scenario": scenario}
    if id_of(env) not in CLUSTER_IDS and policy not in ("greedy", RANDOM):
        made = load_agent(policy) if is_agent(policy) else make_policy(policy)
        if isinstance(made, AgentPolicy):
            given = made.config.model_dump() | given
        else:
            given = {"scenario": DEFAULT_SCENARIO, "information": tuple(sorted(made.info.needs))} | given
    given |= dict(map(pair, settings or ()))
    chosen = gym.make(id_of(env), disable_env_checker=True, **given)
    found = record_dataset(chosen, made, workload_seeds=range(first_seed, first_seed + episodes))
    player = policy if made is policy else made.info.name
    where = str(given.get("scenario", id_of(env).removeprefix("kvgym/").removesuffix("-v0")))
    label = name or f"kvgym/{plain_name(where)}/{plain_name(player)}-v0"
    dataset = write_minari(label, chosen, found, algorithm=player)
    console.print_line(
        f"{label}: {len(found):,} episodes, {sum(len(each.actions) for each in found):,} steps"
    )
    console.print_line(f"folder: {dataset.storage.data_path}")
