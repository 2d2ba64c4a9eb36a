"""Run clients of other projects, from their own packages, against ``kvgym server mock``, and read what they write.

    python -m venv clients && clients/bin/pip install guidellm aiperf transformers
    python scripts/checks/run_clients.py clients/bin/python --clients guidellm,aiperf
    python3.12 -m venv another && another/bin/pip install inference-perf
    python scripts/checks/run_clients.py another/bin/python --clients inference-perf

Each client sends 20 requests; its log must have as many, each with the requested tokens. Not part of CI: the packages
and what they need are gigabytes, and inference-perf wants a transformers of its own. Those that count prompts get a
tokenizer of words that is made here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from kvgym.experiments.changes import build_scenario
from kvgym.policies.policy import make_policy
from kvgym.servers import read_served
from kvgym.servers.endpoint.mock import MockServer
from kvgym.servers.endpoint.online import OnlineRun

REQUESTS, WORDS, OUTPUT = 20, 41, 12

TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {"<unk>": 0, "<eos>": 1, "word": 2, "token": 3}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<eos>").save_pretrained(sys.argv[1])
"""


def guidellm(python: str, url: str, folder: Path) -> Path:
    """Run GuideLLM and return its report."""
    rows = [{"prompt": prompt(i), "output_tokens_count": OUTPUT} for i in range(REQUESTS)]
    written(folder / "guidellm.jsonl", rows)
    out = folder / "benchmarks.json"
    options = {
        "--backend": f"kind=openai_http,target={url}",
        "--data": f"kind=json_file,path={folder / 'guidellm.jsonl'}",
        "--profile": "kind=concurrent,streams=4",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--output": f"kind=json,path={out}",
    }
    program = Path(python).with_name("guidellm")
    run([program, "run", *(x for pair in options.items() for x in pair), "--disable-console"])
    return out


def aiperf(python: str, url: str, folder: Path) -> Path:
    """Run AIPerf and return its records."""
    written(folder / "aiperf.jsonl", [{"text": prompt(i)} for i in range(REQUESTS)])
    run([python, "-c", TOKENIZER, folder / "tokenizer"])
    options = {
        "--url": url, "--model": "kvgym", "--endpoint-type": "completions", "--ui": "none",
        "--input-file": folder / "aiperf.jsonl", "--custom-dataset-type": "single_turn",
        "--tokenizer": folder / "tokenizer", "--request-count": REQUESTS, "--concurrency": 4,
        "--extra-inputs": f"max_tokens:{OUTPUT}", "--artifact-dir": folder / "aiperf",
    }  # fmt: skip
    flags = ["--streaming", "--use-server-token-count"]
    run([python, "-m", "aiperf", "profile", *(x for pair in options.items() for x in pair), *flags])
    (found,) = (folder / "aiperf").rglob("profile_export.jsonl")
    return found


def inference_perf(python: str, url: str, folder: Path) -> Path:
    """Run inference-perf and return its records; it draws the prompts."""
    run([python, "-c", TOKENIZER, folder / "tokenizer"])
    drawn = {
        f"{name}_distribution": {
            "type": "fixed", "min": length, "max": length, "mean": length, "std_dev": 0, "total_count": REQUESTS
        }
        for name, length in (("input", WORDS), ("output", OUTPUT))
    }  # fmt: skip
    config = {
        "server": {"type": "vllm", "model_name": "kvgym", "base_url": url, "ignore_eos": True},
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", **drawn},
        "load": {"type": "constant", "num_workers": 1, "stages": [{"rate": REQUESTS, "duration": 1}]},
        "tokenizer": {"pretrained_model_name_or_path": str(folder / "tokenizer")},
        "report": {"request_lifecycle": {"per_request": True}},
        "storage": {"local_storage": {"path": str(folder / "inference-perf")}},
    }
    (folder / "config.yml").write_text(json.dumps(config))  # which YAML includes
    run([Path(python).with_name("inference-perf"), "--config_file", folder / "config.yml"])
    return folder / "inference-perf" / "per_request_lifecycle_metrics.json"


CLIENTS = {"guidellm": guidellm, "aiperf": aiperf, "inference-perf": inference_perf}


def prompt(number: int) -> str:
    """Return a prompt of :data:`WORDS` words."""
    return f"{number} " + " ".join(["word"] * (WORDS - 1))


def written(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(command: list[object]) -> None:
    """Run a client; its output is shown if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def main() -> None:
    """Run the clients and check their logs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python", help="Python of the environment with the clients")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="comma-separated")
    options = parser.parse_args()
    server = MockServer(OnlineRun(build_scenario("vllm-v1").make_system(), make_policy("vllm_v1")))
    server.start()
    try:
        for name in options.clients.split(","):
            with tempfile.TemporaryDirectory() as folder:
                log = read_served(CLIENTS[name](options.python, server.url.removesuffix("/v1"), Path(folder)))
            if log.output_len.tolist() != [OUTPUT] * REQUESTS:
                sys.exit(f"{name}: outputs {log.output_len.tolist()}; expected {REQUESTS} of {OUTPUT} tokens")
            print(
                f"{name}: {len(log)} of {REQUESTS} requests, TTFT {1e3 * log.ttft.mean():.1f} ms, TBT "
                f"{1e3 * log.tbt.mean():.2f} ms"
            )
    finally:
        server.close()


if __name__ == "__main__":
    main()
