import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from helpers.selection import others_long
from helpers.servers.trace_files import OWN, write
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.comparison import compare
from kvgym.experiments.journal import Journal
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.sweeping.sweep import PLAN_FILE, plan_of, sweep

PLAN = {
    "fields": {"rate": [10, 20], "num_requests": 60, "sarathi.token_budget": [128, 512]},
    "policies": ["fcfs", "sarathi"],
    "seeds": 2,
    "metrics": ["e2e_latency_mean", "ttft_p99"],
}


@pytest.fixture(scope="module")
def result():
    return sweep(PLAN)


def test_every_point_is_the_comparison_of_its_scenario(result):
    assert result.points == (
        {"rate": 10, "sarathi.token_budget": 128}, {"rate": 10, "sarathi.token_budget": 512},
        {"rate": 20, "sarathi.token_budget": 128}, {"rate": 20, "sarathi.token_budget": 512},
    )  # fmt: skip
    base = load_scenario("a100-llama2-70b")
    for i, point in enumerate(result.points):
        workload = {"preset": base.workload} if isinstance(base.workload, str) else base.workload
        scenario = base.override(workload={**workload, "rate": point["rate"], "num_requests": 60})
        budget = point["sarathi.token_budget"]
        own = compare(scenario, ["fcfs", f"sarathi:token_budget={budget}"], seeds=2)
        for policy, label in (("fcfs", "fcfs"), ("sarathi", f"sarathi:token_budget={budget}")):
            for metric in ("e2e_latency_mean", "ttft_p99", "evictions"):
                np.testing.assert_array_equal(result.values(i, policy, metric), own.values(label, metric))


def test_equal_runs_are_executed_once(result):
    assert len(result.runs) == 4 * 2 * 2
    assert result.num_distinct == result.num_new == 2 * 2 + 4 * 2  # fcfs has no budget
    assert result.values(0, "fcfs", "ttft_mean").tolist() == result.values(1, "fcfs", "ttft_mean").tolist()


def test_the_frame_has_a_row_per_point_policy_and_seed(result):
    frame = result.to_frame()
    assert len(frame) == 16
    assert frame.columns[:5] == ["rate", "sarathi.token_budget", "policy", "seed", "error"]
    row = list(frame.rows())[6]
    assert (row["rate"], row["sarathi.token_budget"], row["policy"], row["seed"]) == (10, 512, "sarathi", 0)
    assert row["ttft_p99"] == result.values(1, "sarathi", "ttft_p99")[0]
    assert set(frame["num_requests"]) == {60}


def test_saved_files_can_be_read(result, tmp_path):
    result.save(tmp_path, command="a test")
    assert pl.read_parquet(tmp_path / "runs.parquet").equals(pl.DataFrame(result.to_frame().to_dict()))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert len(summary["points"]) == 8
    assert (
        summary["points"][0]["e2e_latency_mean"]["value"]
        == result.estimate(0, "fcfs", "e2e_latency_mean").value
    )
    assert json.loads((tmp_path / "config.json").read_text())["plan"]["fields"]["rate"] == [10, 20]


@pytest.mark.parametrize("jobs", [2, None])
def test_processes_change_nothing(result, jobs):
    assert sweep(PLAN, jobs=jobs).to_frame().equals(result.to_frame())


def test_a_sweep_resumes_in_its_folder(result, tmp_path):
    seen = []

    def stop(text, done, total):
        seen.append((text, done, total))
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(PLAN, tmp_path, progress=stop)
    assert seen[0] == ("", 0, 12)
    with pytest.raises(ConfigError, match="has runs of a sweep; resume it"):
        sweep(PLAN, tmp_path)
    again = sweep(plan_of(tmp_path), tmp_path, resume=True)
    assert (again.num_distinct, again.num_new) == (12, 7)
    assert again.to_frame().equals(result.to_frame())
    whole = sweep(PLAN, tmp_path, resume=True)
    assert whole.num_new == 0
    assert whole.to_frame().equals(result.to_frame())
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 12


def test_another_plan_keeps_shared_runs(result, tmp_path):
    sweep(PLAN, tmp_path)
    more = sweep({**PLAN, "seeds": 3}, tmp_path, resume=True)
    assert (more.num_distinct, more.num_new) == (18, 6)
    changed = sweep({**PLAN, "fields": {**PLAN["fields"], "kv_capacity": 12_000}}, tmp_path, resume=True)
    assert changed.num_new == 12  # no outdated run is used
    assert plan_of(tmp_path).fixed["kv_capacity"] == 12_000


