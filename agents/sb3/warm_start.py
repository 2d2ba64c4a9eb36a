"""Warm start: clone the decisions of a scheduler.

The policy of a Stable-Baselines3 model is trained with a separate optimiser and separate random numbers; the model's
own optimiser is unchanged. Equal arguments give equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.demonstrations.record import Demonstrations
from kvgym.errors import ConfigError, shown

try:
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3 import A2C, PPO
    from torch import Tensor, nn
except ImportError as error:
    raise ConfigError(
        "kvgym.agents.sb3.warm_start needs PyTorch, Stable-Baselines3 and sb3-contrib: "
        f'pip install "kvgym[train]" ({error})'
    ) from error

CHUNK = 4096
"""Number of steps evaluated at a time."""

HELD_OUT = 0.1
"""Share of the demonstrations held out for validation."""

KNOWN_RETURN = 0.01
"""In an episode that was cut off, the return of a step counts as known if rewards after the cut are discounted to this
or less."""

WARM_REWARDS = 1000
"""Steps after which the running scale of a ``VecNormalize`` is used for future rewards."""


@dataclass(frozen=True)
class CloningReport:
    """Result of cloning.

    Attributes:
        num_training: steps trained on.
        num_validation: steps held out.
        accuracy_before: share of the held-out steps at which the most probable action was the demonstrated one.
        accuracy_after: the same after training.
        loss_before: mean of -log π(a|o) over the held-out steps.
        loss_after: the same after training.
        training_losses: mean of -log π(a|o) over the training steps, per epoch.
        value_loss_before: mean squared error of the critic over the held-out steps, in variances of the returns (1
            = as good as always predicting their mean); None if the critic was not trained.
        value_loss_after: the same after training.
        critic: "trained", or the reason that it was not.
    """

    num_training: int
    num_validation: int
    accuracy_before: float
    accuracy_after: float
    loss_before: float
    loss_after: float
    training_losses: tuple[float, ...]
    value_loss_before: float | None
    value_loss_after: float | None
    critic: str


@dataclass(frozen=True)
class _Steps:
    """Tensors of m steps: observations, masks, demonstrated actions, and returns."""

    observations: Tensor
    masks: Tensor | None
    actions: Tensor
    returns: Tensor  # NaN where not known

    def at(self, rows: Any) -> _Steps:
        """Return some of the steps."""
        masks = None if self.masks is None else self.masks[rows]
        return _Steps(self.observations[rows], masks, self.actions[rows], self.returns[rows])

    def __len__(self) -> int:
        return len(self.actions)


def clone(
    model: Any,
    demonstrations: Demonstrations,
    *,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    value_weight: float = 0.5,
    seed: int = 0,
) -> CloningReport:
    """Train a model's policy on demonstrated actions, and its critic on their returns.

    Minimises the mean of -log π(a|o), with masks if the model has them, plus ``value_weight`` times the squared error
    of the critic in variances of the returns. Returns are discounted by the model's gamma. Steps too near to the
    point where an episode was cut off, or truncated at its horizon, train only the actor. If the model's environment
    normalises rewards (``VecNormalize``), demonstrated rewards are normalised, too: by its running scale, or, if that
    has few rewards, by the scale of the demonstrations.

    A tenth of the steps is held out for validation: whole episodes if there are at least ten.

    Args:
        model: PPO, A2C or MaskablePPO on flat observations.
        demonstrations: of an environment with the same arguments as the model's.
        epochs: passes over the demonstrations, ≥ 1.
        batch_size: steps per update, ≥ 1.
        learning_rate: of Adam, > 0.
        value_weight: of the critic's loss, ≥ 0; 0 leaves the critic out.
        seed: of the order of steps and the held-out steps.

    Raises:
        ConfigError: an argument is wrong, the algorithm is another one, or the demonstrations are of another
            environment.
    """
    _check_model(model)
    _check_positive(epochs=epochs, batch_size=batch_size)
    if not learning_rate > 0 or not value_weight >= 0:
        raise ConfigError(
            f"learning_rate = {shown(learning_rate)} must be > 0 and value_weight = {shown(value_weight)} ≥ 0"
        )
    rng = np.random.default_rng(seed)
    critic = "trained" if value_weight > 0 else "not trained: value_weight is 0"
    steps = _tensors(model, demonstrations)
    held_out = _held_out(demonstrations, rng)
    training, validation = steps.at(np.flatnonzero(~held_out)), steps.at(np.flatnonzero(held_out))
    mean, variance = 0.0, 1.0
    known = training.returns[~training.returns.isnan()]
    if len(known) == 0:
        critic = "not trained: no return is known, all episodes were cut off"
    else:
        mean, variance = float(known.mean()), float(known.var(correction=0)) or 1.0
    trained = critic == "trained"
    policy, was_training = model.policy, model.policy.training
    policy.set_training_mode(False)
    before = _evaluate(policy, validation, variance)
    if trained:
        _shift_values(policy, mean, training)
    optimiser = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    policy.set_training_mode(True)
    losses = []
    for _ in range(epochs):
        order, total = rng.permutation(len(training)), 0.0
        for start in range(0, len(training), batch_size):
            batch = training.at(order[start : start + batch_size])
            values, log_prob = _forward(policy, batch)
            loss = -log_prob.mean()
            total += float(loss.detach()) * len(batch)
            if trained:
                loss = loss + value_weight * _value_loss(values, batch, variance)
            _descend(policy, optimiser, loss, model.max_grad_norm)
        losses.append(total / len(training))
    policy.set_training_mode(False)
    after = _evaluate(policy, validation, variance)
    policy.set_training_mode(was_training)
    return CloningReport(
        num_training=len(training),
        num_validation=len(validation),
        accuracy_before=before[0],
        accuracy_after=after[0],
        loss_before=before[1],
        loss_after=after[1],
        training_losses=tuple(losses),
        value_loss_before=before[2] if trained else None,
        value_loss_after=after[2] if trained else None,
        critic=critic,
    )


# ---------------------------------------------------------------- arguments


def _check_model(model: Any) -> None:
    """Check that the model has a stochastic policy and a critic.

    Raises:
        ConfigError: it does not.
    """
    if isinstance(model, PPO | A2C | MaskablePPO):
        return
    raise ConfigError(
        f"{type(model).__name__} has no distribution over actions to train; use MaskablePPO, PPO or A2C (dqn learns "
        "action values: fill its replay buffer with a policy's steps instead)"
    )


def _check_positive(**numbers: int) -> None:
    """Check that arguments are whole numbers ≥ 1.

    Raises:
        ConfigError: naming the first that is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ConfigError(f"{name} = {shown(value)}; expected a whole number ≥ 1")


