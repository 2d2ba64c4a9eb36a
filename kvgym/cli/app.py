"""The application behind ``kvgym``: its commands, and how errors end."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.bound import bound
from kvgym.cli.calibrate import calibrate
from kvgym.cli.capacity import capacity
from kvgym.cli.compare import compare
from kvgym.cli.curve import curve
from kvgym.cli.evaluate import evaluate
from kvgym.cli.list import list_
from kvgym.cli.provision import provision
from kvgym.cli.render import render
from kvgym.cli.run import run
from kvgym.cli.sweep import sweep
from kvgym.cli.train import train
from kvgym.cli.tune import tune
from kvgym.cli.validate import validate
from kvgym.errors import KVGymError
from kvgym.version import __version__

app = typer.Typer(
    name="kvgym",
    help="Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

app.command()(compare)
app.command()(run)
app.command()(sweep)
app.command("list")(list_)
app.command()(render)
app.command()(train)
app.command()(curve)
app.command()(evaluate)
app.command()(tune)
app.command()(capacity)
app.command()(provision)
app.command()(bound)
app.command()(calibrate)
app.command()(validate)


def _version(value: bool) -> None:
    if value:
        print(f"kvgym {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware."""


def main() -> None:
    """Run the command line; errors a user can cause end in one line on standard error and exit code 2."""
    try:
        app()
        return
    except KVGymError as error:
        message = str(error)
    except OSError as error:
        if error.errno not in (None, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        message = f"{error.filename or 'the results'} cannot be written: {error.strerror or error}"
    except MemoryError:
        message = "not enough memory for so many requests; try fewer with --num-requests"
    console.err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(2)
