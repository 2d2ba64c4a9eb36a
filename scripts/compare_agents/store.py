"""JSON file of all runs, written after every job so that an interrupted comparison can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare_agents.benchmark import Outcome
from compare_agents.contests import Contest
from kvgym.errors import ConfigError
from kvgym.utils.files import write_text
from kvgym.utils.reading import parse_json, read_bytes
from kvgym.version import __version__

FORMAT = "kvgym-comparison"


@dataclass(frozen=True)
class Entry:
    """A stored contestant of a contest.

    Attributes:
        group: its role, see :mod:`.contestants`.
        label: its name.
        outcome: its result.
    """

    group: str
    label: str
    outcome: Outcome


@dataclass(frozen=True)
class Row:
    """A stored contest.

    Attributes:
        task: name of the task.
        row: a text by column.
        metric: see :mod:`kvgym.metrics`.
        num_seeds: held-out seeds; 1 for a replayed trace.
        entries: in order.
    """

    task: str
    row: Mapping[str, str]
    metric: str
    num_seeds: int
    entries: tuple[Entry, ...]

    def group(self, name: str) -> list[Entry]:
        """Return the entries of a group."""
        return [entry for entry in self.entries if entry.group == name]


@dataclass
class Store:
    """The content of the file.

    Attributes:
        runs: outcomes by key, see :func:`.contests.key_of`.
        contests: of the latest comparison, JSON-able.
        curves: learning curves, see :mod:`kvgym.agents.curves`.
        about: JSON-able: version, and CPU seconds of all jobs.
    """

    runs: dict[str, Outcome] = field(default_factory=dict)
    contests: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Store:
        """Read a file; return an empty store if there is none.

        Raises:
            ConfigError: it has another format.
        """
        place = Path(path)
        if not place.exists():
            return cls()
        try:
            content = parse_json(read_bytes(place, "figures"), str(place))
            if content.pop("format") != FORMAT:
                raise ValueError("it has another format")
            runs = {
                key: Outcome(run["spec"], tuple(run["values"]), run["error"])
                for key, run in content.pop("runs").items()
            }
            return cls(runs=runs, **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{place}: not a file of figures that compare_agents wrote ({error}); choose another file"
            ) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; the old one stays if interrupted."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT, "about": self.about, "contests": self.contests, "curves": self.curves,
            "runs": {key: asdict(run) for key, run in self.runs.items()},
        }  # fmt: skip
        write_text(place, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def put(self, contests: Sequence[Contest]) -> None:
        """Replace the contests of the given tasks; those of other tasks stay."""
        tasks = {contest.task for contest in contests}
        self.about["kvgym"] = __version__
        self.contests = [contest for contest in self.contests if contest["task"] not in tasks]
        for contest in contests:
            contestants = [
                {"group": contestant.group, "label": contestant.label, "run": key}
                for key, contestant in zip(contest.run_keys(), contest.contestants, strict=True)
            ]
            self.contests.append(
                {
                    "task": contest.task, "row": contest.row, "metric": contest.benchmark.metric,
                    "num_seeds": len(contest.benchmark.seeds), "contestants": contestants,
                }
            )  # fmt: skip

    def rows(self) -> list[Row]:
        """Return the contests with their outcomes so far; contests without any are left out."""
        found = []
        for contest in self.contests:
            entries = tuple(
                Entry(contestant["group"], contestant["label"], self.runs[contestant["run"]])
                for contestant in contest["contestants"]
                if contestant["run"] in self.runs
            )
            if entries:
                found.append(
                    Row(contest["task"], contest["row"], contest["metric"], contest["num_seeds"], entries)
                )
        return found
