"""Contests: a benchmark and its contestants, a row of the tables."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from compare_agents.benchmark import Benchmark
from compare_agents.contestants import Contestant
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario

HELD_OUT = 2_000_000
"""First held-out seed. Training uses seeds below it; selection uses those from 1,000,000."""

FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Seeds:
    """Numbers of seeds.

    Attributes:
        held_out: for reported values.
        tuning: to choose hyperparameters and knobs.
    """

    held_out: int = 30
    tuning: int = 5

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: a number is below 1, or the two ranges overlap.
        """
        most = HELD_OUT - FIRST_TUNING_SEED
        if self.held_out < 1 or not 1 <= self.tuning <= most:
            raise ConfigError(
                f"{self.held_out} seeds and {self.tuning} tuning seeds; expected at least one of each, and at most "
                f"{most:,} tuning seeds"
            )

    def benchmark(self, scenario: Scenario, metric: str) -> Benchmark:
        """Return the benchmark of a scenario; a replayed trace has fixed arrivals and one seed."""
        count = 1 if scenario.make_workload().spec.replays else self.held_out
        return Benchmark(
            scenario,
            metric,
            tuple(range(HELD_OUT, HELD_OUT + count)),
            tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning)),
        )


@dataclass(frozen=True)
class Contest:
    """A row of the tables.

    Attributes:
        task: name of the task.
        row: what distinguishes it from other contests of the task: a text by column.
        benchmark: scenario, metric and seeds.
        contestants: what is compared.
    """

    task: str
    row: dict[str, str]
    benchmark: Benchmark
    contestants: tuple[Contestant, ...]

    def __post_init__(self) -> None:
        """Check that labels are unique.

        Raises:
            ConfigError: two have the same.
        """
        labels = [contestant.label for contestant in self.contestants]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise ConfigError(
                f"contest {self.name}: {shown(min(twice))} is there twice; labels must be unique"
            )

    @property
    def name(self) -> str:
        """The task and the row."""
        return f"{self.task}: {', '.join(self.row.values())}"

    def run_keys(self) -> list[str]:
        """Return the key of each contestant's run: equal for equal resolved configurations."""
        return [key_of(self.benchmark, contestant) for contestant in self.contestants]


def key_of(benchmark: Benchmark, contestant: Contestant) -> str:
    """Return a hash of everything that determines a contestant's outcome."""
    content = {
        "scenario": benchmark.scenario.resolved().model_dump(
            mode="json", exclude={"name", "summary", "policies", "seeds"}
        ),
        "metric": benchmark.metric,
        "seeds": benchmark.seeds,
        "tuning_seeds": benchmark.tuning_seeds,
        "contestant": contestant.description(),
    }
    text = json.dumps(content, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:20]
