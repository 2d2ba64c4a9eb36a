"""What tests of the routing environment share."""

from __future__ import annotations

import numpy as np

from playing.configurations import APART as APART
from playing.configurations import CLUSTERS as CLUSTERS
from playing.configurations import SHORT as SHORT

TIGHT = {"workload": SHORT, "kv_capacity": 250, "num_requests": 80, "rate": 400.0}


SMALL = {"scenario": "mc-sf-model-2", "workers": 3, "num_requests": 12}


RECORDS = ("start_time", "first_token_time", "finish_time", "num_evictions", "max_token_gap", "worker")


def same_schedule(one, other):
    return all(np.array_equal(one.requests[name], other.requests[name], equal_nan=True) for name in RECORDS)


def features(env):
    """Return the latest observation by name."""
    return dict(zip(env.feature_names, env.observer.flat.tolist(), strict=True))


def random_episode(env, seed, masked=0.8):
    """Play an episode at random, most choices inside the mask; returns its steps."""
    rng = np.random.default_rng(seed)
    steps = [env.reset(seed=seed)]
    env.action_space.seed(seed)
    while True:
        mask = env.sample_mask() if rng.random() < masked else None
        steps.append(env.step(env.action_space.sample(mask)))
        if steps[-1][2] or steps[-1][3]:
            return steps
