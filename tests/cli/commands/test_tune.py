"""kvgym tune: tables, files, several policies, and errors."""

import json

import polars as pl
import pytest

from kvgym.policies.policy import make_policy

SMALL = ("tune", "-n", 60, "--seeds", 2, "--no-progress")


def test_a_policy_with_fixed_hyperparameters(kvgym, tmp_path):
    code, out, err = kvgym(
        *SMALL, "-p", "sarathi:order=spf", "--first-seed", 7, "-g", "token_budget=256:512:128",
        "-g", "watermark=0/0.05", "-o", "res",
    )  # fmt: skip
    assert code == 0, err
    assert "sarathi:order=spf (default)" in out
    assert "6 of 6 trials qualify; training seeds 7–8" in out
    best = json.loads((tmp_path / "res" / "best.json").read_text())
    assert f"best: {best['spec']}\n" in out
    assert make_policy(best["spec"]).order == "spf"
    assert best["seeds"] == [7, 8]
    assert "results: res\n" in out
    assert {f.name for f in (tmp_path / "res").iterdir()} == {
        "trials.csv", "best.json", "config.json", ".kvgym-results.json",
    }  # fmt: skip


def test_bounds(kvgym, tmp_path):
    sarathi = (*SMALL, "-p", "sarathi", "-o", "res", "-g")
    code, out, err = kvgym(
        *sarathi, "token_budget=256/512", "-m", "token_throughput,evictions", "--subject-to", "e2e_latency_mean<1e6",
        "--subject-to", "ttft_p99<1e6",
    )  # fmt: skip
    assert code == 0, err
    assert "subject to e2e_latency_mean<1e+06, ttft_p99<1e+06" in out
    best = json.loads((tmp_path / "res" / "best.json").read_text())
    assert list(best["others"]) == ["e2e_latency_mean", "ttft_p99", "evictions"]
    assert set(best["others"]) < set(pl.read_csv(tmp_path / "res" / "trials.csv").columns)
    assert kvgym(*sarathi, "token_budget=256", "--subject-to", "ttft_p99<1us")[0] == 2


def test_several_policies(kvgym, tmp_path):
    code, out, err = kvgym(*SMALL, "-p", "fcfs,mc_sf:overrun=extend", "--trials", 3, "-o", "res")
    assert code == 0, err
    assert out.count("best: ") == 2
    folders = {f.name for f in (tmp_path / "res").iterdir() if f.is_dir()}
    assert folders == {"fcfs", "mc_sf-overrun-extend"}
    assert (tmp_path / "res" / "mc_sf-overrun-extend" / "best.json").is_file()


def test_a_policy_that_cannot_run_does_not_stop_the_others(kvgym):
    code, out, _ = kvgym(*SMALL, "-p", "a_min,fcfs")
    assert code == 1
    assert "a_min: policy 'a_min' needs length_interval" in out
    assert "best: fcfs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "fcfs,fcfs"], "policy fcfs is listed twice"),
        (["-p", "unknown"], "unknown policy 'unknown'"),
        (["-p", "fcfs", "--scenario", "nowhere"], "unknown scenario 'nowhere'"),
        (["-p", "fcfs", "--metrics", "batch_size"], "neither more nor less"),
        (["-p", "fcfs", "--grid", "overrun=ignore"], "no hyperparameter 'overrun'; valid: protection=0.0"),
        (
            ["-p", "a_min,fcfs", "-g", "protection=0/0.1"],
            "'a_min' has no hyperparameter 'protection'; valid: none",
        ),
        (["-p", ","], "kvgym tune needs policies"),
    ],
)
def test_mistakes(kvgym, arguments, message):
    code, out, err = kvgym("tune", *arguments, "-n", 5)
    assert (code, out) == (2, "")
    assert message in err


def test_traces_are_replayed(kvgym, azure_trace):
    code, out, err = kvgym(
        "tune", "-p", "fcfs", "--trace", azure_trace, "--hardware", "llama3-8b-a100-tp1", "--no-progress", "-g",
        "protection=0.1",
    )  # fmt: skip
    assert code == 0, err
    assert "training seed 1000;" in out
    assert "Every seed replays the same trace" in out
