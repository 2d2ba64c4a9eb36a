"""Time the native vector environment, ends and new episodes included, alone or against another checkout.

Each checkout plays a case in its own process; they alternate and play the same steps from the same seeds. Each step
counts with its least CPU time of some repetitions, so that other work on the machine hardly matters; the result is the
mean over steps. Compare ratios: nanoseconds depend on the machine. Greedy admissions keep the worker busy. With a full
queue, requests arrive faster than they are served.

    python scripts/speed/vectors.py                             # this checkout: minutes
    python scripts/speed/vectors.py --against ../kvgym-before   # with another one: ratios
    python scripts/speed/vectors.py --threads 1 2               # values of num_threads, wall time
    python scripts/speed/vectors.py --against ../kvgym-before --train   # PPO with 256 environments
    python scripts/speed/vectors.py --smoke                     # seconds: checks that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}
NARROW: dict[str, Any] = {
    "scenario": "a100-llama2-70b",
    "queue_window": 16,
    "active_window": 16,
    "must_admit": False,
    "token_scale": "capacity",
}
"""Arguments of AdmitCount with short observations."""
BATCH_TIMES: dict[str, dict[str, Any]] = {"affine": {"batch_time": AFFINE}, "profile": {}}
QUEUES: dict[str, dict[str, Any]] = {
    "empty": {**NARROW, "num_requests": 256},
    "full": {**NARROW, "num_requests": 384, "rate": 400.0, "kv_capacity": 6000},
}
STEPS = 1500


class Player:
    """A process that plays cases with the code of a checkout."""

    def __init__(self, checkout: Path) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), "--player"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout,
        )  # fmt: skip

    def __enter__(self) -> Player:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def ask(self, what: dict[str, Any]) -> Any:
        """Send a case, and return the figures."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the player has ended; its error is above")
        return json.loads(line)


def cases(counts: list[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and arguments of each case."""
    for count in counts:
        for queue, load in QUEUES.items():
            for times, task in BATCH_TIMES.items():
                yield f"{count} environments, queue {queue}, {times}", {"num_envs": count, **load, **task}


def play(arguments: dict[str, Any], steps: int, wall: bool) -> dict[str, Any]:
    """Play a case from its beginning; runs in a player.

    Returns:
        Seconds of each step, the number of episodes that ended, and the mean number of requests that waited.
    """
    from kvgym.envs.scheduling.vector_environment import ServingVectorEnv

    key = json.dumps(arguments)
    if key not in _ENVS:
        _ENVS.clear()  # one at a time in memory
        _ENVS[key] = ServingVectorEnv(action="admit_count", **arguments)
    envs, clock, spent, ends, waiting = (
        _ENVS[key],
        time.perf_counter if wall else time.thread_time,
        [],
        0,
        0.0,
    )
    masks = envs.reset(seed=0)[1]["action_mask"]
    for k in range(steps):
        actions = masks.sum(axis=1) - 1
        begun = clock()
        _, _, terminated, truncated, info = envs.step(actions)
        spent.append(clock() - begun)
        masks = info["action_mask"]
        ends += int((terminated | truncated).sum())
        if k % 50 == 0:
            blocks = [slot.block["workers"][0] for slot in envs.episodes.slots[:64]]
            waiting += sum(int(worker["num_waiting"]) for worker in blocks) / len(blocks)
    return {"seconds": spent, "ends": ends, "waiting": waiting / len(range(0, steps, 50))}


_ENVS: dict[str, Any] = {}


def serve() -> None:
    """Play the cases from standard input."""
    for line in sys.stdin:
        what = json.loads(line)
        if "algorithm" in what:
            from training import train_fps

            answer: Any = train_fps(**what)
        else:
            answer = play(**what)
        print(json.dumps(answer), flush=True)


def measure(
    players: dict[str, Player], arguments: dict[str, Any], steps: int, repeats: int, wall: bool = False
) -> dict[str, Any]:
    """Return figures of each player; they alternate.

    Returns:
        ``ns``: nanoseconds per environment and step. ``longest``: the longest step as a multiple of the median one.
        ``ends``: episodes that ended. ``waiting``: mean number of requests that waited.
    """
    for player in players.values():
        player.ask({"arguments": arguments, "steps": 2, "wall": wall})  # compile
    seconds: dict[str, list[float]] = {}
    last: dict[str, Any] = {}
    for _ in range(repeats):
        for name, player in players.items():
            last = player.ask({"arguments": arguments, "steps": steps, "wall": wall})
            fastest = seconds.get(name, last["seconds"])
            seconds[name] = [min(pair) for pair in zip(fastest, last["seconds"], strict=True)]
    per_step = 1e9 / (steps * arguments["num_envs"])
    return {
        "ns": {name: sum(values) * per_step for name, values in seconds.items()},
        "longest": {name: max(values) / statistics.median(values) for name, values in seconds.items()},
        "ends": last["ends"],
        "waiting": last["waiting"],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--counts", type=int, nargs="+", default=[256, 1024], help="numbers of environments")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each environment")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions; the fastest counts")
    parser.add_argument("--threads", type=int, nargs="+", help="values of num_threads to compare, wall time")
    parser.add_argument("--train", action="store_true", help="time training with Stable-Baselines3 only")
    parser.add_argument("--player", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.player:
        serve()
        return
    steps, repeats = (4, 1) if options.smoke else (options.steps, options.repeats)
    counts = [4] if options.smoke else options.counts
    with ExitStack() as stack:
        players = {"here": stack.enter_context(Player(HERE.parents[2]))}
        if options.against is not None:
            players["before"] = stack.enter_context(Player(options.against.resolve()))
        results = compare(options, players, counts, steps, repeats)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def compare(
    options: argparse.Namespace, players: dict[str, Player], counts: list[int], steps: int, repeats: int
) -> dict[str, Any]:
    """Run the chosen benchmark and return its figures."""
    results: dict[str, Any] = {}
    if options.train:
        training = {"envs": 8, "rollouts": 1} if options.smoke else {"envs": 256, "rollouts": 6}
        for algorithm in ("PPO", "MaskablePPO"):
            task = {**NARROW, "num_requests": 256, "batch_time": AFFINE}
            for name, player in players.items():
                asked = {"algorithm": algorithm, "task": task, **training}
                found = [player.ask(asked) for _ in range(repeats)]
                results[f"{algorithm}, {name}"] = max(found, key=lambda figures: figures["fps"])
                print(f"{algorithm}, {name}: {results[f'{algorithm}, {name}']}", flush=True)
    elif options.threads:
        for name, arguments in cases(counts):
            for threads in options.threads:
                case = {**arguments, "num_threads": threads}
                found = measure({"here": players["here"]}, case, steps, repeats, wall=True)
                results[f"{name}, {threads} threads"] = found
                print(f"{name}, {threads} threads: {found['ns']['here']:.0f} ns", flush=True)
    else:
        print(
            "| case | requests waiting | ends | ns per step | longest / median | before | before / now |\n"
            "|---|---|---|---|---|---|---|"
        )
        for name, arguments in cases(counts):
            found = results[name] = measure(players, arguments, steps, repeats)
            now, before = found["ns"]["here"], found["ns"].get("before")
            other = "– | –" if before is None else f"{before:.0f} | {before / now:.2f}"
            print(
                f"| {name} | {found['waiting']:.0f} | {found['ends']} | {now:.0f} | "
                f"{found['longest']['here']:.1f} | {other} |",
                flush=True,
            )
    return results


if __name__ == "__main__":
    main()
