"""A vector environment of several configurations equals its parts, in order."""

from __future__ import annotations

import numpy as np
import pytest
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from kvgym.agents.sb3.mixed_env import MixedVecEnv
from kvgym.agents.sb3.vec_env import make_sb3_env
from kvgym.errors import ConfigError

BASE = {
    "num_requests": 3,
    "queue_window": 3,
    "active_window": 2,
    "scenario": "mc-sf-model-2",
    "horizon": 40.0,
}
VARIANTS = (
    (2, BASE),
    (1, {**BASE, "num_requests": 4, "queue_order": "prompt"}),
    (3, {**BASE, "load": (0.5, 2.0), "reward_reference": "fcfs", "system": {"progress_on_evict": "kept"}}),
)


def parts(action="admit_count", **changes):
    return [make_sb3_env(action, count, **arguments, **changes) for count, arguments in VARIANTS]


def sample(space, masks, rng):
    """Return an action of a Discrete space for each row of the masks."""
    assert masks.shape[1] == space.n
    return np.array([rng.choice(np.flatnonzero(row)) for row in masks])


def same_infos(ours, theirs):
    """Compare the infos of a step, but for the time it took."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if key == "episode":
                assert (a[key]["r"], a[key]["l"]) == (b[key]["r"], b[key]["l"])
            else:
                np.testing.assert_array_equal(a[key], b[key])


@pytest.mark.parametrize("action", ["admit_count", "admit_evict"])
def test_equal_to_the_parts(action):
    mixed, alone = MixedVecEnv(parts(action)), parts(action)
    assert mixed.num_envs == 6
    mixed.seed(10)
    for part, first in zip(alone, (10, 12, 13), strict=True):
        part.seed(first)
    rng = np.random.default_rng(0)
    for _ in range(2):  # the second goes on with the generators
        np.testing.assert_array_equal(mixed.reset(), np.concatenate([part.reset() for part in alone]))
        assert mixed.reset_infos == [info for part in alone for info in part.reset_infos]
        ended = 0
        for _ in range(100):
            masks = mixed.action_masks()
            np.testing.assert_array_equal(masks, np.concatenate([part.action_masks() for part in alone]))
            np.testing.assert_array_equal(masks, np.stack(mixed.env_method("action_masks")))
            np.testing.assert_array_equal(masks, np.stack([f() for f in mixed.get_attr("action_masks")]))
            actions = sample(mixed.action_space, masks, rng)
            observations, rewards, dones, infos = mixed.step(actions)
            steps = [p.step(a) for p, a in zip(alone, np.split(actions, [2, 3]), strict=True)]
            np.testing.assert_array_equal(observations, np.concatenate([s[0] for s in steps]))
            np.testing.assert_array_equal(rewards, np.concatenate([s[1] for s in steps]))
            np.testing.assert_array_equal(dones, np.concatenate([s[2] for s in steps]))
            same_infos(infos, [info for s in steps for info in s[3]])
            assert (rewards.dtype, dones.dtype) == (np.float32, bool)
            ended += int(dones.sum())
        assert ended > 3


def test_seeds_and_options():
    """Seeds of the whole come before those of the parts, which hold where there are none."""
    mixed, alone = MixedVecEnv(parts(seed=4)), parts(seed=4)
    np.testing.assert_array_equal(mixed.reset(), np.concatenate([part.reset() for part in alone]))
    mixed, again = MixedVecEnv(parts(seed=4)), MixedVecEnv(parts())
    mixed.seed(9)
    again.seed(9)
    np.testing.assert_array_equal(mixed.reset(), again.reset())
    np.testing.assert_array_equal(mixed.reset(), again.reset())
    for env in (mixed, again):
        env.set_options([{"workload_seed": k} for k in range(6)])
    np.testing.assert_array_equal(mixed.reset(), again.reset())
    tables = [slot.table for part in mixed.parts for slot in part.env.episodes.slots]
    assert [len(table) for table in tables] == [3, 3, 4, 3, 3, 3]
    plain = mixed.parts[0].env.episodes.workload.sample(1)
    np.testing.assert_array_equal(tables[1].arrival_time, plain.arrival_time)
    drawn = [slot.table.arrival_time[0] for slot in mixed.parts[0].env.episodes.slots]
    mixed.reset()  # options were for one reset
    assert [slot.table.arrival_time[0] for slot in mixed.parts[0].env.episodes.slots] != drawn


def test_attributes():
    mixed = MixedVecEnv(parts())
    assert [config.num_requests for config in mixed.get_attr("config")] == [3, 3, 4, 3, 3, 3]
    assert [config.num_requests for config in mixed.get_attr("config", indices=[2, 0])] == [4, 3]
    assert len(mixed.env_method("action_masks", indices=3)) == 1
    assert mixed.env_is_wrapped(Monitor) == [True] * 6
    mixed.set_attr("load", (2.0, 2.0))
    assert mixed.get_attr("load") == [(2.0, 2.0)] * 6
    with pytest.raises(ConfigError, match="at once"):
        mixed.set_attr("load", (1.0, 1.0), indices=0)
    with pytest.raises(ConfigError, match="hold"):
        mixed.set_attr("hold", 2)
    with pytest.raises(AttributeError):
        mixed.env_method("no_such_method")
    assert list(mixed.get_images()) == [None] * 6
    assert is_masking_supported(VecNormalize(mixed, norm_obs=False))
    mixed.close()


@pytest.mark.parametrize("change", [{"queue_window": 4}, {"action": "admit_evict"}, {"active_window": 3}])
def test_unequal_spaces(change):
    other = make_sb3_env(
        **{"env_id_or_action": change.pop("action", "admit_count"), "num_envs": 1, **BASE, **change}
    )
    with pytest.raises(ConfigError, match="equal spaces"):
        MixedVecEnv([*parts(), other])


def test_wrong_parts():
    with pytest.raises(ConfigError, match="at least one vector environment"):
        MixedVecEnv([])
    with pytest.raises(ConfigError, match="flat"):
        MixedVecEnv([make_sb3_env("admit_count", 1, **BASE, observation="dict") for _ in range(2)])
