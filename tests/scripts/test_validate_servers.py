"""The script that compares whole servers with their logs, on a small log and a load stage of its own."""

import csv
import json

import pytest

from scripts import validate_servers

STAGE = {
    "experiment": "x-tp1-general", "model": "meta-llama/Llama-2-7b-hf", "tensor_parallel": 1, "rate": 5.0,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "requested_output_len": 11, "requests_per_sec": 5.0,
    "e2e_mean_s": 0.12, "ttft_mean_s": 0.02, "prompt_len_mean": 100,
    **{f"prompt_len_{name}": 100 for name in ("p10", "median", "p90", "p99", "max")},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    rows = [
        {"input_toks": 100, "output_toks": 5, "arrival_time": 7.0 + k, "queued_ts": 1.0 + k, "first_token_ts": 1.1 + k,
         "last_token_ts": 1.2 + k}
        for k in range(5)
    ]  # fmt: skip
    (tmp_path / "rtx4090_x.requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    meta = {
        "engine_kwargs": {
            "model": "meta-llama/Llama-3.1-8B",
            "max_num_seqs": 64,
            "max_num_batched_tokens": 512,
        },
        "kv_cache": {"num_kv_tokens": 8000},
    }
    (tmp_path / "rtx4090_x.meta.json").write_text(json.dumps(meta))
    with (tmp_path / "vllm_h100.csv").open("w") as file:
        writer = csv.DictWriter(file, list(STAGE))
        writer.writeheader()
        writer.writerow(STAGE)
    return tmp_path


def test_tables(folder, monkeypatch):
    monkeypatch.setattr(validate_servers, "STAGE_REQUESTS", 20)
    ((name, replay),) = validate_servers.replays(folder)
    assert (name, replay.scenario.kv_capacity, len(replay.log)) == ("rtx4090", 8000, 5)
    assert replay.result.policy.hyperparameters() == {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    assert validate_servers.log_table(folder).splitlines()[2].startswith("| rtx-4090, fitted | ")
    row = validate_servers.stage_table(folder).splitlines()[2].split(" | ")
    # (0.12 - 0.02) s over the 10 gaps of 11 tokens.
    assert row[:7] == ["| llama2-7b", "1", "general", "5", "0.12", "20", "10.0"]
    e2e, first = validate_servers.stage_figures({name: str(value) for name, value in STAGE.items()})
    assert row[7:9] == [validate_servers.percent(e2e / 0.12 - 1), validate_servers.percent(first / 0.02 - 1)]


def test_beyond_a_factor_the_server_is_overloaded():
    assert [validate_servers.percent(x) for x in (0.034, -0.5, 12.0)] == ["+3.4 %", "-50.0 %", "overload"]
