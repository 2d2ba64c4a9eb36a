"""Time the CartPole of Gymnasium, EnvPool and gymnax on one core, to judge the figures of ``../envs.py``.

EnvPool steps compiled environments in threads, gymnax traces them with JAX. Both are timed where they are installed,
best in an environment of their own:

    python -m venv others && others/bin/pip install gymnasium envpool gymnax six
    others/bin/python scripts/speed/others/environments.py            # half a minute
    others/bin/python scripts/speed/others/environments.py --smoke    # seconds, its figures mean nothing

Figures are the fastest of several repetitions, wall time per environment and step, as other threads do the work.
Episodes end and start again inside the steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np

COUNTS = (1, 64, 256, 1024)


def fastest(work: Callable[[], object], units: int, repeats: int) -> float:
    """Return the least nanoseconds per unit of ``work``, which does ``units`` of them."""
    work()  # compile, and fill caches
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e9 * min(times) / units


def gymnasium_steps(count: int, steps: int) -> Callable[[], object]:
    """Return work that steps Gymnasium's vectorised CartPole, written in NumPy."""
    envs = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    actions = np.arange(count) % 2
    return lambda: [envs.step(actions) for _ in range(steps)]


def envpool_steps(count: int, steps: int) -> Callable[[], object]:
    """Return work that steps EnvPool's CartPole with one thread."""
    import envpool

    envs = envpool.make_gymnasium("CartPole-v1", num_envs=count, num_threads=1)
    envs.reset()
    actions = (np.arange(count) % 2).astype(np.int32)
    return lambda: [envs.step(actions) for _ in range(steps)]


def gymnax_steps(count: int, steps: int) -> Callable[[], object]:
    """Return work that steps gymnax's CartPole: one compiled call for all steps, without Python between them."""
    import gymnax
    import jax
    import jax.numpy as jnp

    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), count)
    state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)[1]
    actions = jnp.arange(count) % 2
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    @jax.jit
    def play(state: object) -> object:
        return jax.lax.scan(lambda now, _: (step(keys, now, actions, params)[1], None), state, None, steps)[0]

    return lambda: jax.block_until_ready(play(state))


def main() -> None:
    """Time what is installed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    options = parser.parse_args()
    steps, repeats = (3, 1) if options.smoke else (500, 9)
    kinds = {"gymnasium": gymnasium_steps, "envpool": envpool_steps, "gymnax": gymnax_steps}
    installed = {name: make for name, make in kinds.items() if importlib.util.find_spec(name) is not None}
    print("| environments | " + " | ".join(f"{name}, ns" for name in installed) + " |")
    print("|---|" + "---|" * len(installed))
    for count in COUNTS[:1] if options.smoke else COUNTS:
        figures = [fastest(make(count, steps), count * steps, repeats) for make in installed.values()]
        print(f"| {count:,} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
