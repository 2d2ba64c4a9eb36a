"""What was run, in a JSON file: written after every job, so that an interrupted comparison goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare_agents.bench import Outcome
from compare_agents.cells import Cell
from kvgym.errors import ConfigError
from kvgym.utils.files import write_text
from kvgym.utils.reading import parse_json, read_bytes
from kvgym.version import __version__

FORMAT = "kvgym-comparison"


@dataclass(frozen=True)
class Entry:
    """An entrant of a cell, as the file has it.

    Attributes:
        group: what it stands for, see :mod:`.entrants`.
        label: what it is called.
        outcome: what it reached.
    """

    group: str
    label: str
    outcome: Outcome


@dataclass(frozen=True)
class Row:
    """A cell, as the file has it.

    Attributes:
        task: name of the task.
        row: a text by column.
        metric: what was measured.
        num_seeds: held-out seeds; 1 where a trace is replayed.
        entries: who played, in order.
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
        runs: outcomes by key, see :func:`.cells.key_of`.
        cells: what the latest comparison consisted of, JSON-able.
        curves: learning curves, see :mod:`.curves`.
        about: JSON-able: version, and CPU seconds of all jobs.
    """

    runs: dict[str, Outcome] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Store:
        """Read a file; an empty store where there is none.

        Raises:
            ConfigError: it is something else.
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
                f"{place}: not a file of figures that compare_agents wrote ({error}); name another one"
            ) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file; an interruption leaves the old one."""
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT, "about": self.about, "cells": self.cells, "curves": self.curves,
            "runs": {key: asdict(run) for key, run in self.runs.items()},
        }  # fmt: skip
        write_text(place, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def put(self, cells: Sequence[Cell]) -> None:
        """Note what a comparison consists of; cells of other tasks stay, those of its tasks are replaced."""
        tasks = {cell.task for cell in cells}
        self.about["kvgym"] = __version__
        self.cells = [cell for cell in self.cells if cell["task"] not in tasks]
        for cell in cells:
            entrants = [
                {"group": entrant.group, "label": entrant.label, "run": key}
                for key, entrant in zip(cell.run_keys(), cell.entrants, strict=True)
            ]
            self.cells.append(
                {
                    "task": cell.task, "row": cell.row, "metric": cell.bench.metric,
                    "num_seeds": len(cell.bench.seeds), "entrants": entrants,
                }
            )  # fmt: skip

    def rows(self) -> list[Row]:
        """Return the cells with the outcomes that are there; cells without any are left out."""
        found = []
        for cell in self.cells:
            entries = tuple(
                Entry(entrant["group"], entrant["label"], self.runs[entrant["run"]])
                for entrant in cell["entrants"]
                if entrant["run"] in self.runs
            )
            if entries:
                found.append(Row(cell["task"], cell["row"], cell["metric"], cell["num_seeds"], entries))
        return found
