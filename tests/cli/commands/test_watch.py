"""``kvgym watch``: it prints an address, serves the page, and ends by Ctrl-C or SIGTERM."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

CODE = "from kvgym.cli.app import main; main()"


def ignore_sigint():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.parametrize(
    ("sent", "begin"),
    [(signal.SIGINT, None), (signal.SIGINT, ignore_sigint), (signal.SIGTERM, None)],
    ids=["ctrl-c", "ctrl-c in the background", "sigterm"],
)
def test_a_run_until_a_signal(sent, begin):
    """Shells start background jobs with SIGINT ignored."""
    arguments = [
        "watch",
        "-p",
        "fcfs",
        "--scenario",
        "mc-sf-model-2",
        "-n",
        "20",
        "--speed",
        "1e6",
        "--no-browser",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=begin,
    ) as process:
        found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", process.stdout.readline())
        state = {"status": ""}
        while state["status"] != "finished":
            asked = f"version={state['version']}&epoch=0&rows=0" if "version" in state else ""
            with urllib.request.urlopen(f"{found[0]}state?{asked}", timeout=60) as answer:
                state = json.load(answer)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert state["title"] == "fcfs"
    assert dict(state["tiles"])["Finished"] == "20 of 20"
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "mc_sf", "--training", "runs/x"), "leave one of them out"),
        (("--training", "runs/x"), "holds no training run"),
        (("-p", "fcfs", "--speed", "0"), "expected simulated seconds per second"),
        (("-p", "wait"), "class"),
        (("-p", "nothing"), "unknown policy"),
    ],
)
def test_errors(kvgym, arguments, message):
    err = kvgym.error("watch", *arguments, "-n", 5, "--no-browser")
    assert message in err
