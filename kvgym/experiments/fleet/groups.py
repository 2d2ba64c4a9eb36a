"""Groups of workers in a scenario, and the fleet that groups with a range of workers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.batch_time.deployments.described import HardwareName
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError, shown
from kvgym.experiments.fleet.trouble import Duration, FailureSettings, UserSettings, parse_duration
from kvgym.simulator.fleet import STARTUP, Fleet, Pool
from kvgym.simulator.system import MAX_WORKERS
from kvgym.utils.reading import Description
from kvgym.utils.specs import parse_seconds

Engine: TypeAlias = str | dict[str, Any] | None
"""An engine by name or by its figures; None = not given."""

StartUp: TypeAlias = float | str | dict[str, float]
"""A start-up time: seconds, ``"prepared"`` or ``"cold"``, or ``{median: 240, sigma: 0.3}``."""

PREPARED, COLD = (65.0, 0.42), (71.0, 2.05)
"""Start-up times until the first token: seconds, and seconds per GB of weights over all GPUs of a worker.

Lines through three models (8B on one H100, 70B on four, 235B on eight) in the guide "Model loading" of Ray Serve LLM,
each within 4 % of the figures there: ``cold`` 104, 360 and 995 s, ``prepared``, with weights and compiled code at hand,
71, 126 and 257 s.
"""


def startup_of(given: StartUp | None, hardware: Hardware | None) -> tuple[float, float]:
    """Return the median start-up time of a worker and its spread, see :class:`~kvgym.simulator.fleet.Pool`.

    Args:
        given: the description; None = prepared where the model is known, else 60 s.
        hardware: the worker's hardware, None if it has none.

    Raises:
        ConfigError: the description is wrong, or needs a model that is not known.
    """
    expected = "seconds, prepared, cold, or a median and a sigma"
    if isinstance(given, dict):
        if not {"median"} <= given.keys() <= {"median", "sigma"}:
            raise ConfigError(f"startup = {shown(given)}; expected {expected}")
        return float(given["median"]), float(given.get("sigma", 0.0))
    model = getattr(hardware, "model", None)
    size = getattr(model, "weight_bytes", None)
    if given in (None, "prepared", "cold"):
        if size is None and given is None:
            return STARTUP, 0.0
        if size is None:
            raise ConfigError(f"startup = {given} needs hardware with a known model; give seconds")
        fixed, by_size = COLD if given == "cold" else PREPARED
        return fixed + by_size * size / 1e9, 0.0
    assert given is not None
    try:
        return parse_seconds(given, "startup"), 0.0
    except ConfigError:
        raise ConfigError(f"startup = {shown(given)}; expected {expected}") from None


_IF_GIVEN = ("switch", "failures", "users", "on_loss", "retry_delay", "keep_tokens")
"""Fields of :class:`FleetSettings` that are written only if they are given."""


class FleetSettings(Description):
    """What the pools of a fleet share.

    Attributes:
        control: seconds between questions to the autoscaler; None = as it has them.
        budget: most GPUs of starting, ready and draining workers.
        startup: start-up time of workers: seconds, ``"prepared"`` (weights and compiled code at hand), ``"cold"``, or
            ``{median: 240, sigma: 0.3}``; None = prepared where the model is known, else 60 s.
        penalty: cost of a request that missed a target, in GPU-seconds.
        switch: seconds that a worker needs to change its role when it has drained, between groups of equal hardware;
            None = a stop and a start.
        failures: how workers fail: ``{mtbf: 500h, repair: 10min}``.
        users: how users behave: ``{patience: 30s, again: {probability: 0.5, delay: 5s, most: 2}}``.
        on_loss: what becomes of a request that is lost with its worker: ``"retry"`` or ``"fail"``.
        retry_delay: time after which it arrives again.
        keep_tokens: whether it continues after the tokens that its user has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    control: float | str | None = None
    budget: int | None = None
    startup: StartUp | None = None
    penalty: float = 20.0
    switch: float | str | None = None
    failures: FailureSettings | None = None
    users: UserSettings | None = None
    on_loss: str = "retry"
    retry_delay: Duration = 0.0
    keep_tokens: bool = False

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit defaults of roles that change, failures and users, so that files and hashes without them stay."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name not in _IF_GIVEN or getattr(self, name) != fields[name].default
        }

    @property
    def troubled(self) -> bool:
        """Whether workers fail or users give up, which makes any cluster a fleet."""
        return self.failures is not None or self.users is not None

    def fleet(self, pools: tuple[Pool, ...]) -> Fleet:
        """Return the fleet of some pools."""
        control = None if self.control is None else parse_seconds(self.control, "control")
        switch = None if self.switch is None else parse_seconds(self.switch, "switch")
        return Fleet(
            pools, budget=self.budget, control=control, penalty=self.penalty, switch=switch, on_loss=self.on_loss,
            failures=(self.failures or FailureSettings()).failures(), users=(self.users or UserSettings()).users(),
            retry_delay=parse_duration(self.retry_delay, "retry_delay"), keep_tokens=self.keep_tokens,
        )  # fmt: skip


