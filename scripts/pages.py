"""Generator of a Markdown page for every environment: ``python scripts/pages.py FOLDER``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from pydantic import BaseModel

from kvgym.envs import ACTIONS, IDS, ROUTING_ID, SCALING_ID, environment_names
from kvgym.envs.routing.caches import CACHE_FEATURES
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.features import REQUEST_FEATURES, SYSTEM_FEATURES, WORKER_FEATURES, observation_size
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.explaining import TITLES, Feature, observation_rows, rows
from kvgym.envs.scheduling.spaces import flat_space
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.policies.fleet_features import FLEET_FEATURES, POOL_FEATURES
from kvgym.utils.docstrings import meanings, sections
from kvgym.utils.files import write_text

REWARDS: Mapping[str, tuple[str, str]] = {
    "latency": ("- time integral of the requests in the system, exact over skipped time", "requests × s"),
    "ttft": ("- time to first token of requests that finish", "s"),
    "tokens": ("output tokens delivered", "tokens"),
    "goodput": ("finished requests that met all of their targets", "requests"),
    "evictions": ("- KV tokens discarded", "tokens"),
}
"""Meaning and unit of every reward term, before it is divided by ``reward_scale``."""

SHARED = ("Starting State", "Episode End", "Information")
"""Sections of an environment's docstring that its page repeats."""


def table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *cells])


def features_table(features: Iterable[Feature]) -> str:
    """Return the table of a group of features."""
    return table(
        ("index", "feature", "meaning", "unit", "min", "max"),
        ((f.place, f"`{f.name}`", f.meaning, f.unit, f"{f.low:g}", f"{f.high:g}") for f in features),
    )


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown: roles and double backticks become code, without links."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", lambda role: f"`{role[1]}`", text)
    return text.replace("``", "`")


def short(space: spaces.Space[Any]) -> str:
    """Return a short text for a space; the table has the bounds."""
    return f"Box({space.shape[0]}), {space.dtype}" if isinstance(space, spaces.Box) else str(space)


def spaces_table(name: str, action: spaces.Space[Any], observation: spaces.Space[Any]) -> str:
    """Return the table of an environment's spaces, as on Gymnasium's own pages."""
    return table(
        ("", ""),
        [
            ("Action Space", f"`{short(action)}`"),
            ("Observation Space", f"`{short(observation)}`"),
            ("Steps", f"at most {gym.spec(name).max_episode_steps:,}"),
            ("Import", f'`gymnasium.make("kvgym:{name}")`'),
        ],
    )


def arguments_table(config: BaseModel) -> str:
    """Return the table of the keyword arguments."""
    explained = meanings(type(config))
    return table(
        ("argument", "default", "meaning"),
        (
            (f"`{name}`", f"`{getattr(config, name)!r}`", markdown(explained[name]))
            for name in type(config).model_fields
            if name != "action"
        ),
    )


def scheduling_page(action: str) -> list[str]:
    """Return the sections of the page of an environment that schedules one worker."""
    config = EnvConfig.of(action=action)
    kind, about = config.kind, sections(ServingEnv)
    groups = observation_rows(config)
    shown = [f"### {TITLES[key]}\n\n{features_table(features)}" for key, features in groups.items()]
    return [
        spaces_table(ACTIONS[action].id, config.action_space, flat_space(config)),
        f"## Description\n\n{markdown(about['Description'])}",
        f"## Action Space\n\n`{short(config.action_space)}`, with the default windows: Q = {config.queue_window} "
        f"waiting and W = {config.active_window} active requests.",
        table(
            ("index", "meaning", "unit", "min", "max"),
            ((p.place, p.meaning, p.unit, f"{p.low:g}", f"{p.high:g}") for p in kind.parts(config)),
        ),
        *(
            ["Each number is given in [-1, 1], which is mapped linearly to min … max."]
            if config.unit_actions
            else []
        ),
        'A choice outside `info["action_mask"]` adds nothing to the decision and is counted in `info["ignored"]`. '
        "[Kinds of action](../actions.md) describes them further, and lists the schedulers that they can express.",
        f"## Observation Space\n\n`{short(flat_space(config))}`, with the default arguments. All features are "
        "normalised: flags, shares, and x / (x + scale), which is ½ at the scale. Features that `information` does not "
        "reveal are 0, and so are positions without a request; more `information` and `features` add columns.",
        *shown,
        *ending(ServingEnv, config),
    ]


def routing_page() -> list[str]:
    """Return the sections of the page of the environment that routes."""
    config, env = RoutingConfig.of(), RoutingEnv()
    about, bounds, workers = sections(RoutingEnv), env.observation_space, env.action_space
    assert isinstance(bounds, spaces.Box)
    assert isinstance(workers, spaces.Discrete)
    at, count = len(SYSTEM_FEATURES), int(workers.n)
    groups = (
        ("The cluster", SYSTEM_FEATURES, 0, ""),
        ("The request to be routed", REQUEST_FEATURES, at, ""),
        ("Each worker w", WORKER_FEATURES, at + len(REQUEST_FEATURES), "w"),
        ("The prefix cache of each worker w", CACHE_FEATURES, observation_size(count), "w"),
    )
    return [
        spaces_table(ROUTING_ID, workers, bounds),
        markdown(about[""]),
        f"## Description\n\n{markdown(about['Description'])}",
        f"## Action Space\n\n`{short(env.action_space)}`, with the default of {count} workers.",
        table(
            ("index", "meaning", "unit", "min", "max"),
            [(f"0 … {count - 1}", "send the request to this worker", "–", 0, count - 1)],
        ),
        markdown(about["Action Space"]),
        f"## Observation Space\n\n`{short(env.observation_space)}`, with the default arguments. All features are "
        "normalised: flags, shares, and x / (x + scale), which is ½ at the scale.",
        *(
            f"### {title}\n\n{features_table(rows(f, first, bounds.low, bounds.high, w))}"
            for title, f, first, w in groups
        ),
        *ending(RoutingEnv, config),
    ]


