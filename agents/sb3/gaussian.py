"""Gaussian policies for actions of real numbers, centred at the initial action.

A kind of action with a Box space has a usual centre and spread (``ActionKind.usual``). An action is
centre + spread x (output of the network + exp(log_std) x noise), so that training begins at the centre and all numbers
have the same scale for the optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgym.errors import ConfigError

try:
    import torch
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.type_aliases import Schedule
    from torch import Tensor, nn
except ImportError as error:
    raise ConfigError(
        "kvgym.agents.sb3.gaussian needs PyTorch, Stable-Baselines3 and sb3-contrib: "
        f'pip install "kvgym[train]" ({error})'
    ) from error


class Around(nn.Module):
    """Outputs of a network in the units of an action: centre + spread x output.

    Args:
        inner: the network.
        centre: initial value of each number.
        spread: typical change of each number, positive.
    """

    def __init__(self, inner: nn.Module, centre: Sequence[float], spread: Sequence[float]) -> None:
        super().__init__()
        self.inner = inner
        self.centre: Tensor
        self.spread: Tensor
        self.register_buffer("centre", torch.tensor(centre, dtype=torch.float32))
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        """Return the means of actions, float32 (B, a)."""
        means: Tensor = self.centre + self.spread * self.inner(features)
        return means


class RowsGaussian(DiagGaussianDistribution):
    """A number for each row of a window; numbers of rows without a request are ignored.

    Attributes:
        present: float32 (B, a), 1 if a row has a request, else 0: no probability and no entropy.
    """

    present: Tensor
    distribution: Any

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of the numbers of present rows, (B,)."""
        found: Tensor = (self.distribution.log_prob(actions) * self.present).sum(1)
        return found

    def entropy(self) -> Tensor:
        """Return their entropy, (B,)."""
        found: Tensor = (self.distribution.entropy() * self.present).sum(1)
        return found


class GaussianPolicy(ActorCriticPolicy):
    """Stable-Baselines3's ``MlpPolicy`` for actions of real numbers; its ``action_net`` is an :class:`Around`.

    Args:
        *args: as ``ActorCriticPolicy`` takes them.
        centre: initial value of each number.
        spread: typical change of each number.
        **kwargs: likewise.

    Raises:
        ConfigError: the noise is state-dependent (``use_sde``).
    """

    action_net: nn.Module
    action_dist: Any
    log_std: Any

    def __init__(self, *args: Any, centre: Sequence[float], spread: Sequence[float], **kwargs: Any) -> None:
        self._usual = centre, spread
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        if type(self.action_dist) is not DiagGaussianDistribution:
            raise ConfigError("these policies have a standard deviation for each number; leave use_sde out")
        # The optimiser already has these parameters.
        self.action_net = Around(self.action_net, *self._usual)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        """Return the distribution of actions of features (B, h)."""
        net: Any = self.action_net
        if isinstance(self.action_dist, RowsGaussian):
            self.action_dist.present = latent_pi[:, -len(net.centre) :]
        found: Distribution = self.action_dist.proba_distribution(
            net(latent_pi), self.log_std + net.spread.log()
        )
        return found


class GaussianLstmPolicy(GaussianPolicy, RecurrentActorCriticPolicy):
    """sb3-contrib's ``MlpLstmPolicy`` for actions of real numbers; arguments as those of both."""
