"""Cells of the tables: a scenario, what is measured, and who plays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from compare_agents.bench import Bench
from compare_agents.entrants import Entrant
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario

HELD_OUT = 2_000_000
"""The first held-out seed: training draws none from here on, selection uses those from 1,000,000."""

FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Seeds:
    """How many seeds there are of each kind.

    Attributes:
        held_out: what is reported.
        tuning: on which hyperparameters and knobs are chosen.
    """

    held_out: int = 30
    tuning: int = 5

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: there would be no seed, or the two would overlap.
        """
        most = HELD_OUT - FIRST_TUNING_SEED
        if self.held_out < 1 or not 1 <= self.tuning <= most:
            raise ConfigError(
                f"{self.held_out} seeds and {self.tuning} tuning seeds; expected at least one of each, and at most "
                f"{most:,} to tune on"
            )

    def bench(self, scenario: Scenario, metric: str) -> Bench:
        """Return the bench of a scenario; a replayed trace has one seed, its arrivals being what they are."""
        count = 1 if scenario.make_workload().spec.replays else self.held_out
        return Bench(
            scenario,
            metric,
            tuple(range(HELD_OUT, HELD_OUT + count)),
            tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning)),
        )


@dataclass(frozen=True)
class Cell:
    """A row of the tables.

    Attributes:
        task: name of the task.
        row: what tells it from other cells of the task, for its row: a text by column.
        bench: scenario, metric and seeds.
        entrants: who plays.
    """

    task: str
    row: dict[str, str]
    bench: Bench
    entrants: tuple[Entrant, ...]

    def __post_init__(self) -> None:
        """Check that labels tell the entrants apart.

        Raises:
            ConfigError: two have the same.
        """
        labels = [entrant.label for entrant in self.entrants]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ConfigError(
                f"cell {self.name}: {shown(min(twice))} is there twice; labels tell entrants apart"
            )

    @property
    def name(self) -> str:
        """The task and the row."""
        return f"{self.task}: {', '.join(self.row.values())}"

    def run_keys(self) -> list[str]:
        """Return what identifies the run of each entrant: equal for equal resolved configurations."""
        return [key_of(self.bench, entrant) for entrant in self.entrants]


def key_of(bench: Bench, entrant: Entrant) -> str:
    """Return a hash of all that the outcome of an entrant depends on."""
    content = {
        "scenario": bench.scenario.resolved().model_dump(
            mode="json", exclude={"name", "summary", "policies", "seeds"}
        ),
        "metric": bench.metric,
        "seeds": bench.seeds,
        "tuning_seeds": bench.tuning_seeds,
        "entrant": entrant.description(),
    }
    text = json.dumps(content, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
