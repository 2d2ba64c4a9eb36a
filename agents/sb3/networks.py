"""Networks for Stable-Baselines3: an MLP, and ``"slots"``, which treats queue and active set as sets of rows.

``"slots"`` reads the flat observation as system features, future memory, Q queue rows and W active rows (first
feature ``present``), and applies the same weights to every row of a kind:

- rows: e = relu(second(relu(first(row)))), 0 for absent rows; queue and active rows have their own weights;
- with ``attention``, the present rows of both kinds then attend to each other, whatever their order, with one head: e
  becomes relu(e + out(softmax(q k / sqrt(d)) v)), 0 for absent rows;
- pooled: mean and maximum of e over the present rows, 0 if there are none;
- context: c = tanh(summary(tanh(pool([system, profile, pooled]))));
- rows in context: u = relu(mix([e, c])), 0 for absent rows;
- logits, or outputs that actions of real numbers are made of (:mod:`kvgym.agents.sb3.gaussian`), by kind of action:
  ``admit_evict`` linear(u) for each position and linear(c) to run, so that permuting rows permutes the logits;
  ``admit_count`` logit_k = sum over q < k of linear(u_q), since admitting k requests is admitting one after the
  other; ``flags`` and ``rank_scores`` linear(u) for each position; ``knobs`` and ``rank`` linear(c);
- value: linear(tanh(linear(c))).

Admitting the first k depends on the order of the queue, so for ``admit_count`` every queue row also has the
sums of ``prompt`` and ``peak`` over the rows up to and including it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeGuard

import gymnasium as gym

from kvgym.agents.sb3.gaussian import GaussianLstmPolicy, GaussianPolicy, RowsGaussian
from kvgym.agents.sb3.rows import Attention, RowNet, pool_rows
from kvgym.agents.trained.header import OUTPUTS
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import active_features, queue_features
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.utils.arguments import explained

try:
    import torch
    from sb3_contrib.common.maskable.distributions import MaskableDistribution
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from stable_baselines3.common.distributions import DiagGaussianDistribution
    from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.type_aliases import Schedule
    from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise ConfigError(
        "kvgym.agents.sb3.networks needs PyTorch, Stable-Baselines3 and sb3-contrib: "
        f'pip install "kvgym[train]" ({error})'
    ) from error

Network = Literal["mlp", "slots"]
Algorithm = Literal["ppo", "maskable_ppo", "recurrent_ppo", "a2c", "dqn"]

PREFIX_FEATURES = ("prompt", "peak")
"""Queue features with prefix sums for ``admit_count``."""


class SlotsExtractor(BaseFeaturesExtractor):
    """The context and a score for each row, see the module's description.

    The features are float32 (B, h + Q + W): c, linear(u) of the queue rows, linear(u) of the active rows;
    rows without outputs of this kind of action are left out. For real numbers a mask of present rows follows, (B, Q +
    W).

    Args:
        observation_space: the flat Box.
        queue_window: Q.
        active_window: W.
        action: kind of action.
        information: exposed information, which determines the columns of rows.
        features: further features.
        row_dim: d.
        context_dim: h.
        attention: let rows attend to each other.

    Raises:
        ConfigError: a size is not positive, or the space is not the flat observation of these windows.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        *,
        queue_window: int,
        active_window: int,
        action: str,
        information: Sequence[str] = ("predicted_length",),
        features: Sequence[str] = (),
        row_dim: int = 32,
        context_dim: int = 64,
        attention: bool = False,
    ) -> None:
        if row_dim < 1 or context_dim < 1:
            raise ConfigError(f"row_dim and context_dim must be positive, got {row_dim} and {context_dim}")
        config = EnvConfig.of(
            action=action, queue_window=queue_window, active_window=active_window, information=information,
            features=features,
        )  # fmt: skip
        expected = spaces.flat_space(config)
        if observation_space.shape != expected.shape:
            raise ConfigError(
                f"the slots network with queue_window={queue_window}, active_window={active_window} needs "
                f"flat observations {expected.shape}, got {observation_space}"
            )
        outputs = OUTPUTS[action]
        num_queue, num_active = outputs.queue * queue_window, outputs.active * active_window
        num_present = num_queue + num_active if outputs.real else 0
        super().__init__(observation_space, context_dim + num_queue + num_active + num_present)
        self.action, self.row_dim, self.context_dim = action, row_dim, context_dim
        self.queue_window, self.active_window = queue_window, active_window
        self.split = [context_dim, num_queue, num_active, num_present]
        self.parts = spaces.parts(config)
        names = [name for name, _ in queue_features(config)]
        self.prefix = [names.index(name) for name in PREFIX_FEATURES] if action == "admit_count" else []
        num_features = len(names) + len(self.prefix)
        self.queue = RowNet(num_features, row_dim, context_dim if num_queue else None)
        self.active = RowNet(len(active_features(config)), row_dim, context_dim if num_active else None)
        self.attention = Attention(row_dim) if attention else None
        self.num_fixed = self.parts["queue"][0]  # system features and future memory come first
        self.pool = nn.Linear(self.num_fixed + 4 * row_dim, context_dim)
        self.summary = nn.Linear(context_dim, context_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features of observations, float32 (B, D)."""
        queue = self._rows(observations, "queue", self.queue_window)
        active = self._rows(observations, "active", self.active_window)
        in_queue, in_active = queue[:, :, 0], active[:, :, 0]
        if self.prefix:
            sums = (queue[:, :, self.prefix] * in_queue[:, :, None]).cumsum(1)
            queue = torch.cat([queue, sums], 2)
        e_q, e_a = self.queue.embed(queue, in_queue), self.active.embed(active, in_active)
        if self.attention is not None:
            rows = self.attention(torch.cat([e_q, e_a], 1), torch.cat([in_queue, in_active], 1))
            e_q, e_a = rows.split([self.queue_window, self.active_window], 1)
        fixed = observations[:, : self.num_fixed]
        x = torch.cat([fixed, *pool_rows(e_q, in_queue), *pool_rows(e_a, in_active)], 1)
        c = self.summary(self.pool(x).tanh_()).tanh_()
        features = [c]
        if self.queue.scored:
            features.append(self.queue.score(e_q, c, in_queue))
        if self.active.scored:
            features.append(self.active.score(e_a, c, in_active))
        if self.split[3]:
            features += [
                rows for net, rows in ((self.queue, in_queue), (self.active, in_active)) if net.scored
            ]
        return torch.cat(features, 1)

    def _rows(self, observations: Tensor, part: str, num_rows: int) -> Tensor:
        start, end = self.parts[part]
        return observations[:, start:end].reshape(len(observations), num_rows, -1)


class ActionHead(nn.Module):
    """Logits, or action values, of the features of a :class:`SlotsExtractor`.

    Args:
        extractor: source of the features.
        num_logits: of the action space, or number of real numbers of an action.
        pairs: two logits per flag, [0, logit], for sb3-contrib's distribution.
        base: add linear(c) to all, for action values.
    """

    def __init__(
        self, extractor: SlotsExtractor, num_logits: int, *, pairs: bool = False, base: bool = False
    ) -> None:
        super().__init__()
        self.action, self.pairs, self.split = extractor.action, pairs, extractor.split
        self.rest = OUTPUTS[extractor.action].rest
        if self.rest:
            _, num_queue, num_active, _ = extractor.split
            self.add_module(self.rest, nn.Linear(extractor.context_dim, num_logits - num_queue - num_active))
        self.base = nn.Linear(extractor.context_dim, 1) if base else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, float32 (B, K), in the layout of the action's distribution."""
        c, queue, active, _ = torch.split(features, self.split, 1)
        rest = [getattr(self, self.rest)(c)] if self.rest else []
        logits = torch.cat([queue, active, *rest], 1)
        if self.action == "admit_count":
            logits = functional.pad(logits.cumsum(1), (1, 0))
        elif self.action == "flags" and self.pairs:
            logits = torch.stack([torch.zeros_like(logits), logits], 2).flatten(1)
        return logits if self.base is None else logits + self.base(c)


class ValueHead(nn.Module):
    """The critic: linear(tanh(linear(c))) of the features of a :class:`SlotsExtractor`."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        self.context_dim = context_dim
        self.hidden = nn.Linear(context_dim, context_dim)
        self.out = nn.Linear(context_dim, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the values, float32 (B, 1)."""
        value: Tensor = self.out(self.hidden(features[:, : self.context_dim]).tanh_())
        return value


def _slots_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return policy arguments that use the features of :class:`SlotsExtractor` directly."""
    return {**given, "net_arch": [], "features_extractor_class": SlotsExtractor}


def _build_slots(policy: Any, lr_schedule: Schedule) -> None:
    """Build a policy like ``ActorCriticPolicy._build``, with the heads of this module."""
    policy._build_mlp_extractor()
    extractor: SlotsExtractor = policy.pi_features_extractor
    pairs = isinstance(policy.action_dist, MaskableDistribution)
    policy.action_net = ActionHead(extractor, _num_logits(policy.action_space), pairs=pairs)
    policy.value_net = ValueHead(extractor.context_dim)
    if isinstance(policy.action_dist, DiagGaussianDistribution):
        numbers = 1 if extractor.split[3] else policy.action_space.shape[0]  # rows share one
        policy.log_std = nn.Parameter(torch.full((numbers,), float(policy.log_std_init)))
    if policy.ortho_init:
        gains = {
            policy.vf_features_extractor: math.sqrt(2),
            extractor: math.sqrt(2),
            **{rows.out: 0.01 for rows in (extractor.queue, extractor.active) if rows.scored},
            **({} if extractor.attention is None else {extractor.attention.out: 0.01}),
            policy.action_net: 0.01,
            policy.value_net.hidden: math.sqrt(2),
            policy.value_net.out: 1.0,
        }
        for module, gain in gains.items():
            module.apply(partial(BasePolicy.init_weights, gain=gain))
    policy.optimizer = policy.optimizer_class(
        policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs
    )


def _num_logits(space: Any) -> int:
    if isinstance(space, gym.spaces.Box):
        return int(space.shape[0])
    return int(space.nvec.sum() if isinstance(space, gym.spaces.MultiDiscrete) else space.n)


class SlotsPolicy(ActorCriticPolicy):
    """The slots network for PPO and A2C.

    Args:
        *args: as ``ActorCriticPolicy`` takes them.
        **kwargs: likewise; ``features_extractor_kwargs`` are the arguments of :class:`SlotsExtractor`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **_slots_arguments(kwargs))

    def _build(self, lr_schedule: Schedule) -> None:
        _build_slots(self, lr_schedule)


