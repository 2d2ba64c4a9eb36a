"""Discount by time instead of by steps, for algorithms of Stable-Baselines3 that learn from rollouts.

Steps of an environment differ in duration, by a factor of a thousand where it skips what needs no decision. A discount
per step then weighs a second by the number of decisions in it. Here a reward that comes t seconds later weighs γ^t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.agents.sb3.mixed_env import MixedVecEnv
from kvgym.agents.sb3.vec_env import SB3VecEnv
from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.checks import real_number

try:
    from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
    from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.vec_env import VecEnvWrapper
except ImportError as error:
    raise ConfigError(
        f'kvgym.agents.sb3.discounting needs Stable-Baselines3: pip install "kvgym[train]" ({error})'
    ) from error


class _ByTime(RolloutBuffer):
    """Mixin of rollout buffers: returns are discounted by the duration of steps.

    Attributes:
        envs: environments that know the duration of their last step.
        per_second: γ.
        seconds: duration of each step, float64 (steps, N).
    """

    envs: SB3VecEnv | MixedVecEnv
    per_second: float

    def reset(self) -> None:
        """Forget the rollout."""
        super().reset()
        self.seconds = np.zeros((self.buffer_size, self.n_envs))

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add a step of every environment."""
        self.seconds[self.pos] = self.envs.step_seconds
        super().add(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any, dones: Any) -> None:
        """Compute advantages as Stable-Baselines3 does (GAE(λ)), with the discount of each step."""
        following = last_values.clone().cpu().numpy().flatten()
        goes_on, advantage = 1.0 - dones.astype(np.float32), np.zeros(self.n_envs, np.float32)
        for step in range(self.buffer_size - 1, -1, -1):
            kept = goes_on * self.per_second ** self.seconds[step]
            error = self.rewards[step] + kept * following - self.values[step]
            advantage = error + kept * self.gae_lambda * advantage
            self.advantages[step] = advantage
            following, goes_on = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values


class _Rollouts(_ByTime, RolloutBuffer):
    """Rollouts of PPO and A2C."""


class _MaskableRollouts(_ByTime, MaskableRolloutBuffer):
    """Rollouts of MaskablePPO."""


class _RecurrentRollouts(_ByTime, RecurrentRolloutBuffer):
    """Rollouts of RecurrentPPO."""


_KINDS: dict[type, type[_ByTime]] = {
    RolloutBuffer: _Rollouts,
    MaskableRolloutBuffer: _MaskableRollouts,
    RecurrentRolloutBuffer: _RecurrentRollouts,
}


@explained
def discount_by_time(model: BaseAlgorithm, per_second: float) -> None:
    """Discount the rewards of a model by time: a reward t seconds later weighs ``per_second`` to the power of t.

    The model's ``gamma`` then discounts only the value that is added where an episode is truncated; 1 is usual.

    Args:
        model: PPO, A2C, MaskablePPO or RecurrentPPO with environments of :func:`~kvgym.agents.make_sb3_env`, before it
            learns.
        per_second: γ in (0, 1]: 0.98 looks about 50 s ahead.

    Raises:
        ConfigError: another algorithm, other environments, or a wrong γ.
    """
    real_number(per_second, "per_second", "a number in (0, 1]", lambda x: 0 < x <= 1)
    learner: Any = model
    envs: Any = model.get_env()
    while isinstance(envs, VecEnvWrapper):
        envs = envs.venv
    buffer: Any = getattr(learner, "rollout_buffer", None)
    if type(buffer) not in _KINDS or not isinstance(envs, SB3VecEnv | MixedVecEnv):
        raise ConfigError(
            f"discount by time is for PPO, A2C, MaskablePPO and RecurrentPPO with environments of make_sb3_env; got "
            f"{type(model).__name__} with {shown(envs)}"
        )
    lstm = (
        {"hidden_state_shape": buffer.hidden_state_shape}
        if isinstance(buffer, RecurrentRolloutBuffer)
        else {}
    )
    timed = _KINDS[type(buffer)](
        buffer.buffer_size, buffer.observation_space, buffer.action_space, device=buffer.device,
        gae_lambda=buffer.gae_lambda, gamma=buffer.gamma, n_envs=buffer.n_envs, **lstm,
    )  # fmt: skip
    timed.envs, timed.per_second = envs, per_second
    learner.rollout_buffer = timed
