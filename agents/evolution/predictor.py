"""A predictor of output lengths from what requests show on arrival, and one agent of predictor and weights.

It is fitted before the search: a network learns the logarithm of the output length from the logarithm of the prompt
length and from the feature columns of requests, by least squares, on services that nothing else uses. The candidates of
the search then run on requests with its predictions, the references without. The agent is one of ``kvgym/Priority-v0``:
the network answers for each request when it arrives, and the evolved policy schedules with the answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kvgym.agents.evolution.objective import best_value, improvement, mean, measure, objective
from kvgym.agents.evolution.services import Service, Services
from kvgym.agents.evolution.space import Value
from kvgym.agents.reinforce.export import as_agent, feature_places
from kvgym.agents.reinforce.network import Network, fit, standard
from kvgym.agents.runs.config import Part
from kvgym.agents.runs.limits import MAX_LAYERS, MAX_UNITS
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.revealed import HIGHEST
from kvgym.policies.policy import POLICIES
from kvgym.utils.checks import MAX_SEEDS
from kvgym.workloads.table import RequestTable

_SEEDS, _WEIGHTS = (0, 1), (0, 2)  # parts of the run's random numbers; generation g has part (g,)


class Prediction(Part):
    """How a predictor is fitted.

    Attributes:
        services: number of services that it is fitted to; a quarter as many decide whether it is used.
        hidden: units of the hidden layers, tanh.
        passes: over the requests.
    """

    services: int = Field(default=32, ge=4, le=MAX_SEEDS)
    hidden: tuple[Annotated[int, Field(ge=1, le=MAX_UNITS)], ...] = Field(
        default=(32,), min_length=1, max_length=MAX_LAYERS
    )
    passes: int = Field(default=30, ge=1, le=10_000)


@dataclass(frozen=True)
class Predictor:
    """A fitted network.

    Attributes:
        model: the network as an agent of ``kvgym/Priority-v0``.
    """

    model: NumpyModel

    @property
    def config(self) -> EnvConfig:
        """The environment that the network acts in."""
        return EnvConfig.of(**self.model.header.env_arguments)

    def lengths(self, table: RequestTable) -> NDArray[np.int64]:
        """Return the predicted output lengths of requests, tokens, int64 (n,): the agent's answers."""
        config = self.config
        places, inputs = inputs_of(config, table)
        observations = np.zeros((len(table), observation_size(config)), np.float32)
        observations[:, places] = inputs
        numbers = np.asarray(self.model.predict(observations)[0])[:, 0]
        logs = HIGHEST / 2 * (1.0 + numbers)
        return np.maximum(1, np.rint(2.0**logs)).astype(np.int64)

    def predicted(self, service: Service) -> Service:
        """Return a service with predictions of its requests."""
        return replace(
            service, table=replace(service.table, predicted_output_len=self.lengths(service.table))
        )

    def agent(
        self, policy: str, hyperparameters: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> NumpyModel:
        """Return the agent of the predictor and a policy with hyperparameters."""
        scheduler = written(policy, hyperparameters)
        header = self.model.header
        arguments = {**header.env_arguments, "scheduler": scheduler}
        return NumpyModel(
            replace(header, env_arguments=arguments, metadata=dict(metadata)), self.model.arrays
        )


def written(policy: str, hyperparameters: Mapping[str, Any]) -> str:
    """Return a policy with hyperparameters as a spec, such as ``ranked:prompt=0.3``."""

    def text(value: Any) -> str:
        return "/".join(map(repr, value)) if isinstance(value, list | tuple) else str(value)

    return ":".join(filter(None, (policy, ",".join(f"{k}={text(v)}" for k, v in hyperparameters.items()))))


def inputs_of(config: EnvConfig, table: RequestTable) -> tuple[list[int], NDArray[np.float64]]:
    """Return what the predictor reads of requests.

    Args:
        config: of the environment.
        table: the n requests.

    Returns:
        The positions of the inputs in an observation, and their values, float64 (n, number of inputs).
    """
    known = feature_places(config)
    places, columns = known["asked.prompt"], [np.minimum(np.log2(1.0 + table.prompt_len) / HIGHEST, 1.0)]
    if "columns" in known:
        places = places + known["columns"]
        columns += list((table.features / (1.0 + np.abs(table.features))).T)
    return places, np.stack(columns, 1)


def fit_predictor(
    services: Services,
    policy: str,
    hyperparameters: Mapping[str, Value],
    metric: str,
    how: Prediction,
    seed: int,
) -> tuple[Predictor | None, str]:
    """Fit a predictor, and decide whether the policy gains by it.

    Args:
        services: distribution of services; the environment of the agent is the typical one of the first family.
        policy: registered name of the policy that gets the predictions.
        hyperparameters: of the policy, at the start of the search.
        metric: that decides, on services which the fit does not use.
        how: how it is fitted.
        seed: of the run.

    Returns:
        The predictor, None if requests have predictions already, if services are clusters, or if the policy is not
        better with it; and a sentence for users.
    """
    words = np.random.SeedSequence(seed, spawn_key=_SEEDS).generate_state(
        how.services + -(-how.services // 4), np.uint64
    )
    drawn = [services.draw(int(word >> np.uint64(1))) for word in words]
    tables = [service.table for service in drawn[: how.services]]
    if any(service.table.predicted_output_len is not None for service in drawn):
        return None, "no predictor: the requests have predicted lengths already"
    if any(len(service.system.all_workers) > 1 for service in drawn):
        return None, "no predictor: it is for services of one worker"
    has_columns = all(table.feature_0 is not None for table in tables)
    config = EnvConfig.of(
        **{
            **services.families[0].environment(),
            "action": "priority",
            "scheduler": policy,
            "information": ("features",) if has_columns else (),
        }
    )
    x = np.concatenate([inputs_of(config, table)[1] for table in tables])
    logs = np.log2(np.concatenate([table.output_len for table in tables]))
    centre, spread = standard(x)
    usual = config.kind.usual(config)
    assert usual is not None
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_WEIGHTS))
    network = Network(x.shape[1], how.hidden, rng)
    fit(network, (x - centre) / spread, (logs - usual[0]) / usual[1], how.passes, rng)
    places = np.array(inputs_of(config, tables[0])[0])
    model = as_agent(config, network, places, centre, spread, algorithm="supervised", noise=1.0, metadata={})
    predictor = Predictor(model)
    return _judged(predictor, drawn[how.services :], policy, hyperparameters, metric)