class GaussianSlotsPolicy(GaussianPolicy, SlotsPolicy):
    """The slots network for actions of real numbers; arguments as those of :class:`.gaussian.GaussianPolicy`."""

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        extractor: Any = self.pi_features_extractor
        if extractor.split[3]:
            self.action_dist = RowsGaussian(len(self._usual[0]))


class MaskableSlotsPolicy(MaskableActorCriticPolicy):
    """The slots network for sb3-contrib's MaskablePPO; arguments as :class:`SlotsPolicy`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **_slots_arguments(kwargs))

    def _build(self, lr_schedule: Schedule) -> None:
        _build_slots(self, lr_schedule)


class SlotsQNetwork(QNetwork):
    """Action values from the slots network."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        extractor = self.features_extractor
        assert isinstance(extractor, SlotsExtractor)
        self.q_net = ActionHead(extractor, _num_logits(self.action_space), base=True)  # type: ignore[assignment]


class SlotsDQNPolicy(DQNPolicy):
    """The slots network for DQN; arguments as :class:`SlotsPolicy`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **_slots_arguments(kwargs))

    def make_q_net(self) -> QNetwork:
        """Return a network with its own features extractor."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return SlotsQNetwork(**arguments).to(self.device)


_SLOTS_POLICIES: dict[str, type[BasePolicy]] = {
    "ppo": SlotsPolicy,
    "maskable_ppo": MaskableSlotsPolicy,
    "a2c": SlotsPolicy,
    "dqn": SlotsDQNPolicy,
}