def scaling_page() -> list[str]:
    """Return the sections of the page of the environment that scales."""
    config, env = ScalingConfig.of(), ScalingEnv()
    about, bounds = sections(ScalingEnv), env.observation_space
    fleet, pool = ([(name, meaning) for name, meaning, _ in f] for f in (FLEET_FEATURES, POOL_FEATURES))
    groups = (("The fleet", fleet, 0, ""), ("Each pool g", pool, len(fleet), "g"))
    return [
        spaces_table(SCALING_ID, env.action_space, bounds),
        markdown(about[""]),
        f"## Description\n\n{markdown(about['Description'])}",
        f"## Action Space\n\n`{short(env.action_space)}`, with the default of one pool and m = {config.step}.",
        markdown(about["Action Space"]),
        f"## Observation Space\n\n`{short(env.observation_space)}`, with the default arguments. All features are "
        "normalised: shares, and x / (x + scale), which is ½ at the scale.",
        *(
            f"### {title}\n\n{features_table(rows(f, first, bounds.low, bounds.high, g))}"
            for title, f, first, g in groups
        ),
        f"## Rewards\n\n{markdown(about['Rewards'])}",
        *closing(ScalingEnv, config),
    ]


def ending(environment: type[Any], config: EnvConfig | RoutingConfig) -> list[str]:
    """Return the last sections of a page: rewards, episodes and arguments."""
    rewards = table(
        ("term", "meaning", "unit", "default weight"),
        ((f"`{t}`", *REWARDS[t], f"{config.reward.get(t, 0):g}") for t in REWARD_TERMS),
    )
    return [
        "## Rewards\n\nThe weighted sum of terms, each divided by `reward_scale` (default: requests per episode), so "
        "that with the default weights the undiscounted return of a completed episode is minus the mean end-to-end "
        'latency in seconds. All terms are in `info["reward_terms"]`, in this order.',
        rewards,
        *closing(environment, config),
    ]


def closing(environment: type[Any], config: BaseModel) -> list[str]:
    """Return the sections about episodes and arguments."""
    about = sections(environment)
    return [
        *(f"## {title}\n\n{markdown(about[title])}" for title in SHARED),
        f"## Arguments\n\nArguments of `gymnasium.make`, all JSON-able, besides `render_mode`.\n\n"
        f"{arguments_table(config)}",
        "## Version History\n\n- v0: the first version",
    ]


PICTURES = """## Pictures and videos

`render_mode="rgb_array"` makes `env.render()` return an image of 800 × 600 pixels, `"ansi"` a text. Both show only
what the agent may observe. Texts need nothing more, pictures and files do:

| for | use | needs |
| --- | --- | --- |
| an image | `render_mode="rgb_array"` | `pip install "kvgym[pictures]"` |
| a window | `render_mode="human"`; Gymnasium draws it, and warns | `pip install "kvgym[pictures]" pygame` |
| an animation (GIF), a summary of an episode (PNG) | `kvgym render` | `pip install "kvgym[pictures]"` |
| a video (MP4) | the same, with a file that ends in `.mp4` | `pip install "kvgym[pictures,video]"` |
| a video of your own loop | `gymnasium.wrappers.RecordVideo` | `pip install "kvgym[pictures]" moviepy` |

`RecordVideo` needs `render_mode="rgb_array"`. It writes each step as a frame, at 10 frames per second. `kvgym render`
skips steps of long episodes, and shows the last picture for two seconds."""
"""What pictures show, and which libraries their files need."""

MAKING = (
    '`gymnasium.make("kvgym:{0}")` imports kvgym and makes this environment. After `import kvgym`, `"{0}"` is enough; '
    "without the import it raises `NamespaceNotFound`, because Gymnasium does not search installed packages for "
    "environments."
)
"""How to make an environment; the same on every page."""


def pages() -> dict[str, str]:
    """Return the pages by file name: one for each kind of action, and the index."""
    listed, made, overview = environment_names(), {}, []
    for name, action in IDS.items():
        what = listed[name]
        head = f"<!-- python scripts/pages.py docs/environments -->\n\n# {name}"
        film = f"![An episode of {name}](../images/environments/{name.removeprefix('kvgym/')}.gif)"
        clusters = {ROUTING_ID: routing_page, SCALING_ID: scaling_page}
        own = clusters[name]() if name in clusters else scheduling_page(action)
        parts = [head, f"{what[0].upper()}{what[1:]}.", film, MAKING.format(name), *own]
        made[f"{action}.md"] = "\n\n".join(parts) + "\n"
        overview.append((f"[{name}]({action}.md)", what))
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *IDS.values(), "```"])
    making = MAKING.format("kvgym/AdmitCount-v0").replace("this environment", "one")
    made["index.md"] = (
        f"<!-- python scripts/pages.py docs/environments -->\n\n# Environments\n\n{making}\n\n"
        "Those that schedule a worker share dynamics, observations and rewards, and differ in their actions; `Route` "
        "and `Scale` decide for a cluster.\n\n"
        f"{table(('id', 'action'), overview)}\n\n{PICTURES}\n\n{toctree}\n"
    )
    return made


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        write_text(folder / name, text)


if __name__ == "__main__":
    main()
