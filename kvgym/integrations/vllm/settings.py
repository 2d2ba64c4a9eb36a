"""Settings of the integration: the policy, the batch times that it sees, and what requests carry for it."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kvgym.batch_time import BatchTimeModel, load_hardware, make_batch_time
from kvgym.errors import ConfigError, shown, some
from kvgym.policies.policy import Policy, make_policy
from kvgym.utils.reading import mapping, parse_json, validate_fields
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling
from kvgym.workloads.classes import ClassStatistics

KEY = "kvgym"
"""Name of the settings in vLLM's ``--additional-config``."""

VARIABLE = "KVGYM_VLLM"
"""Environment variable with the settings as JSON, used where ``--additional-config`` has none."""

PREDICTIONS = frozenset({"predicted_length", "length_interval"})
"""Needs of policies that are predictions."""

_PREDICT = "set predictions to max_tokens, module:function, or requests (with trust_requests)"
_CLASSES = "set classes, and trust_requests if there is more than one"
_NEVER = dict.fromkeys(
    ("length_distribution", "renewed_length", "client", "features", "session"),
    "no request of vLLM carries it; choose another policy",
) | {"true_length": "no server knows it; choose another policy"}
REMEDIES = {
    "predicted_length": _PREDICT,
    "length_interval": _PREDICT,
    "class": _CLASSES,
    "class_rates": _CLASSES,
    "slo": "set ttft_slo or tbt_slo",
    **_NEVER,
}
"""What to do about each need of policies that the settings do not fulfil."""

Predictor = Callable[[Any], Any]
"""Maps a request of vLLM to its predicted output tokens, to (low, high), (low, expected, high), or None = unknown."""


