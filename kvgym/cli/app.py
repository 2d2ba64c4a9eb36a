"""The application behind ``kvgym``: its commands, and how errors end."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvgym.cli import failures, result_folder
from kvgym.cli.options.scenario import with_parameters
from kvgym.version import __version__

COMMANDS = {
    "compare": "Run schedulers, or routers of a cluster, on identical workloads and compare them.",
    "run": "Run one scheduler once and write what happened to every request.",
    "sweep": "Run schedulers at every point of a grid over fields of the scenario and hyperparameters of policies.",
    "list": "List policies, agents, scenarios, hardware, workloads, environments and more.",
    "render": "Play an episode of an environment and write it as a GIF or MP4, and a PNG of the whole.",
    "train": "Train an agent; watch it with tensorboard --logdir FOLDER, or see kvgym curve FOLDER.",
    "curve": "Show the learning curves of training runs: a table, and a picture with a panel per training.",
    "evaluate": "Evaluate a learned agent on held-out seeds beside baselines, paired by seed.",
    "tune": "Search hyperparameters of schedulers on training seeds.",
    "capacity": "Find up to which arrival rate schedulers hold targets.",
    "provision": "Find how many workers a load needs, by theory and by simulation, and what that costs.",
    "bound": "Find between what ends the best value lies that any scheduler reaches, clairvoyant ones included.",
    "calibrate": "Fit operator tables to profiles, write a hardware file and say how far off it is.",
    "validate": "Replay what a real server has served and show how far the simulator is off.",
    "check-policy": "Try a policy on what every policy must do, in a process whose compiled code checks every index.",
    "warm-up": "Compile everything that would be compiled on first use: for images and CI.",
}
"""What each command does, by name. It is the function of that name in the module of that name (with a "_" where Python
has the name already), which is loaded when it is called; so the list costs nothing."""

_STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


VerboseOption = Annotated[
    bool, typer.Option("--verbose", callback=failures.be_verbose, help="Show all that is known of an error.")
]


def load_command(name: str) -> Any:
    """Return a command with its options, from the module that holds it."""
    plain = name.replace("-", "_")
    module = import_module(f"kvgym.cli.commands.{plain}")
    alone = typer.Typer(**_STYLE)
    alone.command(name)(_with_verbose(getattr(module, plain, None) or getattr(module, f"{plain}_")))
    return get_command(alone)


def _with_verbose(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option ``--verbose``, as the application has it."""

    @functools.wraps(command)
    def wrapped(verbose: bool = False, **given: Any) -> None:
        command(**given)

    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    parameters.append(
        inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption)
    )
    return with_parameters(wrapped, parameters)


class Commands(TyperGroup):
    """The commands, of which only those are loaded that are called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first argument names, as any group does, but loaded."""
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
    verbose: VerboseOption = False,
) -> None:
    """Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware."""


def main() -> None:
    """Run the command line; whatever goes wrong ends as :mod:`kvgym.cli.failures` says, never in a traceback."""
    warnings.simplefilter(
        "ignore", RuntimeWarning
    )  # of NumPy, about figures that the table shows as infinite
    with result_folder.tidied():
        try:
            app(prog_name="kvgym")
        except Exception as error:
            sys.exit(failures.end_with(error))
