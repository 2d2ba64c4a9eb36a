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
    ((gpu, replay),) = validate_servers.replays(folder).items()
    assert (gpu, replay.scenario.kv_capacity, len(replay.log)) == ("rtx-4090", 8000, 5)
    limits = replay.result.policy.hyperparameters()
    assert (limits["max_num_seqs"], limits["max_num_batched_tokens"]) == (64, 512)
    assert validate_servers.log_table(folder).splitlines()[2].startswith("| rtx-4090, fitted | ")
    ((stage,), row) = validate_servers.stages(folder), validate_servers.stage_table(folder).splitlines()[2]
    # (0.12 - 0.02) s over the 10 gaps of 11 tokens.
    assert row.split(" | ")[:7] == ["| llama2-7b", "1", "general", "5", "0.12", "20", "10.0"]
    e2e, ttft, token = stage.simulated
    assert token == pytest.approx((e2e - ttft) / 10)
    assert stage.errors == pytest.approx((e2e / 0.12 - 1, ttft / 0.02 - 1, token / 0.01 - 1))
    assert row.split(" | ")[8:10] == [f"{100 * error:+.1f} %" for error in stage.errors[:2]]
    # Of 20 prompts of 100 tokens in blocks of 16, the first user of a group finds nothing, the second one the 2 blocks
    # of the system prompt, unless it comes with the first (one does), and later turns find all 6 blocks.
    assert stage.hits == pytest.approx((1 * 32 + 16 * 96) / 2000)
    assert validate_servers.peers_table(validate_servers.stage_medians(folder)).endswith(
        f"| {' | '.join(f'{100 * abs(error):.1f} %' for error in stage.errors)} |"
    )
    # No rows at fixed concurrency: a stage and a log.
    lines = validate_servers.accuracy_table(folder).splitlines()[2:]
    assert [line.split(" | ")[5:7] for line in lines] == [
        ["0.015 + 0, fitted", "1 stages"],
        ["0.015 + 0, fitted", "5 requests"],
    ]
    assert all(f" {100 * abs(error):.1f}, " in lines[0] for error in stage.errors)


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