@explained
def policy_for(
    network: Network, algorithm: Algorithm, config: EnvConfig, **sizes: Any
) -> tuple[str | type[BasePolicy], dict[str, Any]]:
    """Return ``policy`` and ``policy_kwargs`` for a Stable-Baselines3 algorithm.

    Args:
        network: ``"mlp"`` or ``"slots"``.
        algorithm: ``"ppo"``, ``"maskable_ppo"``, ``"recurrent_ppo"``, ``"a2c"`` or ``"dqn"``.
        config: the environment's, with ``observation="flat"``.
        **sizes: for ``"mlp"`` ``hidden``, sizes of the hidden layers, by default [64, 64], and with
            ``"recurrent_ppo"`` ``lstm``, units of the LSTM before them, by default 64; for ``"slots"``
            ``row_dim``, by default 32, ``context_dim``, by default 64, and ``attention``, by default False: whether
            rows attend to each other.

    Returns:
        ``"MlpPolicy"``, ``"MlpLstmPolicy"`` or a policy class, and its JSON-able keyword arguments.

    Raises:
        UnknownNameError: no such network or algorithm.
        ConfigError: observations are not flat, the algorithm does not support this kind of action, or a size is
            unknown or not a positive whole number.
    """
    if network not in ("mlp", "slots"):
        raise UnknownNameError("network", network, ["mlp", "slots"])
    recurrent = algorithm == "recurrent_ppo"
    if algorithm not in _SLOTS_POLICIES and not recurrent:
        raise UnknownNameError("algorithm", algorithm, [*_SLOTS_POLICIES, "recurrent_ppo"])
    if recurrent and network != "mlp":
        raise ConfigError(f"recurrent_ppo has an LSTM before an mlp; got network = {shown(network)}")
    if config.observation != "flat":
        raise ConfigError(f"networks read flat observations; the environment has {shown(config.observation)}")
    if network == "slots" and config.kind.observed:
        raise ConfigError(f"the slots network does not read all that {config.action} observes; choose mlp")
    if network == "slots" and config.action not in OUTPUTS:
        raise ConfigError(f"the slots network is for {', '.join(OUTPUTS)}, not for {config.action}")
    if algorithm == "dqn" and config.action not in ("admit_evict", "admit_count"):
        raise ConfigError(
            f"dqn needs one discrete choice per step (admit_evict, admit_count), not {config.action}"
        )
    defaults: dict[str, Any] = (
        {"hidden": [64, 64], **({"lstm": 64} if recurrent else {})}
        if network == "mlp"
        else {"row_dim": 32, "context_dim": 64, "attention": False}
    )
    for name, value in sizes.items():
        if name not in defaults:
            raise ConfigError(
                f"network {shown(network)} has no size {shown(name)}; valid: {', '.join(defaults)}"
            )
        wanted = {"hidden": "a list of positive whole numbers", "attention": "true or false"}
        numbers = value if name == "hidden" else [value]
        if not (type(value) is bool if name == "attention" else _all_positive(numbers)):
            expected = wanted.get(name, "a positive whole number")
            raise ConfigError(f"{name} must be {expected}, got {shown(value)}")
    sizes = {**defaults, **sizes}
    usual = config.usual_action()
    around = {} if usual is None else {"centre": usual[0].tolist(), "spread": usual[1].tolist()}
    if isinstance(config.action_space, gym.spaces.Box) and algorithm == "maskable_ppo":
        raise ConfigError(
            f"{config.action} has real numbers, which maskable_ppo does not support; use ppo or a2c"
        )
    if network == "mlp":
        arguments = {"net_arch": list(sizes["hidden"]), **around}
        if recurrent:
            arguments["lstm_hidden_size"] = sizes["lstm"]
            return ("MlpLstmPolicy" if usual is None else GaussianLstmPolicy), arguments
        return ("MlpPolicy" if usual is None else GaussianPolicy), arguments
    layout = {
        "queue_window": config.queue_window,
        "active_window": config.active_window,
        "action": config.action,
        "information": list(config.information),  # lists survive JSON
        "features": list(config.features),
    }
    policy = _SLOTS_POLICIES[algorithm] if usual is None else GaussianSlotsPolicy
    return policy, {"features_extractor_kwargs": {**layout, **sizes}, **around}


def _all_positive(numbers: Any) -> TypeGuard[list[int]]:
    return isinstance(numbers, list | tuple) and all(type(n) is int and n > 0 for n in numbers)