def test_the_run_of_an_incomplete_line_is_repeated(result, tmp_path):
    sweep(PLAN, tmp_path)
    file = tmp_path / "runs.jsonl"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    again = sweep(PLAN, tmp_path, resume=True)
    assert again.num_new == 1
    assert again.to_frame().equals(result.to_frame())
    lines = file.read_text().splitlines()
    assert len(lines) == 12
    assert all(json.loads(line)["key"] for line in lines)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *((f"{line}\n".encode(), r"line 1: .*not a run") for line in (
            "nonsense", "[]", '{"key": 3}', '{"key": "a", "metrics": {"speed": 1}}', '{"key": 3}\nmine'
        )),
        (b"my notes", "not a run"), (b'{"epoch": 3', "not a run"), (b"\xff\xfe\n", "line 1: not text"),
    ],
)  # fmt: skip
def test_files_that_are_not_journals_are_named_and_kept(tmp_path, content, says):
    (tmp_path / "runs.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"runs\.jsonl, {says}" if says.startswith("line") else says):
        Journal(tmp_path)
    assert (tmp_path / "runs.jsonl").read_bytes() == content


def test_one_process_at_a_time(tmp_path):
    with Journal(tmp_path), pytest.raises(ConfigError, match="works on it; wait until that has ended"):
        Journal(tmp_path)
    with Journal(tmp_path):
        pass


def test_figures_that_are_not_finite_survive(tmp_path):
    plan = {"fields": {"horizon": 0.1, "num_requests": 3}, "policies": ["fcfs"], "seeds": 1}
    first = sweep(plan, tmp_path)
    assert any(math.isnan(x) for played in first.runs.values() for x in played.record.metrics.values())
    again = sweep(plan, tmp_path, resume=True)
    assert again.num_new == 0
    assert again.to_frame().equals(first.to_frame())
    for played, known in zip(first.runs.values(), again.runs.values(), strict=True):
        assert json.dumps(played.record.metrics) == json.dumps(known.record.metrics)


def test_failed_runs_are_reported_and_the_others_continue(tmp_path):
    plan = {
        "fields": {"kv_capacity": [60, 16_492], "num_requests": 40, "rate": 10},
        "policies": ["fcfs"],
        "seeds": 2,
    }
    result = sweep(plan, tmp_path)
    assert np.isnan(result.values(0, "fcfs", "ttft_mean")).all()
    assert np.isfinite(result.values(1, "fcfs", "ttft_mean")).all()
    (error,) = result.errors()
    assert error.startswith("fcfs at kv_capacity = 60 (2 of 2 seeds): seed 0: ")
    assert sweep(plan, tmp_path, resume=True).num_new == 0  # a failure is a result
    assert result.to_frame()["error"].tolist()[2:] == ["", ""]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": {"rat": [1, 2]}}, "unknown field 'rat'"),
        ({"fields": {"rate": [1, 0]}}, "at rate = 0: "),
        ({"policies": ["fcfs", "fcfs"]}, "listed twice"),
        ({"policies": ["unknown"]}, "unknown policy 'unknown'"),
        ({"fields": {"hardware": ["llama2-70b-a100-tp2", "h200"]}}, "at hardware = h200: unknown hardware"),
    ],
)
def test_errors_are_raised_before_anything_runs(tmp_path, changes, message):
    plan = {**PLAN, "policies": ["fcfs"], "fields": {"rate": [1, 2], "num_requests": 10}, **changes}
    with pytest.raises(ConfigError, match=message):
        sweep(plan, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_plan_with_infinity_can_be_resumed(tmp_path):
    plan = {
        "fields": {"horizon": [5, math.inf], "num_requests": 20},
        "policies": ["fcfs"],
        "seeds": 1,
    }
    first = sweep(plan, tmp_path)
    assert plan_of(tmp_path) == first.plan
    assert sweep(plan_of(tmp_path), tmp_path, resume=True).num_new == 0
    assert first.values(1, "fcfs", "unfinished")[0] == 0 < first.values(0, "fcfs", "unfinished")[0]


def test_none_of_a_text_is_a_word():
    fields = {"predictions": [None, "exact"], "engine": "none,vllm-2023", "num_requests": 10}
    frame = sweep({"fields": fields, "policies": ["fcfs"], "seeds": 1}).to_frame()
    assert frame["predictions"].tolist() == ["none", "none", "exact", "exact"]
    assert frame["engine"].tolist() == ["none", "vllm-2023"] * 2


def test_the_frame_has_the_requested_values():
    result = sweep({"fields": {"num_requests": [10, 20]}, "policies": ["fcfs"], "seeds": 1})
    none = {place: replace(played, num_requests=0) for place, played in result.runs.items()}
    assert replace(result, runs=none).to_frame()["num_requests"].tolist() == [10, 20]


class Full:
    """A file on a disk that is full after a few lines."""

    def __init__(self, file, lines):
        self.file, self.lines = file, lines

    def write(self, text):
        if not self.lines:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.lines -= 1
        return self.file.write(text)

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_and_earlier_runs_are_kept(result, tmp_path, monkeypatch):
    opened = Journal.__init__

    def open_on_full_disk(self, folder):
        opened(self, folder)
        self._file = Full(self._file, 5)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "__init__", open_on_full_disk)
        with pytest.raises(
            KVGymError, match=r"runs\.jsonl: cannot be written: .*; the 5 earlier runs are kept"
        ):
            sweep(PLAN, tmp_path)
    again = sweep(plan_of(tmp_path), tmp_path, resume=True)
    assert again.num_new == 7
    assert again.to_frame().equals(result.to_frame())


