"""The queue window and the cached fields of observed requests always agree with the tables."""

import numpy as np
import pytest

from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.simulator.tables import UNKNOWN

TIGHT = {"num_requests": 40, "rate": 400.0, "kv_capacity": 5000, "queue_window": 5, "active_window": 4}


def queue_of(block):
    """Return the waiting requests in their order."""
    found, i = [], int(block["workers"][0]["queue_head"])
    while i != UNKNOWN:
        found.append(i)
        i = int(block["requests"][i]["queue_next"])
    return found


def choose(env, rng):
    """Return random actions, most of them possible."""
    masks = env.action_masks()
    if env.config.action == "admit_count":
        return np.array([rng.integers(0, row.sum()) for row in masks])
    if env.config.action == "flags":
        flags = (masks[:, 1::2] & (rng.random(masks[:, 1::2].shape) < 0.6)).astype(np.int8)
        flags[:, env.config.queue_window :] *= rng.random((env.num_envs, 1)) < 0.1
        return flags
    return env.action_space.sample()


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "admit_count"},
        {"action": "flags"},
        {"action": "flags", "system": {"requeue": "front"}, "block_size": 8},
        {"action": "flags", "system": {"requeue": "back", "progress_on_evict": "kept"}, "epochs": "decision"},
        {"action": "flags", "queue_order": "prompt"},
        {"action": "knobs", "hold": 3},
    ],
    ids=lambda arguments: "-".join(str(value) for value in arguments.values()),
)
def test_caches_agree_with_the_tables(arguments):
    """Incrementally updated windows hold the front of the queue; observations equal those without caches."""
    env = ServingVectorEnv(3, **TIGHT, **arguments)
    env.action_space.seed(0)
    env.reset(seed=0)
    rng, waited, evicted, episodes = np.random.default_rng(1), 0, 0, env.episodes
    for step in range(250):
        observation = env.step(choose(env, rng))[0]
        for slot in episodes.slots:
            block = slot.block
            shown = block["window"][: block["episode"][0]["num_window"]].tolist()
            queue = queue_of(block)
            waited += len(queue) > env.config.queue_window
            evicted += int(block["workers"][0]["total_evicted"])
            if env.config.queue_order == "queue":
                assert shown == queue[: env.config.queue_window]
            else:
                by_prompt = sorted(queue, key=lambda i, r=block["requests"]: (r[i]["prompt_len"], i))
                assert shown == by_prompt[: env.config.queue_window]
            if step % 7 == 6:  # caches get old before they are cleared
                block["seen_waiting"]["request"] = block["seen_active"]["request"] = 0
        if step % 7 == 6:
            episodes.renew_observations()
            episodes.observe(np.ones(3, bool))
            np.testing.assert_array_equal(observation, episodes.observations)
    assert waited > 10
    assert evicted > 0 or arguments["action"] != "flags"
