"""The script that compares whole servers with their logs, on a small log and a load stage of its own."""

import csv
import json

import pytest

from scripts import validate_servers

STAGE = {
    "experiment": "x-tp1-general", "model": "meta-llama/Llama-2-7b-hf", "tensor_parallel": 1, "rate": 5.0,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "requested_output_len": 11,
    "requests": 20, "duration_s": 4.0, "system_prompts": 2, "users_per_system_prompt": 2, "system_prompt_len": 40,
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


def test_tables(folder):
    ((name, replay),) = validate_servers.replays(folder)
    assert (name, replay.scenario.kv_capacity, len(replay.log)) == ("rtx4090", 8000, 5)
    assert replay.result.policy.hyperparameters() == {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    assert validate_servers.log_table(folder).splitlines()[2].startswith("| rtx-4090, fitted | ")
    row = validate_servers.stage_table(folder).splitlines()[2].split(" | ")
    # (0.12 - 0.02) s over the 10 gaps of 11 tokens.
    assert row[:7] == ["| llama2-7b", "1", "general", "5", "0.12", "20", "10.0"]
    stage = {name: str(value) for name, value in STAGE.items()}
    e2e, first, hits = validate_servers.stage_figures(stage)
    assert row[8:10] == [validate_servers.percent(e2e / 0.12 - 1), validate_servers.percent(first / 0.02 - 1)]
    # Of 20 prompts of 100 tokens in blocks of 16, the first user of a group finds nothing, the second one the 2 blocks
    # of the system prompt, unless it comes with the first (one does), and later turns find all 6 blocks.
    assert hits == pytest.approx((1 * 32 + 16 * 96) / 2000)
    lean, _, _ = validate_servers.stage_figures(stage, validate_servers.LEAN)
    assert lean < e2e


def test_users_send_their_prompts_in_turn():
    table = validate_servers.stage_requests({name: str(value) for name, value in STAGE.items()})
    assert (len(table), table.arrival_time[-1]) == (20, pytest.approx(4.0))
    chains = table.chains(16)
    found = [
        chains.chain[s : s + n].tolist() for s, n in zip(chains.chain_start, chains.chain_len, strict=True)
    ]
    assert found[0] == found[4] == found[16]
    common = [sum(a == b for a, b in zip(found[0], found[k], strict=True)) for k in range(1, 4)]
    assert common == [2, 0, 0]  # the system prompt has 2 full blocks