def test_a_folder_without_a_plan(tmp_path):
    with pytest.raises(ConfigError, match="not the folder of a sweep"):
        plan_of(tmp_path)
    for text in ("{", "[]", '{"seeds": 0}'):
        (tmp_path / PLAN_FILE).write_text(text)
        with pytest.raises(ConfigError):
            plan_of(tmp_path)


SCRIPT = """
import json, sys
from kvgym.studies.sweeping.sweep import sweep
if __name__ == "__main__":
    sweep(json.loads(sys.argv[1]), sys.argv[2], resume=True, jobs=int(sys.argv[3]))
"""


@pytest.mark.parametrize("jobs", others_long([1, 2], {2}))
def test_nothing_is_lost_or_repeated_when_it_is_killed(tmp_path, jobs):
    plan = {
        "fields": {"rate": [5, 10, 20, 40], "num_requests": 150},
        "policies": ["fcfs", "sarathi"],
        "seeds": 12,
    }
    script, folder, file = tmp_path / "go.py", tmp_path / "runs", tmp_path / "runs" / "runs.jsonl"
    script.write_text(SCRIPT)
    rng = random.Random(jobs)
    counts = [0]
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(plan), str(folder), str(jobs)], start_new_session=True
        )
        more = counts[-1] + rng.randrange(1, 30)
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if file.exists() and file.read_bytes().count(b"\n") >= more:
                break
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        counts.append(file.read_bytes().count(b"\n"))
        assert counts[-1] > counts[-2]
    keys = [json.loads(line)["key"] for line in file.read_text().splitlines() if line.endswith("}")]
    assert len(set(keys)) == len(keys)
    after = sweep(plan, folder, resume=True)
    assert after.num_new == 96 - len(keys)
    assert after.to_frame().equals(sweep(plan).to_frame())
    assert len(Path(file).read_text().splitlines()) == 96


def test_a_replayed_trace_needs_one_seed(tmp_path):
    trace = write(tmp_path, OWN + "0.0,20,5\n0.5,30,4\n")
    fields = {"kv_capacity": [2000, 3000]}
    replayed = {"hardware": "llama2-70b-a100-tp2", "workload": {"trace": str(trace)}}
    plan = {"scenario": replayed, "fields": fields, "policies": ["fcfs"]}
    assert sweep(plan).seeds == (0,)
    assert sweep({**plan, "seeds": 2}).seeds == (0, 1)
    assert sweep({"fields": {**fields, "num_requests": 5}, "policies": ["fcfs"]}).seeds == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("fields", "policy", "names"),
    [
        ({"hardware.gpu": ["l4", "h100"]}, "vllm_v1",
         "1 of 2 points: vllm_v1 runs as vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024."),
        ({"vllm_v1.max_num_batched_tokens": 512}, "vllm_v1",
         "vllm_v1:max_num_batched_tokens=512 runs as vllm_v1:max_num_batched_tokens=512,max_num_seqs=512."),
        ({"rate": 5}, "vllm_v1:max_num_batched_tokens=512,max_num_seqs=9", ""),
        ({"rate": 5}, "fcfs", ""),
    ],
)  # fmt: skip
def test_defaults_that_depend_on_the_system_are_noted(fields, policy, names):
    fixed = {"num_requests": 5, "hardware.model": "llama3-8b", "hardware.gpu": "h100"}
    plan = {"fields": {**fields, **fixed, **fields}}
    result = sweep({**plan, "policies": [policy], "seeds": 1})
    assert [note for note in result.notes() if "runs as" in note] == [names] * bool(names)
