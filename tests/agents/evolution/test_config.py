"""Configurations of evolution: reading, overrides and errors."""

import pytest
import yaml

from helpers.training.evolution_runs import SERVICES, TINY
from kvgym.agents.evolution.config import EvolutionConfig
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.runs.config import load_training, make_training
from kvgym.errors import ConfigError


def test_from_a_file_with_overrides(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in TINY.items() if k != "name"}))
    changes = [
        "population=8",
        "held_out.services=5",
        "weights.protection.start=0.25",
        "hyperparameters.sigma=1e-1",
    ]
    config = load_training(path, changes, length=9)
    assert isinstance(config, EvolutionConfig)
    assert (config.name, config.population, config.held_out.services, config.length) == ("mine", 8, 5, 9)
    assert config.learned()[1] == {"protection": 0.25}
    assert config.hyperparameters == {"sigma": 0.1}
    assert config.held_out.seeds == range(1_000_000, 1_000_005)
    again = make_training(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config


def test_overrides_inside_lists(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**TINY, "weights": ["protection"]}))
    config = load_training(
        path, ["services.families.0.load=1.25", "weights={protection: {step: 0.1, low: 0, high: 0.5}}"]
    )
    assert config.services.families[0].load == 1.25
    for wrong, message in (
        ("services.families.1.load=1", "services.families is a list; expected a number below 1"),
        ("weights.protection.start=1", "weights is a list"),
        ("population.size=3", "population is 4 and has nothing inside"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_training(path, [wrong])


def test_weights_by_name_and_all(tiny, weighted):
    some = tiny(policy="weighted", fixed={}, weights=["bias"])
    assert [w.name for w in some.learned()[0]] == ["bias"]
    every = tiny(policy="weighted", fixed={"count": 1, "bias": [0.5]}, weights={"margin": {}})
    assert [w.name for w in every.learned()[0]] == ["margin"]
    with pytest.raises(ConfigError, match="the length of bias"):
        tiny(policy="weighted", fixed={"count": 3}, weights={"margin": {}})


def test_a_file_to_start_from(tiny, weighted, tmp_path):
    path = tmp_path / "start.json"
    EvolvedModel("weighted", {}, {"margin": 0.5, "bias": (1.0, 2.0)}).save(path)
    config = tiny(policy="weighted", fixed={}, weights={"bias": {"start": [7, 7]}}, start=str(path))
    assert config.read_start() == {"bias": (1.0, 2.0)}
    assert tiny().read_start() == {}
    for changes, message in (
        ({"policy": "mc_sf"}, "weights of policy 'weighted', not of policy 'mc_sf'"),
        (
            {"policy": "weighted", "fixed": {"count": 3, "margin": 0.1}, "weights": {}},
            "either fixed or learned",
        ),
        ({"policy": "weighted", "fixed": {"count": 3}, "weights": {}}, "bias"),
    ):
        with pytest.raises(ConfigError, match=message):
            tiny(start=str(path), **changes).read_start()


def family(**changes):
    return {"families": [{**SERVICES["families"][0], **changes}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "cma"}, "unknown algorithm 'cma'. Did you mean"),
        ({"generation": 3}, "generation: there is no such field; did you mean 'generations'"),
        ({"held_out": {"seeds": 3}}, "held_out.seeds: .*valid there: services, first_seed"),
        (
            {"services": family(burstiness=2)},
            "services.families.0.burstiness: .*valid there: name, weight",
        ),
        ({"weights": {"protection": {"begin": 1}}}, "weights.protection.begin: .*valid there: start"),
        ({"services": family(workload={"preset": "lmsis"})}, "training 'tiny': services.families.0: .*lmsis"),
        ({"services": {"families": []}}, "services.families"),
        ({"metric": "batch_size"}, "batch_size has no better or worse"),
        ({"metric": "happiness"}, "unknown metric"),
        ({"metric": "goodput"}, "training 'tiny': goodput counts requests within their own SLOs"),
        ({"policy": "mc_fs"}, "training 'tiny': unknown policy 'mc_fs'"),
        ({"fixed": {"overun": "extend"}}, "training 'tiny': .*overun"),
        ({"reference": ["fcsf"]}, "training 'tiny': unknown policy 'fcsf'"),
        ({"reference": []}, "reference"),
        ({"weights": {}}, "training 'tiny': policy 'mc_sf' declares no weights"),
        ({"hyperparameters": {"lr": 1.0}}, "training 'tiny': cma_es has no hyperparameter 'lr'"),
        ({"algorithm": "openai_es", "population": 7}, "expected an even number"),
        ({"population": 3}, "population: .*greater than or equal to 4"),
    ],
)
def test_mistakes(tiny, changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)
