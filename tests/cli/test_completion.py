"""Shell completion of option values."""

import os
import subprocess
import sys

import pytest

from kvgym.cli.options.shared import names


@pytest.mark.parametrize(
    ("what", "typed", "first"),
    [
        ("policies", "mc_", "mc_sf"),
        ("policies", "fcfs,mc_s", "fcfs,mc_sf"),
        ("scenarios", "a100-llama", "a100-llama2-70b"),
        ("metrics", "ttft_p9", "ttft_p90"),
        ("gpus", "h2", "h200"),
    ],
)
def test_names_are_completed_also_behind_a_comma(what, typed, first):
    assert names(what)(typed)[0][0] == first


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("kvgym compare --gpu h2", "h200"),
        ("kvgym capacity p", "provision"),
        ("kvgym capacity provision --pri", "--price"),
        ("kvgym benchmark j", "judge"),
        ("kvgym server v", "validate"),
    ],
)
def test_the_shell_receives_names_and_modes(typed, found):
    place = str(len(typed.split()) - 1)
    asked = {"_KVGYM_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    code = "import sys; from kvgym.cli.app import main; sys.argv = ['kvgym']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.split() == [found]
