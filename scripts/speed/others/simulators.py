"""Time other simulators of LLM serving with the same requests, and compare when the last request ends.

Each is timed in an environment of its own, which its Python stands for:

    python3.11 -m venv others && others/bin/pip install "aisimulate>=0.13.0.dev0" sched-sim
    python scripts/speed/others/simulators.py --aisimulate others/bin/python --sched-sim others/bin/python   # a minute
    python scripts/speed/others/simulators.py --smoke                          # seconds: kvgym alone, tiny sizes

One server, first come, first served, chunks of prompts beside decodes (``vllm_v1``): 16,384 blocks of 16 tokens, at
most 128 requests and 2,048 tokens in a batch. Prompts of 50 to 1,500 tokens, outputs of 10 to 400, Poisson arrivals at
a rate that the server sustains, 14 and 2.6 requests a second: sched-sim does not keep the limit of requests, and above
that rate it comes to no end when its memory is full.

Batch times are those of the other one, so that both do the same work:

* aisimulate (NVIDIA, Rust) adds a time for prefills and a time for decodes, here 20 ms and 10 ms, also where one batch
  has both;
* sched-sim (Python) takes kvgym's affine time, 20 ms, 0.1 ms per prompt token and 1 us per KV token, through a subclass
  of its latency model.

Times are CPU seconds of a whole run after imports, the fastest of several: kvgym's with its checks and metrics, those
of the others with reading the requests and their report.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCKS, BLOCK, MOST_REQUESTS, MOST_TOKENS = 16_384, 16, 128, 2_048
PREFILL, DECODE = 0.020, 0.010  # s, aisimulate's
CONSTANT, PER_PREFILL_TOKEN, PER_CONTEXT_TOKEN = 0.02, 1e-4, 1e-6  # s, sched-sim's


def requests(count: int, rate: float) -> list[tuple[float, int, int]]:
    """Return arrival times in seconds, prompts and outputs in tokens."""
    rng, now, rows = random.Random(0), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        rows.append((now, rng.randint(50, 1500), rng.randint(10, 400)))
    return rows


def play_aisimulate(rows: list[tuple[float, int, int]]) -> float:
    """Return when the last request ends, seconds."""
    from aisimulate import BackendDeploymentSpec, EngineReplayRunnerFactory, ReplaySpec

    engine = {
        "engine_type": "vllm",
        "num_gpu_blocks": BLOCKS,
        "block_size": BLOCK,
        "max_num_seqs": MOST_REQUESTS,
        "max_num_batched_tokens": MOST_TOKENS,
        "enable_prefix_caching": False,
        "timing_model": {"type": "fixed", "prefill_ms": 1e3 * PREFILL, "decode_ms": 1e3 * DECODE},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        blocks = 0
        for arrival, prompt, output in rows:
            hashes = list(range(blocks, blocks := blocks - (-prompt // 512)))
            row = {"timestamp": 1e3 * arrival, "input_length": prompt, "output_length": output}
            trace.write(json.dumps({**row, "hash_ids": hashes}) + "\n")
        trace.flush()
        spec = ReplaySpec(
            BackendDeploymentSpec("agg", "vllm", "", agg_engine_args=engine, num_workers=1),
            {"trace_format": "mooncake", "trace_block_size": 512, "trace_path": trace.name},
            {"target": "throughput", "sla": None},
        )
        report = EngineReplayRunnerFactory().create(0).run(spec)
    if report.metrics["completed_requests"] != len(rows):
        raise RuntimeError(f"aisimulate completed {report.metrics['completed_requests']} of {len(rows)}")
    return float(report.metrics["duration_ms"]) / 1e3 + rows[0][0]


def play_sched_sim(rows: list[tuple[float, int, int]]) -> float:
    """Return when the last request ends, seconds."""
    from sched_sim.core.event_engine import Simulator
    from sched_sim.core.request import Request
    from sched_sim.hardware.latency_model import RooflineLatencyModel
    from sched_sim.hardware.profile import HardwareProfile
    from sched_sim.memory.block_manager import BlockManager
    from sched_sim.memory.preemption import PreemptionHandler
    from sched_sim.schedulers.chunked import ChunkedPrefillScheduler

    class Affine(RooflineLatencyModel):
        def compute_mixed_step_time(self, prefill: int, decodes: int, context: int) -> float:
            return CONSTANT + PER_PREFILL_TOKEN * prefill + PER_CONTEXT_TOKEN * context

        def compute_prefill_step_time(self, prefill: int) -> float:
            return self.compute_mixed_step_time(prefill, 0, 0)

        def compute_decode_step_time(self, decodes: int, context: int) -> float:
            return self.compute_mixed_step_time(0, decodes, context)

    hardware = HardwareProfile()
    memory = (BLOCKS + 0.5) * BLOCK * hardware.kv_bytes_per_token / 2**30
    hardware.vram_gb = hardware.model_weights_gb + 0.5 + memory
    blocks, times = BlockManager(hardware, BLOCK), Affine(hardware)
    scheduler = ChunkedPrefillScheduler(
        blocks, times, PreemptionHandler(blocks, times), MOST_REQUESTS, MOST_TOKENS
    )
    simulator = Simulator(hardware, scheduler, block_size=BLOCK)
    simulator.submit_workload(
        [
            Request(request_id=str(i), arrived_at=arrival, prompt_tokens=prompt, output_tokens=output)
            for i, (arrival, prompt, output) in enumerate(rows)
        ]
    )
    simulator.run()
    return max(request.completed_at for request in simulator.all_requests)


def our_system(other: str) -> Any:
    """Return kvgym's system with the batch times of the other simulator."""
    import numpy as np

    import kvgym
    from kvgym.batch_time.models.affine import AffineBatchTime
    from kvgym.experiments.scenario_options import RULES
    from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel

    @batch_time_kernel
    def apart(load: Any, params: Any) -> Any:
        return params[0] * min(load.num_prefills, 1) + params[1] * min(load.num_decodes, 1)

    class Apart(BatchTimeModel):
        kernel = apart

        def params(self) -> Any:
            return np.array([PREFILL, DECODE])

    affine = AffineBatchTime(CONSTANT, PER_PREFILL_TOKEN, 0.0, PER_CONTEXT_TOKEN, include_new=False)
    return kvgym.System(
        BLOCKS * BLOCK,
        Apart() if other == "aisimulate" else affine,
        **RULES["engine"],
    )