class RequestClass(BaseModel):
    """Rates and mean lengths of a class of requests, see :class:`~kvgym.workloads.classes.ClassStatistics`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    rate: float
    prompt_len: float
    output_len: float


class Settings(BaseModel):
    """What ``--additional-config '{"kvgym": {…}}'`` may hold.

    Attributes:
        policy: a policy as on the command line, e.g. ``"mc_sf:protection=0.1"``, or the path of a trained agent.
        hyperparameters: of the policy, in addition to those in its name.
        hardware: hardware with the batch times that the policy sees: a name, a file, or a roofline as in
            ``"kernels:model=llama3-8b,gpu=h100-80gb"``.
        engine: engine of the hardware's batch times; None = its default.
        batch_time: in place of hardware, the specification of a batch-time model, e.g. ``{"kind": "affine", …}``.
        predictions: where predicted output lengths come from. ``"requests"``: ``predicted_len``, or ``predicted_low``
            and ``predicted_high``, in the ``extra_args`` of each request. ``"max_tokens"``: the request's limit. Or a
            function ``"module:name"``, see :data:`Predictor`. A request without a prediction has its ``max_tokens``
            where the policy needs one.
        upper_bounds: whether no prediction is below the length that a request turns out to have.
        classes: classes of requests; a request names its class as ``class`` in ``extra_args``, else it has the first.
        ttft_slo: seconds to the first token for requests without a ``ttft_slo`` in ``extra_args``; None = none.
        tbt_slo: the same between tokens, ``tbt_slo``.
        trust_requests: whether the claims of requests count: all of ``extra_args``, and their priorities. Where users
            send requests, one that claims a short output or a tight objective passes all others.
        patience: seconds for which the policy may start nothing while requests wait; then vLLM's own rule serves these.
        seed: seed of the policy.
    """

    model_config = ConfigDict(extra="forbid")

    policy: str
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    hardware: str | None = None
    engine: str | dict[str, Any] | None = None
    batch_time: dict[str, Any] | None = None
    predictions: Literal["requests", "max_tokens"] | str | None = None
    upper_bounds: bool = False
    classes: list[RequestClass] = Field(default_factory=list)
    ttft_slo: float | None = Field(default=None, gt=0)
    tbt_slo: float | None = Field(default=None, gt=0)
    trust_requests: bool = False
    patience: float = Field(default=10.0, gt=0, le=3600)
    seed: int = Field(default=0, ge=0)

    def make_batch_time(self) -> BatchTimeModel:
        """Return the batch-time model that the policy sees.

        Raises:
            ConfigError: there is none, or there are two.
        """
        if (self.hardware is None) == (self.batch_time is None):
            raise ConfigError(
                "policies see batch times, of either hardware or batch_time; set one of them in the kvgym settings of "
                "vLLM, e.g. hardware = kernels:model=llama3-8b,gpu=h100-80gb"
            )
        if self.batch_time is not None:
            return make_batch_time(self.batch_time)
        return load_hardware(str(self.hardware)).batch_time(engine=self.engine)

    def make_predictor(self) -> Predictor | None:
        """Return the function that predicts output lengths; None = there are no predictions.

        Raises:
            ConfigError: there is no such function.
        """
        if self.predictions in (None, "requests", "max_tokens"):
            return {None: None, "requests": carried_prediction, "max_tokens": limit_as_prediction}[
                self.predictions
            ]
        module, _, name = str(self.predictions).partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except Exception as error:  # user code may raise any exception when it is imported
            raise ConfigError(
                f"predictions = {shown(self.predictions)}: {type(error).__name__}: {shown(str(error))}; expected "
                "requests, max_tokens, or module:function"
            ) from error
        if not callable(found):
            raise ConfigError(
                f"predictions = {shown(self.predictions)}; expected a function, got {shown(found)}"
            )
        return found  # type: ignore[no-any-return]

    def class_statistics(self) -> tuple[ClassStatistics, ...]:
        """Return the classes of requests.

        Raises:
            WorkloadError: a rate or a length is not positive.
        """
        return tuple(ClassStatistics(**c.model_dump()) for c in self.classes)

    def seed_sequence(self) -> np.random.SeedSequence:
        """Return the seed of the policy, the same as in :func:`kvgym.simulate`."""
        return stream_seed(self.seed, "policy")


def carried_prediction(request: Any) -> Any:
    """Return the prediction in the ``extra_args`` of a request of vLLM, None if it has none."""
    carried = extra_args(request)
    expected = carried.get("predicted_len")
    if "predicted_low" in carried and "predicted_high" in carried:
        low, high = carried["predicted_low"], carried["predicted_high"]
        return (low, high) if expected is None else (low, expected, high)
    return expected


def limit_as_prediction(request: Any) -> Any:
    """Return the limit of a request of vLLM as its expected and its largest output."""
    return 1, request.max_tokens, request.max_tokens


def extra_args(request: Any) -> Mapping[str, Any]:
    """Return the ``extra_args`` of a request of vLLM (``vllm_xargs`` of its API)."""
    carried = getattr(request.sampling_params, "extra_args", None)
    return carried if isinstance(carried, Mapping) else {}


def read_settings(additional: Any) -> Settings:
    """Return the settings in vLLM's ``additional_config``, or else in the environment.

    Raises:
        ConfigError: there are none, or a field is wrong.
    """
    given = additional.get(KEY) if isinstance(additional, Mapping) else None
    where = f"{KEY} in additional_config"
    if given is None and VARIABLE in os.environ:
        given, where = parse_json(os.environ[VARIABLE], VARIABLE), VARIABLE
    if given is None:
        example = json.dumps({KEY: {"policy": "fcfs", "hardware": "kernels:model=llama3-8b,gpu=h100-80gb"}})
        raise ConfigError(
            f"kvgym's scheduler has no settings; start vLLM with --additional-config '{example}'"
        )
    return validate_fields(Settings, mapping(given, where), where)


def choose_policy(settings: Settings) -> tuple[Policy, frozenset[str]]:
    """Return the policy, and what it may observe.

    Raises:
        ConfigError: the policy needs what the settings do not provide.
    """
    if "spec" in settings.hyperparameters:  # the name of an argument of make_policy
        raise ConfigError(f"policy {shown(settings.policy)} has no hyperparameter spec; remove it")
    policy = make_policy(settings.policy, **settings.hyperparameters)
    if settings.predictions == "requests" and not settings.trust_requests:
        raise ConfigError(
            "predictions = requests counts what requests claim, and trust_requests is false; set it to true if all "
            "senders of requests are yours, or set predictions to max_tokens or module:function"
        )
    carried = {"slo"} if settings.ttft_slo or settings.tbt_slo else set[str]()
    if settings.predictions is not None:
        carried |= PREDICTIONS
    if settings.classes:
        carried |= {"class_rates"}
        if settings.trust_requests or len(settings.classes) == 1:
            carried |= {"class"}
    missing = sorted(policy.info.needs - carried)
    if missing:
        decisive = [need for need in missing if need in _NEVER] or missing
        how = dict.fromkeys(REMEDIES[need] for need in decisive)
        raise ConfigError(
            f"policy {shown(policy.info.name)} needs {', '.join(missing)}, which vLLM does not know; {'; '.join(how)}"
        )
    return policy, policy.info.needs | (policy.info.uses & carried)


class RowReader:
    """Reads from requests of vLLM what policies observe of them.

    Args:
        settings: the settings.
        required: what the policy needs.
        needs: what it may observe, which may be more.
        max_len: longest prompt with its output, tokens.
        priorities: whether the priorities of requests count.
        wrong: called with the name of a field, the request and the error if a value is wrong; it counts as missing.
    """

    def __init__(
        self,
        settings: Settings,
        required: frozenset[str],
        needs: frozenset[str],
        max_len: int,
        priorities: bool,
        wrong: Callable[[str, Any, Exception], None],
    ) -> None:
        self._settings, self._required, self._max_len = settings, required, max_len
        self._priorities, self._wrong = priorities, wrong
        self._predict = settings.make_predictor() if needs & PREDICTIONS else None
        self._classes = {c.name: k for k, c in enumerate(settings.classes)}
        self._fields: dict[str, Callable[[Any, Any], dict[str, Any]]] = {}
        if self._predict is not None:
            self._fields["prediction"] = self._prediction
        if "class" in needs:
            self._fields["class"] = self._class
        if "slo" in needs:
            self._fields |= {name: functools.partial(self._slo, name) for name in ("ttft_slo", "tbt_slo")}

    def limit(self, request: Any) -> int:
        """Return the most output tokens of a request."""
        return max(1, min(int(request.max_tokens), self._max_len - int(request.num_prompt_tokens)))

    def row(self, request: Any) -> dict[str, Any]:
        """Return the fields of a request by name, its arrival excluded."""
        priority = -request.priority if self._priorities else 0
        found: dict[str, Any] = {
            "prompt_len": request.num_prompt_tokens,
            "priority": min(max(priority, -(2**31)), 2**31 - 1),
        }
        for field, fields_of in self._fields.items():
            try:
                found |= fields_of(request, self._value(request, field))
            except Exception as error:  # the value is users' input, and predictions may be users' code
                self._wrong(field, request, error)
                found |= fields_of(request, None)
        return found

    def _value(self, request: Any, field: str) -> Any:
        """Return what a request carries in a field, None if it carries nothing that counts."""
        if field == "prediction" and self._predict is not None:
            with calling(self._predict, "predictions", "it"):
                return self._predict(request)
        return extra_args(request).get(field) if self._settings.trust_requests else None

    def _class(self, request: Any, name: Any) -> dict[str, Any]:
        if name is None:
            return {"class_id": 0}
        if not isinstance(name, str) or name not in self._classes:
            raise ConfigError(f"class {shown(name)} of a request; valid: {some(self._classes)}")
        return {"class_id": self._classes[name]}

    def _slo(self, field: str, request: Any, seconds: Any) -> dict[str, Any]:
        if seconds is None:
            seconds = getattr(self._settings, field)
        return {field: math.inf if seconds is None else _positive(seconds, field)}

    def _prediction(self, request: Any, made: Any) -> dict[str, Any]:
        limit = self.limit(request)
        if made is None and not self._required & PREDICTIONS:
            return {}
        several = (
            made if isinstance(made, tuple | list) else (made,) if made is not None else (1, limit, limit)
        )
        if not 1 <= len(several) <= 3:
            raise ConfigError(f"prediction {shown(made)} of a request; expected up to three numbers")
        values = [_positive(value, "prediction") for value in several]
        low, high = values[0], values[-1]
        expected = values[1] if len(values) == 3 else (low + high) / 2
        low, expected, high = (math.ceil(min(max(1, x), limit)) for x in (low, expected, high))
        found = {"predicted_len": expected}
        if len(values) > 1 or "length_interval" in self._required:
            found |= {"predicted_low": low, "predicted_high": max(low, high)}
        return found


def _positive(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise ConfigError(f"{what} {shown(value)} of a request; expected a number > 0")
    return number
