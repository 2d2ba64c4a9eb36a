"""The ``kvgym`` application: its commands and its error handling."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvgym.cli import console, failures, result_folder
from kvgym.cli.options.scenario import with_parameters
from kvgym.cli.usage import Command
from kvgym.utils.version import __version__

COMMANDS = {
    "compare": "Run schedulers, or routers of a cluster, on identical workloads and compare them.",
    "run": "Run one scheduler once and write a record of every request.",
    "sweep": "Run schedulers at every point of a grid over fields of the scenario and hyperparameters of policies.",
    "workload": "Describe a workload: its rate, lengths and sessions, and its reuse by a prefix cache.",
    "watch": "Show a run or a training live in a browser on this machine.",
    "list": "List policies, agents, scenarios, hardware, workloads, environments and more.",
    "render": "Play an episode of an environment; write a GIF or MP4 of it and a PNG summary.",
    "train": "Train an agent; follow it with kvgym watch --training FOLDER or tensorboard --logdir FOLDER.",
    "curve": "Show the learning curves of training runs as a table and a picture.",
    "benchmark": "Score schedulers, routers and agents on the tasks of the benchmark.",
    "export-dataset": "Write episodes of a scheduler or an agent as a Minari dataset, for offline learning.",
    "judge": "Score a policy, router or agent on validation seeds; print a verdict as JSON.",
    "evaluate": "Compare a learned agent with baselines on held-out seeds, paired by seed.",
    "tune": "Search hyperparameters of schedulers on training seeds.",
    "capacity": "Find the highest arrival rate at which schedulers meet targets.",
    "provision": "Find how many workers a load needs, by theory and by simulation, and their cost.",
    "bound": "Bound the best value any scheduler, even a clairvoyant one, could reach.",
    "calibrate": "Fit operator tables to measured kernels; write a file and show its errors.",
    "validate": "Replay a log of a real server and show the simulator's errors.",
    "observe": "Send a workload to an OpenAI-compatible server and log every request, for kvgym validate.",
    "serve-mock": "Answer OpenAI-compatible requests on this machine with the simulator's times.",
    "check-policy": "Run the conformance checks on a policy, with bounds checking.",
    "warm-up": "Compile everything that would otherwise be compiled on first use: for images and CI.",
}
"""Summary of each command, by name. A command is the function of its name in the module of its name (with a "_" where
Python uses the name already), in ``kvgym/cli/commands`` or the package of its family. The module is loaded only when
the command is called."""

FAMILIES = dict.fromkeys(
    ("train", "curve", "benchmark", "judge", "evaluate", "export-dataset", "tune"), "learning."
)
"""Packages of commands, by command."""

_STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


VerboseOption = Annotated[
    bool, typer.Option("--verbose", callback=failures.be_verbose, help="Show full error details.")
]


WidthOption = Annotated[
    int | None,
    typer.Option(
        "--width", min=20, callback=console.set_width, help="Columns of the output (default: the terminal's)."
    ),
]


def load_command(name: str) -> Any:
    """Return a command with its options from its module."""
    plain = name.replace("-", "_")
    module = import_module(f"kvgym.cli.commands.{FAMILIES.get(name, '')}{plain}")
    alone = typer.Typer(**_STYLE)
    alone.command(name, cls=Command)(
        _with_output(getattr(module, plain, None) or getattr(module, f"{plain}_"))
    )
    return get_command(alone)


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
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def owners(self, flag: str) -> list[str]:
        """Return the commands that have an option, ``"--seeds"`` or ``"-n"``."""
        return [
            name
            for name in COMMANDS
            if any(flag in (*each.opts, *each.secondary_opts) for each in load_command(name).params)
        ]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load and return the command that the first argument names."""
        if args and args[0] in COMMANDS:
            self.add_command(load_command(args[0]))
        return super().resolve_command(ctx, args)


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
