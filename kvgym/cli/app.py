"""The ``kvgym`` application: its commands and its error handling."""

from __future__ import annotations

import difflib
import functools
import gc
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvgym.cli import console, failures, result_folder
from kvgym.cli.options.scenario import with_parameters
from kvgym.cli.options.shared import OUTPUT
from kvgym.cli.usage import Command
from kvgym.errors import ConfigError, shown
from kvgym.utils.version import __version__

COMMANDS = {
    "compare": "Run schedulers, routers or autoscalers on identical workloads and compare them.",
    "run": "Run one scheduler once and write a record of every request.",
    "sweep": "Run schedulers at every point of a grid over fields of the scenario and hyperparameters of policies.",
    "workload": "Describe a workload: its rate, lengths and sessions, and its reuse by a prefix cache.",
    "watch": "Show a run or a training live in a browser on this machine.",
    "watch curve": "Show the learning curves of training runs as a table and a picture.",
    "list": "List policies, agents, scenarios, hardware, workloads, environments and more.",
    "render": "Play an episode of an environment; write a GIF or MP4 of it and a PNG summary.",
    "render dataset": "Write episodes of a scheduler or an agent as a Minari dataset, for offline learning.",
    "train": "Train an agent; follow it with kvgym watch --training FOLDER or tensorboard --logdir FOLDER.",
    "benchmark": "Score schedulers, routers, autoscalers and agents on the tasks of the benchmark.",
    "benchmark judge": "Score a policy, router or agent on validation seeds; print a verdict as JSON.",
    "evaluate": "Compare a learned agent with baselines on held-out seeds, paired by seed.",
    "tune": "Search hyperparameters of schedulers on training seeds.",
    "capacity": "Find the highest arrival rate at which schedulers meet targets.",
    "capacity provision": "Find how many workers a load needs, by theory and by simulation, and their cost.",
    "bound": "Bound the best value any scheduler, even a clairvoyant one, could reach.",
    "server observe": "Send a workload to an OpenAI-compatible server and log every request, for validation.",
    "server validate": "Replay a log of a real server and show the simulator's errors.",
    "server mock": "Answer OpenAI-compatible requests on this machine with the simulator's times.",
    "server calibrate": "Fit operator tables to measured kernels; write a file and show its errors.",
    "check-policy": "Run the conformance checks on a policy, with bounds checking.",
    "warm-up": "Compile everything that would otherwise be compiled on first use: for images and CI.",
}
"""Summary of each command, by name. The second word of a name is a mode of a command, ``capacity provision``, or a
command of a group. A command is the function of its last word in the module of that name (with a "_" where Python uses
the name already), in ``kvgym/cli/commands`` or the package of its first word. The module is loaded only when the
command is called."""

GROUPS = {"server": "Measure a real server, replay its log, imitate one, and calibrate hardware."}
"""Summary of each group of commands, by name."""

PACKAGES = {
    "server": "server.",
    **dict.fromkeys(("train", "benchmark", "evaluate", "tune"), "learning."),
}
"""Packages of commands, by the first word of the name."""

_STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", callback=failures.be_verbose, help="Show full error details.", rich_help_panel=OUTPUT
    ),
]


WidthOption = Annotated[
    int | None,
    typer.Option(
        "--width",
        min=20,
        metavar="N",
        callback=console.set_width,
        help="Columns of the output.",
        rich_help_panel=OUTPUT,
    ),
]


def command_name(words: Sequence[str]) -> str:
    """Return the name of the command that a command line begins with; "" if there is none."""
    names = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in names if name in COMMANDS), "")


def modes_of(name: str) -> dict[str, str]:
    """Return the summaries of the modes of a command, or of the commands of a group, by their second word."""
    return {full.split()[1]: text for full, text in COMMANDS.items() if full.startswith(f"{name} ")}


