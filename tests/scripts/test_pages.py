"""Pages of environments and help texts: they describe the right id and agree with the spaces."""

import pydoc
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from pages import REWARDS, pages

from kvgym.envs import IDS, SCHEDULING_IDS, ActionKind, EnvConfig
from kvgym.envs.scheduling.explaining import observation_rows
from kvgym.envs.scheduling.spaces import feature_names, flat_space
from kvgym.envs.scheduling.tables import REWARD_TERMS

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "environments"


def test_the_pages_are_up_to_date():
    made = pages()
    assert {path.name for path in FOLDER.glob("*.md")} == set(made), (
        "run python scripts/pages.py docs/environments"
    )
    for name, text in made.items():
        assert (FOLDER / name).read_text("utf-8") == text, "run python scripts/pages.py docs/environments"
    assert tuple(REWARDS) == REWARD_TERMS


@pytest.mark.parametrize("name", IDS)
def test_help_is_about_the_id(name):
    env = gym.make(name, num_requests=4, compiled=False)
    text = pydoc.plain(pydoc.render_doc(env.unwrapped))
    assert name in text
    assert not [other for other in IDS if IDS[other] != IDS[name] and other in text]
    assert "Episode End:" in text
    env.close()


@pytest.mark.parametrize("action", dict.fromkeys(SCHEDULING_IDS.values()))
def test_the_parts_of_an_action_are_those_of_its_space(action):
    config = EnvConfig.of(action=action, queue_window=5, active_window=3)
    parts, space = config.kind.parts(config), config.kind.space(config)
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    if isinstance(space, spaces.Discrete):
        assert (low, high) == (0, space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        assert [part.high for part in parts] == list(space.nvec - 1)
    else:
        assert (low, high) == (
            (0, 1) if isinstance(space, spaces.MultiBinary) else (space.low.min(), space.high.max())
        )
    named = parts[-1].place.rpartition("… ")[2]
    assert int(named) == (space.n if isinstance(space, spaces.Discrete) else config.kind.size(config)) - 1


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(4), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 5]), spaces.Box(-2.0, 3.0, (2,))],
    ids=str,
)
def test_a_kind_without_parts_has_those_of_its_space(space):
    class Plain(ActionKind):
        """What it does.

        And how.
        """

        name = "plain"
        write_mask = apply = None

        def space(self, config):
            return space

        def mask_size(self, config):
            return 1

        def greedy(self, config, mask):
            return 0

        def idle(self, config):
            return 0

    (part,) = Plain().parts(None)
    assert part.meaning == "What it does."
    expected = {"Discrete": (0, 3), "MultiBinary": (0, 1), "MultiDiscrete": (0, 4), "Box": (-2, 3)}
    assert (part.low, part.high) == expected[type(space).__name__]
    assert part.place == f"0 … {(4 if isinstance(space, spaces.Discrete) else int(np.prod(space.shape))) - 1}"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"information": ("predicted_length", "class_rates", "slo"), "features": ("priority",)},
        {"action": "rank", "queue_window": 3},
    ],
    ids=["default", "more information", "rank"],
)
def test_rows_have_the_index_of_each_feature(more):
    config = EnvConfig.of(**more)
    names, space = feature_names(config), flat_space(config)
    windows = {"queue": config.queue_window, "active": config.active_window}
    found = {}
    for key, rows in observation_rows(config).items():
        for row in rows:
            first, _, step = row.place.partition(" + ")
            for position in range(windows.get(key, 1)):
                at = int(first) + position * int(step.split()[0] if step else 0)
                place = f"{position}." if step else ""
                found[at] = row.name if key == "profile" else f"{key}.{place}{row.name}"
                assert (row.low, row.high) == (space.low[at], space.high[at])
    assert [found[at] for at in range(len(found))] == list(names)