def _check_spaces(model: Any, demonstrations: Demonstrations) -> None:
    """Check that demonstrations fit the model's environment.

    Raises:
        ConfigError: they do not.
    """
    space, width = model.action_space, demonstrations.masks.shape[1]
    if isinstance(space, gym.spaces.MultiBinary):
        fits = demonstrations.actions.shape[1:] == space.shape and width == 2 * int(np.prod(space.shape))
    else:
        fits = (
            isinstance(space, gym.spaces.Discrete) and demonstrations.actions.ndim == 1 and width == space.n
        )
    observations = demonstrations.observations.shape[1:]
    if not fits or model.observation_space.shape != observations:
        raise ConfigError(
            f"demonstrations with observations {observations} and masks of {width} do not fit a model with "
            f"{model.observation_space} and {space}; give demonstrate() the arguments of the model's environment"
        )
    if len(demonstrations) < 2:
        raise ConfigError("cloning needs at least two steps, one of them for validation")
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None and normaliser.norm_obs:
        raise ConfigError(
            "the model's VecNormalize changes observations, but demonstrations are unchanged and in [-1, 1]: "
            "use norm_obs=False"
        )


# ---------------------------------------------------------------- demonstrations as tensors


def _tensors(model: Any, demonstrations: Demonstrations) -> _Steps:
    """Return the steps on the model's device, with returns in the units of the model's rewards."""
    _check_spaces(model, demonstrations)
    flags = isinstance(model.action_space, gym.spaces.MultiBinary)
    masks = demonstrations.masks if isinstance(model, MaskablePPO) else None
    returns = _returns(demonstrations, _as_seen(model, demonstrations), model.gamma)
    return _Steps(
        observations=torch.as_tensor(demonstrations.observations, device=model.device),
        masks=None if masks is None else torch.as_tensor(masks, device=model.device),
        actions=torch.as_tensor(
            demonstrations.actions, dtype=torch.float32 if flags else torch.int64, device=model.device
        ),
        returns=torch.as_tensor(returns, dtype=torch.float32, device=model.device),
    )


