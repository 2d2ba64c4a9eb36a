"""Configurations of training with Stable-Baselines3."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from kvgym.agents.runs.config import Part, number
from kvgym.agents.runs.evaluation import EvaluatedConfig
from kvgym.agents.runs.limits import MAX_COUNT, MAX_LAYERS, MAX_STEPS, MAX_UNITS, check_ranges
from kvgym.agents.trained.header import OUTPUTS
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.errors import ConfigError, shown

Algorithm = Literal["maskable_ppo", "recurrent_ppo", "ppo", "a2c", "dqn"]


class NetworkConfig(Part):
    """The network.

    Attributes:
        kind: ``"mlp"``, or ``"slots"``, the permutation-aware network in :mod:`kvgym.agents.sb3.networks`.
        hidden: units of the hidden layers of an mlp.
        lstm: units of the LSTM before them, with ``recurrent_ppo``.
        row_dim: units per row of a slots network.
        context_dim: units of its context.
        attention: let the rows of a slots network attend to each other.
    """

    kind: Literal["mlp", "slots"] = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    lstm: int = Field(default=64, ge=1, le=MAX_UNITS)
    row_dim: int = Field(default=32, ge=1, le=MAX_UNITS)
    context_dim: int = Field(default=64, ge=1, le=MAX_UNITS)
    attention: bool = False

    @field_validator("hidden")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not 1 <= len(value) <= MAX_LAYERS or not all(1 <= units <= MAX_UNITS for units in value):
            raise ValueError(
                f"expected 1 to {MAX_LAYERS} numbers of units from 1 to {MAX_UNITS:,}, got {shown(list(value))}"
            )
        return value

    def sizes(self, algorithm: Algorithm) -> dict[str, Any]:
        """Return the sizes for this kind of network with an algorithm."""
        if self.kind == "mlp":
            lstm = {"lstm": self.lstm} if algorithm == "recurrent_ppo" else {}
            return {"hidden": list(self.hidden), **lstm}
        return {"row_dim": self.row_dim, "context_dim": self.context_dim, "attention": self.attention}


class WarmStart(Part):
    """Start of training from a clone of a scheduler instead of random weights.

    Attributes:
        policy: the scheduler, e.g. ``"mc_sf"``.
        steps: environment steps of demonstrations.
        epochs: passes over them.
    """

    policy: str
    steps: int = Field(default=50_000, ge=1, le=MAX_COUNT)
    epochs: int = Field(default=5, ge=1, le=10_000)


class TrainConfig(EvaluatedConfig):
    """A repeatable training run with Stable-Baselines3: JSON-able and frozen; unknown keys are errors.

    Attributes:
        algorithm: ``"maskable_ppo"``, ``"recurrent_ppo"``, ``"ppo"``, ``"a2c"`` or ``"dqn"``.
        num_envs: number of environments.
        variants: changes of ``env`` (workloads, rates, hardware); the environments are divided equally among them, so
            that one agent trains on all.
        curriculum: pairs of progress (0 to 1) and range of ``load``, interpolated linearly between pairs. It replaces
            ``load`` in ``env``.
        network: the network.
        hyperparameters: of the Stable-Baselines3 algorithm, e.g. ``n_steps``. ``learning_rate: lin_3e-4`` falls
            linearly to 0.
        normalize_reward: divide rewards by a running estimate of the standard deviation of returns.
        normalize_observations: standardise observations by running means and standard deviations, which become part of
            the exported agent; for an mlp without a warm start.
        discount_per_second: weight of a reward one second later, instead of the hyperparameter ``gamma`` per step; not
            for dqn.
        warm_start: start of training; None = random weights.
        total_steps: environment steps.
        threads: of PyTorch; equal numbers of threads give equal results.
        device: of PyTorch.
    """

    LENGTH: ClassVar[str] = "total_steps"
    UNIT: ClassVar[str] = "step"

    algorithm: Algorithm = "maskable_ppo"
    num_envs: int = Field(default=64, ge=1, le=MAX_COUNT)
    variants: tuple[dict[str, Any], ...] = ()
    curriculum: tuple[tuple[float, tuple[float, float]], ...] = ()
    network: NetworkConfig = NetworkConfig()
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    normalize_reward: bool = True
    normalize_observations: bool = False
    discount_per_second: float | None = Field(default=None, gt=0, le=1)
    warm_start: WarmStart | None = None
    total_steps: int = Field(default=1_000_000, ge=1, le=MAX_STEPS)
    threads: int = Field(default=1, ge=1, le=1024)
    device: str = "cpu"

    @field_validator("hyperparameters")
    @classmethod
    def _numbers(cls, value: dict[str, Any]) -> dict[str, Any]:
        return {name: number(x) for name, x in value.items()}

    @field_validator("curriculum")
    @classmethod
    def _in_order(
        cls, value: tuple[tuple[float, tuple[float, float]], ...]
    ) -> tuple[tuple[float, tuple[float, float]], ...]:
        places = [place for place, _ in value]
        if any(not 0 <= place <= 1 for place in places) or places != sorted(places):
            raise ValueError(f"progress must go up within [0, 1], got {places}")
        if any(not 0 < low <= high for _, (low, high) in value):
            raise ValueError("each range of load needs 0 < low ≤ high")
        return value

    def check(self) -> TrainConfig:
        """Check everything beyond types, and return the configuration.

        Raises:
            ConfigError: a value is wrong; the message has the valid ones.
        """
        check_ranges(self.hyperparameters, f"training {self.name!r}")
        kinds = {config.action for config in self.env_configs()}
        if len(kinds) > 1:
            raise ConfigError(f"training {shown(self.name)}: variants cannot change the kind of action")
        for config in self.env_configs():
            if config.observation != "flat":
                raise ConfigError(
                    f"training {shown(self.name)}: observation must be 'flat', got {shown(config.observation)}"
                )
        self.check_evaluation(self.env_configs()[0])
        action = self.env_configs()[0].action
        if action not in OUTPUTS:
            raise ConfigError(
                f"training {shown(self.name)}: agents are trained for {', '.join(OUTPUTS)}, not for {action}"
            )
        real = [name for name, outputs in OUTPUTS.items() if outputs.real]
        if self.algorithm == "dqn" and action not in ("admit_count", "admit_evict"):
            raise ConfigError(
                f"training {shown(self.name)}: dqn needs a Discrete action (admit_count or admit_evict), got {action}; "
                f"ppo and a2c take any, recurrent_ppo too, maskable_ppo all but {' and '.join(real)}"
            )
        if self.algorithm == "maskable_ppo" and action in real:
            raise ConfigError(
                f"training {shown(self.name)}: maskable_ppo needs discrete actions, and {action} has real "
                "numbers; use ppo or a2c"
            )
        if self.num_envs < len(self.variants):
            raise ConfigError(
                f"training {shown(self.name)}: num_envs = {self.num_envs} is less than {len(self.variants)} variants"
            )
        if self.algorithm == "dqn" and self.discount_per_second is not None:
            raise ConfigError(
                f"training {shown(self.name)}: dqn has no discount_per_second; use maskable_ppo, ppo or a2c"
            )
        warm = self.warm_start
        if self.normalize_observations and (self.network.kind != "mlp" or warm is not None):
            raise ConfigError(
                f"training {shown(self.name)}: normalize_observations needs network.kind mlp and no policy to clone"
            )
        if warm is not None and self.algorithm in ("dqn", "recurrent_ppo"):
            raise ConfigError(
                f"training {shown(self.name)}: {self.algorithm} has no warm_start; use maskable_ppo, ppo or a2c"
            )
        if self.algorithm == "recurrent_ppo" and self.network.kind != "mlp":
            raise ConfigError(
                f"training {shown(self.name)}: recurrent_ppo has an LSTM before an mlp; set network.kind=mlp"
            )
        return self

    def env_configs(self) -> tuple[EnvConfig, ...]:
        """Return the configuration of the environments of each variant."""
        return tuple(self.env_config(**change) for change in self.variants or ({},))

    def load_at(self, progress: float) -> tuple[float, float] | None:
        """Return the range of load at a progress in [0, 1]; None without a curriculum."""
        if not self.curriculum:
            return None
        before = after = self.curriculum[0]
        for stage in self.curriculum:
            before, after = (stage, stage) if stage[0] <= progress else (before, stage)
            if stage[0] > progress:
                break
        share = 0.0 if after[0] == before[0] else (progress - before[0]) / (after[0] - before[0])
        low, high = (a + share * (b - a) for a, b in zip(before[1], after[1], strict=True))
        return low, high
