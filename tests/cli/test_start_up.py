"""What the command line loads before a command runs, and that its list of commands is right."""

import inspect
import subprocess
import sys

import pytest
import typer

from kvgym.cli.app import COMMANDS, load_command

SLOW = (
    "numba",
    "scipy",
    "pydantic",
    "polars",
    "yaml",
    "matplotlib",
    "torch",
    "kvgym.simulator",
    "kvgym.policy",
)
"""Modules that take long to load, or load those."""

ASK = """
import sys
from kvgym.cli.app import main

for arguments in {asked}:
    sys.argv = ["kvgym", *arguments, "--help"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, arguments
print("loaded:", *[name for name in {slow} if name in sys.modules])
"""


def loaded_by(*asked):
    """Return which slow modules a process has loaded that was asked for help, and what it printed."""
    code = ASK.format(asked=asked, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, _, modules = done.stdout.rpartition("loaded:")
    return modules.split(), shown


def test_the_list_of_commands_loads_nothing_slow():
    modules, shown = loaded_by([])
    assert modules == []
    assert all(f"│ {name} " in shown for name in COMMANDS)


def test_the_help_of_commands_loads_nothing_slow():
    modules, shown = loaded_by(*([name] for name in COMMANDS))
    assert set(modules) <= {"pydantic"}  # which Typer loads for the types of options
    assert all(f"Usage: kvgym {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_itself_says(name):
    assert load_command(name).help.splitlines()[0] == COMMANDS[name]


def test_a_command_that_there_is_not_gets_a_suggestion(kvgym):
    code, _, err = kvgym("comapre")
    assert code == 2
    assert "comapre" in err
    if "suggest_commands" in inspect.signature(typer.Typer).parameters:  # not in the lowest version
        assert "compare" in err
