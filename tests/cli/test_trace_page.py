"""docs/traces.md: every file, command and snippet of the page, run in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest

from kvgym.cli.console import markdown_table
from kvgym.workloads.traces.own_table import alias_table

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, language in (("log.csv", "text"), ("mine.yaml", "yaml")):
        (text,) = blocks(language)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines()])
def test_every_command_of_the_page_runs(kvgym, line):
    program, *arguments = shlex.split(line)
    assert program == "kvgym"
    progress = () if arguments[0] in ("run", "workload") else ("--no-progress",)
    code, out, err = kvgym(*arguments, *progress)
    assert code == 0, out + err


def test_the_python_code_of_the_page_prints_the_shown_output(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/traces.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)(?:  |\n)# (.*)", code)


def test_the_page_has_all_known_names():
    for line in markdown_table(*alias_table()).splitlines():
        assert line in PAGE, "print markdown_table(*alias_table()) and put it into docs/traces.md"