def _judged(
    predictor: Predictor,
    services: Sequence[Service],
    policy: str,
    hyperparameters: Mapping[str, Value],
    metric: str,
) -> tuple[Predictor | None, str]:
    """Return the predictor, or None if the policy is not better with it, and a sentence for users."""
    needed = "predicted_length" in POLICIES[policy].info.needs
    logs, errors, gains = [], [], []
    for service in services:
        predicted = predictor.predicted(service)
        true, found = service.table.output_len, predicted.table.predicted_output_len
        assert found is not None
        logs.append(np.log2(true))
        errors.append(np.log2(true) - np.log2(found))
        if needed:
            continue
        without = measure(service, policy, hyperparameters, [metric])
        gains.append(
            objective(
                measure(predicted, policy, hyperparameters, [metric]), metric, best_value([without], metric)
            )
        )
    share = 1.0 - float(np.var(np.concatenate(errors)) / max(np.var(np.concatenate(logs)), 1e-12))
    text = f"the predictor explains {share:.0%} of the variance of log output lengths"
    if needed:
        return predictor, f"{text}; {policy} needs it"
    gain, text = improvement(mean(gains), metric), f"{text}; {metric} of {policy} with it: "
    if gain > 0.0 and math.isfinite(gain):
        return predictor, f"{text}{gain:+.1f} %"
    return None, f"{text}{gain:+.1f} %, so the agent is without it"
