"""Autoscalers on the command line."""

import json


def test_autoscalers_are_listed_with_their_settings(kvgym):
    out = kvgym.output("list", "autoscalers")
    assert "hpa" in out
    assert "constant number of workers" in out
    assert "look_back" in kvgym.output("list", "autoscalers", "ray")


def test_compare_has_the_best_fixed_size(kvgym, tmp_path):
    folder = tmp_path / "results"
    out = kvgym.output(
        "compare -n 40 --seeds 1 --workers 2 --fleet 1-3 --startup 5 --ttft-slo 20s -p fcfs --no-progress",
        "--autoscaler", "hpa:target=4,foresight", "--router", "join_shortest_queue", "--out", folder,
    )  # fmt: skip
    assert "best fixed" in out
    assert "clairvoyant: knows the arrivals to come" in " ".join(out.split())
    summary = json.loads((folder / "summary.json").read_text())
    best, hpa, known = summary["policies"]
    assert best.startswith("best fixed, workers=")
    assert (hpa, known) == ("hpa:target=4", "foresight")
    assert summary["clairvoyant"] == ["foresight"]
    assert summary["policies"][hpa]["gpu_hours"]["value"] > 0
    assert "The fleet over time" in (folder / "report.html").read_text("utf-8")


def test_the_best_size_is_shown_without_a_report_too(kvgym, tmp_path):
    """Runs that were stored under the name of their size are shown under the name of the best one."""
    out = kvgym.output(
        "compare -n 20 --seeds 2 --fleet 1-2 --startup 5 -p fcfs --no-progress --no-report --autoscaler hpa:target=4",
        "--out", tmp_path / "results",
    )  # fmt: skip
    assert "best fixed, workers=1" in out


def test_autoscalers_need_a_fleet(kvgym):
    assert "workers with most" in kvgym.error("compare", "--workers", "2", "--autoscaler", "hpa")
    assert "as in 1-8" in kvgym.error("compare", "--fleet", "8", "--autoscaler", "hpa")


def test_run_asks_the_autoscaler(kvgym, tmp_path):
    line = "run -n 40 --workers 1 --fleet 1-3 --startup 5 -p fcfs --no-progress --autoscaler"
    made = {}
    for spec in ("fixed:workers=3", "fixed:workers=1"):
        folder = tmp_path / spec[-1]
        kvgym.output(line, spec, "--out", folder)
        made[spec] = json.loads((folder / "summary.json").read_text())["metrics"]
    assert made["fixed:workers=3"]["ready_workers"] == 3
    assert made["fixed:workers=1"]["ready_workers"] == 1
