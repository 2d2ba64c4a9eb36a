"""What tests of pictures share."""

from kvgym.envs.scheduling.environment import ServingEnv, greedy_action

TIGHT = {"scenario": "a100-llama2-70b", "num_requests": 40, "kv_capacity": 1500, "rate": 40.0}

"""Requests that arrive faster than they can be served, so that some are evicted."""


def play(env, steps, seed=0):
    """Reset and take greedy steps; yields after the reset and after each step."""
    env.reset(seed=seed)
    yield
    for _ in range(steps):
        ended = env.step(greedy_action(env.config, env.action_masks()))[2:4]
        yield
        if any(ended):
            return


def after(steps, render_mode="rgb_array", seed=0, **arguments):
    """Return an environment after some greedy steps."""
    env = ServingEnv(render_mode=render_mode, **{**TIGHT, **arguments})
    for _ in play(env, steps, seed):
        pass
    return env
