"""Train several configurations and seeds in parallel, each in its own folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.agents.runs.checkpoints import write_json
from kvgym.agents.runs.config import TrainingConfig, read_run_config
from kvgym.agents.runs.run import resume, train
from kvgym.errors import ConfigError, shown
from kvgym.utils.execution import make_executor
from kvgym.utils.files import alone_in, plain_name

FILE = "population.json"


@dataclass(frozen=True)
class Member:
    """A training run of the population.

    Attributes:
        config: its configuration, with its own seed.
        folder: its run folder; a run that is already there continues.
        command: the command line, kept in ``run.json``.
    """

    config: TrainingConfig
    folder: Path
    command: str = ""


@dataclass(frozen=True)
class Trained:
    """Result of a member.

    Attributes:
        name: of the configuration.
        seed: its seed.
        folder: its run folder.
        best: metric of the best agent; for evolution its gain over the references in per cent.
        lower_is_better: whether lower values of it are better.
        lines: report of the run.
    """

    name: str
    seed: int
    folder: Path
    best: float
    lower_is_better: bool
    lines: tuple[str, ...]


def train_member(member: Member) -> Trained:
    """Train a member, or continue the run of a process that died; called by an executor."""
    if (member.folder / "config.yaml").exists():
        length = member.config.length
        longer = None if read_run_config(member.folder).length == length else length
        result = resume(member.folder, length=longer, command=member.command)
    else:
        result = train(member.config, member.folder, command=member.command)
    config = member.config
    return Trained(
        config.name, config.seed, member.folder, result.best, result.lower_is_better, tuple(result.report())
    )


def _check_same(member: Member) -> None:
    """Check that a run in the member's folder has the member's configuration.

    Raises:
        ConfigError: it has another.
    """
    if not (member.folder / "config.yaml").exists():
        return
    there, wanted = _identity(read_run_config(member.folder)), _identity(member.config)
    if others := [name for name in wanted if there.get(name) != wanted[name]]:
        name = others[0]
        raise ConfigError(
            f"{member.folder} holds a run of another configuration: {name} is {shown(there.get(name))}, not "
            f"{shown(wanted[name])}; choose another folder"
        )


def _identity(config: TrainingConfig) -> dict[str, Any]:
    """Return the fields that identify a run; length and number of processes may change."""
    return config.model_dump(mode="json", exclude={config.LENGTH, "summary", "jobs", "ray"})


def make_members(
    configs: Sequence[TrainingConfig], seeds: int, folder: Path, command: str = ""
) -> list[Member]:
    """Return a member for every configuration and seed; seeds start from the configuration's own.

    Each run uses one process. Folders are ``NAME-SEED``, or ``seed-SEED`` for a single configuration.

    Raises:
        ConfigError: two configurations have the same name.
    """
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"configurations {', '.join(names)}: names must differ, since folders have these names"
        )
    members = []
    for config in configs:
        for seed in range(config.seed, config.seed + seeds):
            name = f"{plain_name(config.name)}-{seed}" if len(configs) > 1 else f"seed-{seed}"
            alone = {"jobs": 1, "ray": None} if hasattr(config, "jobs") else {}
            own = config.model_copy(update={"seed": seed, **alone})
            members.append(Member(own, folder / name, command))
    return members


def train_population(
    members: Sequence[Member],
    folder: Path,
    *,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Callable[[Trained, int, int], None] | None = None,
) -> list[Trained]:
    """Train members in parallel; each result equals, bit for bit, the result of the run alone.

    If its process or node dies, a member continues from its last checkpoint; on a cluster all nodes need access to
    ``folder``.

    Args:
        members: the runs.
        folder: for ``population.json``, the results, written after every member.
        jobs: processes, see :func:`kvgym.utils.execution.make_executor`.
        ray: use a Ray cluster instead, see there.
        progress: called after each member with its result, the number of finished members, and of all.

    Returns:
        The results, in order.

    Raises:
        ConfigError: a folder holds a run of another configuration, or a longer one, or another process trains there.
    """
    for member in members:
        _check_same(member)
    if (folder / FILE).exists() and not any((member.folder / "config.yaml").exists() for member in members):
        raise ConfigError(f"{folder / FILE} belongs to other runs; choose another folder, or move it")
    found: dict[int, Trained] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder), make_executor(train_member, jobs, ray=ray) as executor:
        for place, trained in executor.stream(members):
            found[place] = trained
            write_json(folder / FILE, {"members": [_content(found[k]) for k in sorted(found)]})
            if progress is not None:
                progress(trained, len(found), len(members))
    return [found[place] for place in range(len(members))]


def median_of(trained: Sequence[Trained]) -> Trained:
    """Return the median member by best value; for an even number the better of the middle two."""
    better_first = sorted(trained, key=lambda t: t.best if t.lower_is_better else -t.best)
    return better_first[(len(better_first) - 1) // 2]


def _content(trained: Trained) -> dict[str, object]:
    return {"name": trained.name, "seed": trained.seed, "folder": trained.folder.name, "best": trained.best}