def _as_seen(model: Any, demonstrations: Demonstrations) -> NDArray[np.float64]:
    """Return the rewards normalised as for the model, float64 (n,)."""
    rewards, normaliser = demonstrations.rewards, model.get_vec_normalize_env()
    if normaliser is None or not normaliser.norm_reward:
        return rewards
    if normaliser.ret_rms.count >= WARM_REWARDS:
        variance = float(normaliser.ret_rms.var)
    else:  # it uses the variance of discounted sums of past rewards
        sums, total = np.empty_like(rewards), 0.0
        for t, (reward, start) in enumerate(zip(rewards, demonstrations.episode_starts, strict=True)):
            total = reward + (0.0 if start else normaliser.gamma * total)
            sums[t] = total
        variance = float(sums.var())
    limit = normaliser.clip_reward
    seen: NDArray[np.float64] = np.clip(rewards / np.sqrt(variance + normaliser.epsilon), -limit, limit)
    return seen


def _returns(
    demonstrations: Demonstrations, rewards: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """Return the discounted return of each step, float64 (n,), NaN if unknown."""
    returns = np.full(len(rewards), np.nan)
    starts = np.flatnonzero(demonstrations.episode_starts)
    for episode, (start, end) in enumerate(zip(starts, [*starts[1:], len(rewards)], strict=True)):
        completed = episode < len(demonstrations.completed) and bool(demonstrations.completed[episode])
        total, behind = 0.0, 1.0
        for t in range(end - 1, start - 1, -1):
            total, behind = rewards[t] + gamma * total, behind * gamma
            if completed or behind <= KNOWN_RETURN:
                returns[t] = total
    return returns


def _held_out(demonstrations: Demonstrations, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask of the validation steps, bool (n,): whole episodes if there are ten, else steps."""
    n = len(demonstrations)
    episode = np.cumsum(demonstrations.episode_starts) - 1
    units = episode if episode[-1] >= 9 else np.arange(n)
    sizes = np.bincount(units)
    order = rng.permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[:-1][before[:-1] < HELD_OUT * n]  # never all of them
    return np.isin(units, chosen)


# ---------------------------------------------------------------- the policy


def _forward(policy: Any, steps: _Steps) -> tuple[Tensor, Tensor]:
    """Return values (m,) and log-probabilities of the actions (m,)."""
    masks = {} if steps.masks is None else {"action_masks": steps.masks}
    values, log_prob, _ = policy.evaluate_actions(steps.observations, steps.actions, **masks)
    return values.flatten(), log_prob


def _descend(policy: Any, optimiser: torch.optim.Optimizer, loss: Tensor, max_grad_norm: float) -> None:
    """Take a step down the gradient."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    optimiser.step()
    optimiser.zero_grad()  # keep these gradients from the model's own optimiser


def _value_loss(values: Tensor, steps: _Steps, variance: float) -> Tensor:
    """Return the mean squared error over the steps with known return, in variances; 0 if there is none."""
    known = ~steps.returns.isnan()
    errors = torch.where(known, values - steps.returns.nan_to_num(), 0.0)
    return errors.square().sum() / (variance * known.sum().clamp(min=1))


def _shift_values(policy: Any, mean: float, steps: _Steps) -> None:
    """Shift the bias of the critic's last layer so that its mean value is the mean return."""
    last = [module for module in policy.value_net.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        rows = [slice(start, start + CHUNK) for start in range(0, len(steps), CHUNK)]
        values = torch.cat([policy.predict_values(steps.observations[part]) for part in rows])
        last.bias.add_(mean - values.mean())


def _evaluate(policy: Any, steps: _Steps, variance: float) -> tuple[float, float, float]:
    """Return the share of demonstrated actions that are most probable, mean -log π(a|o), and the critic's loss."""
    hits, log_probs, values = 0, [], []
    with torch.no_grad():
        for start in range(0, len(steps), CHUNK):
            part = steps.at(slice(start, start + CHUNK))
            value, log_prob = _forward(policy, part)
            values.append(value)
            log_probs.append(log_prob)
            masks = {} if part.masks is None else {"action_masks": part.masks}
            mode = policy.get_distribution(part.observations, **masks).mode()
            hits += int((mode == part.actions).reshape(len(part), -1).all(1).sum())
        critic = float(_value_loss(torch.cat(values), steps, variance))
    return hits / len(steps), -float(torch.cat(log_probs).mean()), critic