def our_table(rows: list[tuple[float, int, int]]) -> Any:
    """Return the requests as kvgym's table."""
    import kvgym

    arrival, prompt, output = zip(*rows, strict=True)
    return kvgym.RequestTable.from_columns(arrival_time=arrival, prompt_len=prompt, output_len=output)


def play_kvgym(system: Any, table: Any) -> float:
    """Return when the last request ends, seconds."""
    import kvgym

    policy = f"vllm_v1:max_num_batched_tokens={MOST_TOKENS},max_num_seqs={MOST_REQUESTS}"
    result = kvgym.simulate(system, table, policy)
    kvgym.compute_metrics(result)
    return float(result.requests["finish_time"].max())


OTHERS = {"aisimulate": play_aisimulate, "sched-sim": play_sched_sim}
RATES = {"aisimulate": 14.0, "sched-sim": 2.6}
"""Requests per second."""


def fastest(play: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Return the least CPU seconds of a run, and when its last request ends."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        end = play()
        times.append(time.process_time() - started)
    return min(times), end


def main() -> None:
    """Time kvgym and the simulators that are given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in OTHERS:
        parser.add_argument(f"--{name}", metavar="PYTHON", help="the Python that has it")
    parser.add_argument("--play", nargs=2, metavar=("NAME", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    options = vars(parser.parse_args())
    if options["play"]:
        name, count = options["play"][0], int(options["play"][1])
        rows = requests(count, RATES[name])
        print(json.dumps(fastest(lambda: OTHERS[name](rows), 3)))
        return
    print(
        "| requests | simulator | CPU s | kvgym, ms | ratio | last end, s | kvgym, s |\n|---|---|---|---|---|---|---|"
    )
    for name in OTHERS:
        for count in (20,) if options["smoke"] else (1_000, 10_000):
            rows = requests(count, RATES[name])
            ours = (our_system(name), our_table(rows))
            play_kvgym(*ours)  # compile
            seconds, end = fastest(lambda ours=ours: play_kvgym(*ours), 1 if options["smoke"] else 15)
            python, other, other_end = options[name.replace("-", "_")], "", ""
            ratio = ""
            if python is not None:
                command = [python, str(Path(__file__).resolve()), "--play", name, str(count)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                other_seconds, last = json.loads(done.stdout.splitlines()[-1])
                other, ratio, other_end = (
                    f"{other_seconds:.3f}",
                    f"{other_seconds / seconds:,.0f}",
                    f"{last:.3f}",
                )
            print(
                f"| {count:,} | {name} | {other} | {1e3 * seconds:.2f} | {ratio} | {other_end} | {end:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
