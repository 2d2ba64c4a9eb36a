"""Populations of training runs."""

import json
import math
from pathlib import Path

import pytest

from helpers.training.evolution_runs import TINY
from kvgym.agents import train
from kvgym.agents.runs.config import make_training
from kvgym.agents.runs.population import Trained, make_members, median_of, train_population
from kvgym.errors import ConfigError


def config(**changes):
    return make_training({**TINY, "name": "tiny", "generations": 2, **changes})


def files(folder):
    """Return what a run's bits are in: its weights, and its curve without the time it took."""
    lines = [line.split(",") for line in (folder / "curve.csv").read_text().splitlines()]
    skipped = lines[0].index("cpu_seconds")
    curve = [[x for k, x in enumerate(line) if k != skipped] for line in lines]
    weights = [json.loads((folder / name).read_text())["weights"] for name in ("best.json", "final.json")]
    return curve, weights


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    folder = tmp_path_factory.mktemp("population")
    return folder, train_population(make_members([config()], 2, folder), folder, jobs=2)


def test_each_member_equals_the_run_alone(population, tmp_path):
    folder, found = population
    assert [(t.name, t.seed, t.folder) for t in found] == [
        ("tiny", 0, folder / "seed-0"),
        ("tiny", 1, folder / "seed-1"),
    ]
    for seed in (0, 1):
        alone = train(config(seed=seed), tmp_path / str(seed))
        assert files(tmp_path / str(seed)) == files(folder / f"seed-{seed}")
        assert found[seed].best == alone.best


def test_results_are_written(population):
    folder, found = population
    members = json.loads((folder / "population.json").read_text())["members"]
    assert members == [
        {"name": "tiny", "seed": t.seed, "folder": t.folder.name, "best": t.best} for t in found
    ]


def test_begun_members_continue(population):
    folder, found = population
    again = train_population(make_members([config()], 3, folder), folder, jobs=1)
    assert [t.best for t in again[:2]] == [t.best for t in found]
    assert again[2].seed == 2


def test_members_can_be_extended(tmp_path):
    train_population(make_members([config(generations=1)], 1, tmp_path), tmp_path)
    (longer,) = train_population(make_members([config()], 1, tmp_path), tmp_path)
    train(config(), tmp_path / "alone")
    assert files(longer.folder)[1] == files(tmp_path / "alone")[1]
    with pytest.raises(ConfigError):
        train_population(make_members([config(generations=1)], 1, tmp_path), tmp_path)


def test_a_folder_with_runs_of_another_configuration_is_an_error(population):
    folder, _ = population
    other = config(fixed={"overrun": "ignore"})
    with pytest.raises(ConfigError, match=r"seed-0 holds a run of another configuration: fixed is .*ignore"):
        train_population(make_members([other], 2, folder), folder)


def test_a_population_file_of_other_runs_is_an_error(tmp_path):
    (tmp_path / "population.json").write_text("mine")
    with pytest.raises(ConfigError, match=r"population\.json belongs to other runs; choose another folder"):
        train_population(make_members([config()], 1, tmp_path), tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("population.json", "mine")]


def test_several_configurations_have_folders_of_their_names(tmp_path):
    members = make_members([config(), config(name="other", seed=5)], 2, tmp_path)
    assert [m.folder.name for m in members] == ["tiny-0", "tiny-1", "other-5", "other-6"]
    assert {m.config.jobs for m in members} == {1}
    with pytest.raises(ConfigError, match="names must differ"):
        make_members([config(), config()], 1, tmp_path)


@pytest.mark.parametrize(
    ("values", "lower", "middle"),
    [
        ((3, 1, 2), False, 2),
        ((3, 1, 2), True, 2),
        ((1, 2, 3, 4), False, 3),
        ((1, 2, 3, 4), True, 2),
        ((7,), False, 7),
    ],
)
def test_the_median_member(values, lower, middle):
    members = [Trained("x", k, Path("x"), v, lower, ()) for k, v in enumerate(values)]
    found = median_of(members)
    assert found.best == middle
    assert not math.isnan(found.best)