def load_command(name: str) -> Any:
    """Return a command with its options from its module."""
    words = name.replace("-", "_").split()
    module = import_module(f"kvgym.cli.commands.{PACKAGES.get(words[0], '')}{words[-1]}")
    alone = typer.Typer(add_completion=False, **_STYLE)
    modes = [f"Mode kvgym {name} {mode}: {text}" for mode, text in modes_of(name).items()]
    function = getattr(module, words[-1], None) or getattr(module, f"{words[-1]}_")
    # Rich keeps the line breaks of the source in all paragraphs but the first.
    paragraphs = [" ".join(each.split()) for each in (inspect.getdoc(function) or "").split("\n\n")]
    alone.command(name, cls=Command, help="\n\n".join(paragraphs), epilog="\n\n".join(modes) or None)(
        _with_output(function)
    )
    return get_command(alone)


def load_group(name: str) -> TyperGroup:
    """Return a group that lists the commands of a group, or the modes of a command with its options."""
    params = load_command(name).params if name in COMMANDS else []
    return TyperGroup(
        name=name,
        help=GROUPS.get(name),
        no_args_is_help=True,
        commands={mode: TyperCommand(mode, help=text) for mode, text in modes_of(name).items()},
        params=[each for each in params if each.param_type_name == "option"],
    )


def _with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options ``--width`` and ``--verbose`` to a command."""

    @functools.wraps(command)
    def wrapped(width: int | None = None, verbose: bool = False, **given: Any) -> None:
        command(**given)

    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    for name, default, annotation in (("width", None, WidthOption), ("verbose", False, VerboseOption)):
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return with_parameters(wrapped, parameters)


class Commands(TyperGroup):
    """The commands; each is loaded when it is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in dict.fromkeys(full.split()[0] for full in COMMANDS):
            modes = ", ".join(f"kvgym {name} {mode}" for mode in modes_of(name))
            summary = GROUPS.get(name) or COMMANDS[name] + (f" Also: {modes}." if modes else "")
            self.add_command(TyperCommand(name, help=summary))

    def owners(self, flag: str) -> list[str]:
        """Return the commands that have an option, ``"--seeds"`` or ``"-n"``."""
        return [
            name
            for name in COMMANDS
            if any(flag in (*each.opts, *each.secondary_opts) for each in load_command(name).params)
        ]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load and return the command, or the group, that the arguments begin with.

        Raises:
            ConfigError: there is no such command.
        """
        name, first, rest = command_name(args), args[0], args[1:]
        if first in GROUPS and (not rest or rest[0].startswith("-")):
            return first, load_group(first), rest
        if name and not rest and ctx.resilient_parsing:
            return name, load_group(name), rest  # completion also offers the modes of a command
        if name:
            return name, load_command(name), args[len(name.split()) :]
        if ctx.resilient_parsing:
            return None, None, []
        raise ConfigError(_no_command(" ".join(args[:2]) if first in GROUPS else first))


def _no_command(name: str) -> str:
    """Return the message on a command that does not exist, with the closest one: a mode by its own name too."""
    known = {text: full for full in (*COMMANDS, *GROUPS) for text in (full.split()[-1], full)}
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean kvgym {known[close[0]]}?" if close else "kvgym --help lists the commands"
    return f"kvgym has no command {shown(name)}; {hint}"


app = typer.Typer(
    name="kvgym",
    cls=Commands,
    help="Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware.",
    no_args_is_help=True,
    **_STYLE,
)


def _version(value: bool) -> None:
    if value:
        print(f"kvgym {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    width: WidthOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware."""


def main() -> None:
    """Run the command line; :mod:`kvgym.cli.failures` turns every error into a message and an exit status."""
    gc.set_threshold(10_000)  # checking the objects of loaded modules takes a tenth of a short command
    warnings.simplefilter(
        "ignore", RuntimeWarning
    )  # NumPy warns about values that the table shows as infinite
    with result_folder.tidied():
        try:
            app(prog_name="kvgym")
        except Exception as error:
            sys.exit(failures.end_with(error))
