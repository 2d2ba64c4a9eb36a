"""Imports of the command line before a command runs, and its list of commands."""

import runpy
import subprocess
import sys

import pytest

from kvgym.cli.app import COMMANDS, load_command
from kvgym.utils.version import __version__

SLOW = (
    "numba",
    "scipy",
    "pydantic",
    "polars",
    "yaml",
    "matplotlib",
    "torch",
    "kvgym.simulator",
    "kvgym.policies.policy",
)
"""Modules that are slow to import."""

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
    """Return the slow modules that a process imports to show help, and its output."""
    code = ASK.format(asked=asked, slow=SLOW)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, _, modules = done.stdout.rpartition("loaded:")
    return modules.split(), shown


def test_the_list_of_commands_loads_nothing_slow():
    modules, shown = loaded_by([])
    assert modules == []
    first = {name.split()[0] for name in COMMANDS}
    assert len(first) <= 16
    assert all(f"│ {name} " in shown for name in first)


def test_the_help_of_commands_loads_nothing_slow():
    modules, shown = loaded_by(*(name.split() for name in COMMANDS))
    assert set(modules) <= {"pydantic"}  # Typer imports it for the types of options
    assert all(f"Usage: kvgym {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize(("columns", "lines"), [(80, 100), (100, 80)])
def test_the_longest_help_is_two_screens(kvgym, monkeypatch, columns, lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = kvgym("compare", "--help")[1]
    assert len(shown.splitlines()) <= lines


def test_the_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kvgym", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("kvgym", run_name="__main__")
    assert not stop.value.code
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_and_the_command_have_the_same_summary(name):
    assert load_command(name).help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("comapre", "'comapre'; did you mean kvgym compare?"),
        ("provision", "'provision'; did you mean kvgym capacity provision?"),
        ("judge", "'judge'; did you mean kvgym benchmark judge?"),
        ("observe", "'observe'; did you mean kvgym server observe?"),
        ("serve-mock", "'serve-mock'; did you mean kvgym server mock?"),
        ("export-dataset", "'export-dataset'; did you mean kvgym render dataset?"),
        ("server validat x.csv", "'server validat'; did you mean kvgym server validate?"),
        ("nothing", "'nothing'; kvgym --help lists the commands"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(kvgym, given, shown):
    code, _, err = kvgym(*given.split())
    assert (code, err) == (2, f"error: kvgym has no command {shown}\n")
