"""docs/traces.md: every file, command and snippet of the page, run in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
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
    for name, language in (("log.csv", "text"), ("mine.yaml", "yaml"), ("agents.csv", "csv")):
        (text,) = blocks(language)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines()])
def test_every_command_of_the_page_runs(kvgym, line):
    program, *arguments = shlex.split(line)
    assert program == "kvgym"
    progress = () if arguments[0] in ("run", "workload") else ("--no-progress",)
    kvgym.output(*arguments, *progress)


def test_the_python_code_of_the_page_prints_the_shown_output(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/traces.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)(?:  |\n)# (.*)", code)


def test_the_format_of_the_page_is_listed_detected_and_read_in_another_distribution(tmp_path):
    """Its module is the example of the page, its distribution a folder with metadata on the path."""
    (module,) = blocks("py")
    (tmp_path / "acme_traces.py").write_text(module)
    (tmp_path / "gate.csv").write_text("started,tokens_in,tokens_out\n1000,30,4\n3500,50,6\n")
    about = tmp_path / "acme_traces-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-traces\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[kvgym.trace_formats]\nacme = acme_traces\n")
    code = """
        from kvgym.workloads import read_trace, trace_formats
        assert trace_formats()["acme"].startswith("Acme's gateway")
        for table in (read_trace("gate.csv"), read_trace("gate.csv", "acme")):
            print(table.arrival_time.tolist(), table.prompt_len.tolist(), table.output_len.tolist())
    """
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "KVGYM_PLUGINS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0.0, 2.5] [30, 50] [4, 6]"] * 2


def test_the_page_has_all_known_names():
    for line in markdown_table(*alias_table()).splitlines():
        assert line in PAGE, "print markdown_table(*alias_table()) and put it into docs/traces.md"
