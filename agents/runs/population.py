"""A population of training runs: configurations and seeds side by side, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.agents.runs.checkpoints import write_json
from kvgym.agents.runs.config import TrainingConfig, read_run_config
from kvgym.agents.runs.trainers import resume, train
from kvgym.errors import ConfigError, shown
from kvgym.execution import make_executor
from kvgym.metrics import metric_info
from kvgym.utils.files import alone_in, plain_name

FILE = "population.json"


@dataclass(frozen=True)
class Member:
    """A run of the population.

    Attributes:
        config: what is trained; with a seed of its own.
        folder: its run folder; one that holds the run already is gone on with.
        command: the command line that led here.
    """

    config: TrainingConfig
    folder: Path
    command: str = ""


@dataclass(frozen=True)
class Trained:
    """What a member reached.

    Attributes:
        name: of the configuration.
        seed: its seed.
        folder: its run folder.
        best: value of the metric of the best agent, of evolution the improvement over the references in per cent.
        lower_is_better: whether less of it is better.
        lines: what the run says of itself.
    """

    name: str
    seed: int
    folder: Path
    best: float
    lower_is_better: bool
    lines: tuple[str, ...]


def train_member(member: Member) -> Trained:
    """Train a member, or go on where a process that died has left it; work for an executor."""
    if (member.folder / "config.yaml").exists():
        length = member.config.length
        longer = None if read_run_config(member.folder).length == length else length
        result = resume(member.folder, length=longer, command=member.command)
    else:
        result = train(member.config, member.folder, command=member.command)
    evolved = hasattr(result, "generations")
    lower = not evolved and bool(metric_info(result.metric).lower_is_better)
    config = member.config
    return Trained(config.name, config.seed, member.folder, result.best, lower, tuple(result.report()))


def _check_same(member: Member) -> None:
    """Check that the run in a member's folder, if there is one, is of the member's configuration.

    Raises:
        ConfigError: it is of another.
    """
    if not (member.folder / "config.yaml").exists():
        return
    there, wanted = _told_by(read_run_config(member.folder)), _told_by(member.config)
    if others := [name for name in wanted if there.get(name) != wanted[name]]:
        name = others[0]
        raise ConfigError(
            f"{member.folder} holds a run of another configuration: {name} is {shown(there.get(name))}, not "
            f"{shown(wanted[name])}; choose another folder"
        )


def _told_by(config: TrainingConfig) -> dict[str, Any]:
    """Return what makes a run what it is; a run may become longer, and be made by any number of processes."""
    return config.model_dump(mode="json", exclude={config.LENGTH, "summary", "jobs", "ray"})


def make_members(
    configs: Sequence[TrainingConfig], seeds: int, folder: Path, command: str = ""
) -> list[Member]:
    """Return a member for every configuration and seed, from the configuration's own on.

    Each run uses one process. Folders are ``NAME-SEED``, with one configuration ``seed-SEED``.

    Raises:
        ConfigError: two configurations have one name.
    """
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"configurations {', '.join(names)}: names must differ, folders are called by them")
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
    """Train members side by side; each equals, bit for bit, the same run alone.

    A member whose process or node dies goes on from its last checkpoint, on a cluster if all nodes see ``folder``.

    Args:
        members: the runs.
        folder: where ``population.json`` says what each reached, written after every member.
        jobs: processes, see :func:`kvgym.execution.make_executor`.
        ray: run on a Ray cluster instead, see there.
        progress: called after each member, with the number done and of all.

    Returns:
        What each reached, in order.

    Raises:
        ConfigError: a folder holds a run of another configuration, or a longer one, or another process trains there.
    """
    for member in members:
        _check_same(member)
    if (folder / FILE).exists() and not any((member.folder / "config.yaml").exists() for member in members):
        raise ConfigError(f"{folder / FILE} is not of these runs; choose another folder, or move it")
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
    """Return the median member by its best value; of an even number the better of the middle two."""
    better_first = sorted(trained, key=lambda t: t.best if t.lower_is_better else -t.best)
    return better_first[(len(better_first) - 1) // 2]


def _content(trained: Trained) -> dict[str, object]:
    return {"name": trained.name, "seed": trained.seed, "folder": trained.folder.name, "best": trained.best}
