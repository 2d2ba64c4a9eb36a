"""Runs the examples of pages in order, in a folder for each: ``python run_documents.py PAGE …``.

Python runs as it stands, the examples of a page in one namespace. Lines of ``bash`` are commands of kvgym, called
in this process. Of ``yaml`` what begins with the comment ``# NAME.yaml`` is written to that file.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from kvgym.cli.app import app


def run_page(page: Path) -> None:
    """Run the examples of a page in the present folder."""
    namespace = {"__name__": "__main__"}
    text = page.read_text("utf-8")
    for match in re.finditer(
        r"(?<! -->\n)^```(python|bash|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        kind, code = match.groups()
        if kind == "python":
            before = text[: match.start()].count("\n") + 1
            exec(compile("\n" * before + code, str(page), "exec"), namespace)
        elif kind == "bash":
            for line in code.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "kvgym", f"{page.name}: {line}"
                done = CliRunner().invoke(app, words)
                assert done.exit_code == 0, f"{page.name}: {line}\n{done.output}\n{done.exception!r}"
        elif name := re.match(r"# (\S+\.yaml)\n", code):
            Path(name[1]).write_text(code, "utf-8")


if __name__ == "__main__":
    home = Path.cwd()
    for k, argument in enumerate(sys.argv[1:]):
        folder = home / str(k)  # pages of two folders may have one name
        folder.mkdir()
        os.chdir(folder)
        run_page(Path(argument))