class Served(NamedTuple):
    """What a group of equal workers has; see the fields of :class:`Scenario`."""

    hardware: HardwareName | None
    engine: Engine
    batch_time: Mapping[str, Any]

    @property
    def loaded(self) -> Hardware | None:
        """The hardware of its batch times; None if it has none, or a batch-time model replaces it."""
        if self.hardware is None or "kind" in self.batch_time:
            return None
        return load_hardware(self.hardware)


_POOL = ("most", "least", "startup", "price", "min_uptime", "drain", "drain_limit")
"""Fields of a group of workers that make it a pool of a fleet."""


class WorkerGroup(Description):
    """Equal workers of a cluster; fields that are not given are as in the scenario.

    Attributes:
        count: number of workers.
        role: ``"mixed"``, ``"prefill"`` or ``"decode"``.
        hardware: as in :class:`Scenario`.
        engine: as in :class:`Scenario`.
        batch_time: as in :class:`Scenario`.
        kv_capacity: KV memory of each, tokens.
        most: makes the group a pool of a fleet with this many places; ``count`` workers are ready at the start.
        least: fewest workers that an autoscaler may want.
        startup: as in :class:`FleetSettings`.
        price: cost of a GPU-second, relative to others.
        min_uptime: seconds that a worker must have been ready before it may drain.
        drain: ``"finish"`` or ``"requeue"``, see :class:`~kvgym.simulator.fleet.Pool`.
        drain_limit: time after which a draining worker is stopped, and what it has is lost; None = never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=1, ge=0, le=MAX_WORKERS)
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    hardware: HardwareName | None = None
    engine: Engine = None
    batch_time: dict[str, Any] = Field(default_factory=dict)
    kv_capacity: int | None = Field(default=None, ge=2)
    most: int | None = Field(default=None, ge=1, le=MAX_WORKERS)
    least: int = Field(default=1, ge=0)
    startup: StartUp | None = None
    price: float = 1.0
    min_uptime: float = 0.0
    drain: str = "finish"
    drain_limit: Duration | None = None

    @model_validator(mode="after")
    def _has_places(self) -> WorkerGroup:
        """Reject a group without workers, unless it is a pool."""
        if self.most is None and self.count < 1:
            raise ValueError("count = 0; expected at least 1, or a pool with most")
        return self

    @model_serializer(mode="wrap")
    def _without_pool(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the fields of a pool from a group that is none, so that files and hashes of static clusters stay."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name not in _POOL or getattr(self, name) != fields[name].default
        }

    @property
    def places(self) -> int:
        """Places of the group: its workers, or the most workers of a pool."""
        return self.count if self.most is None else self.most

    def pool(self, fleet: FleetSettings, hardware: Hardware | None) -> Pool:
        """Return the pool of a fleet that the group is; without ``most`` it has its workers all the time."""
        least = self.count if self.most is None else self.least
        median, sigma = startup_of(fleet.startup if self.startup is None else self.startup, hardware)
        return Pool(
            self.count, most=self.places, least=least, startup=median, sigma=sigma, price=self.price,
            gpus=1 if hardware is None else hardware.num_gpus, min_uptime=self.min_uptime, drain=self.drain,
            drain_limit=None if self.drain_limit is None else parse_duration(self.drain_limit, "drain_limit"),
        )  # fmt: skip
