"""Compare the engine with equivalent C code, as a lower bound of its time.

``floors.c`` plays three policies on the same requests as kvgym: with finish times only, with all records updated at
events, and with all records updated for every request in every iteration, as the engine does. First it checks that both
record the same bits. Then all variants run alternately in one process, each from new tables; times are the least CPU
times of many runs, without set-up. It needs a C compiler: ``cc``, or the one named by ``CC``.

    python scripts/speed/floors.py                    # 10,000 requests, under a minute
    python scripts/speed/floors.py --million          # 1,000,000 as well, about 2 minutes
    python scripts/speed/floors.py --smoke            # seconds: checks that it runs; its figures mean nothing
    python scripts/speed/floors.py --json out.json    # results as JSON as well
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from harness import AFFINE, command_line, prepare, write_json
from kvgym import RequestTable, System, make_batch_time, make_workload
from kvgym.baselines.iteration_level import Sarathi
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import GAP_BINS, GAP_MIN_EXPONENT, GAP_OCTAVES

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")
"""Contraction is off, as it would round differently from the engine."""

RULES = ("mc_sf", "sarathi", "fcfs")
RECORDS = ("finish", "events", "tokens")
COMPARED = {
    "start_time": "start",
    "first_token_time": "first",
    "finish_time": "finish",
    "max_token_gap": "gap",
}


class Instance(ctypes.Structure):
    """Requests, settings and records; ``Instance`` of floors.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("n", "capacity", "budget", "max_requests", "longest")),
        *((name, ctypes.c_void_p) for name in ("arrival", "prompt", "output")),
        *((name, ctypes.c_double) for name in ("constant", "per_prefill", "per_decode", "per_context")),
        *((name, ctypes.c_int64) for name in ("gap_bins", "gap_octaves", "gap_exponent")),
        *((name, ctypes.c_void_p) for name in ("start", "first", "finish", "gap", "gap_counts", "gap_sums")),
    )


@dataclass(frozen=True)
class Floor:
    """A run of the C program, ready to play; ``records`` are filled as it runs."""

    library: Any
    world: int
    rule: str
    detail: str
    records: dict[str, NDArray[Any]]
    inputs: tuple[NDArray[Any], ...]  # kept alive

    def play(self) -> int:
        """Play to the end; return the number of iterations."""
        return int(self.library.floor_play(self.world, RULES.index(self.rule), RECORDS.index(self.detail)))

    def close(self) -> None:
        """Free the memory."""
        self.library.floor_close(self.world)


def compiler() -> str | None:
    """Return the path of the C compiler, None if there is none."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(folder: Path) -> Any:
    """Compile the C program into a folder and load it.

    Raises:
        SystemExit: there is no compiler, or it rejects the program.
    """
    found = compiler()
    if found is None:
        name = os.environ.get("CC", "cc")
        raise SystemExit(f"floors.py needs a C compiler, and there is no {name}; set the variable CC to one")
    path = folder / "floors.so"
    done = subprocess.run(
        [found, *FLAGS, str(SOURCE), "-o", str(path), "-lm"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{found} could not compile {SOURCE}:\n{done.stderr}")
    library: Any = ctypes.CDLL(str(path))
    library.floor_open.restype = ctypes.c_void_p
    library.floor_open.argtypes = (ctypes.c_void_p,)
    library.floor_play.restype = ctypes.c_int64
    library.floor_play.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    library.floor_close.argtypes = (ctypes.c_void_p,)
    return library


def open_floor(library: Any, system: System, table: RequestTable, rule: str, detail: str) -> Floor:
    """Set up a run in C.

    Args:
        library: from :func:`build`.
        system: one worker with affine batch times (``include_new``), blocks of one token and default rules.
        table: the requests; MC-SF predicts their true output lengths.
        rule: one of RULES.
        detail: one of RECORDS.
    """
    n, model, sarathi = len(table), system.batch_time, Sarathi()
    assert isinstance(model, AffineBatchTime)
    arrival = np.ascontiguousarray(table.arrival_time, np.float64)
    prompt, output = (np.ascontiguousarray(a, np.int32) for a in (table.prompt_len, table.output_len))
    records: dict[str, NDArray[Any]] = {name: np.full(n, np.nan) for name in ("start", "first", "finish")}
    records |= {
        "gap": np.zeros(n),
        "gap_counts": np.zeros(GAP_BINS, np.int64),
        "gap_sums": np.zeros(GAP_BINS),
    }
    seconds = [getattr(model, f"per_{name}_token") for name in ("prefill", "decode", "context")]
    instance = Instance(
        n,
        system.kv_capacity,
        sarathi.token_budget,
        sarathi.max_batch_requests,
        int(table.output_len.max()),
        *(a.ctypes.data for a in (arrival, prompt, output)),
        model.constant,
        *seconds,
        GAP_BINS,
        GAP_OCTAVES,
        GAP_MIN_EXPONENT,
        *(a.ctypes.data for a in records.values()),
    )
    world = library.floor_open(ctypes.byref(instance))
    return Floor(library, world, rule, detail, records, (arrival, prompt, output))


def differences(simulation: Simulation, floor: Floor) -> list[str]:
    """Return the columns that differ between C and the engine; a ``finish`` floor has only finish times."""
    theirs = {column: simulation.requests[column] for column in COMPARED}
    theirs |= {"gap_counts": simulation.gap_counts[:GAP_BINS], "gap_sums": simulation.gap_sums[:GAP_BINS]}
    names = {**COMPARED, "gap_counts": "gap_counts", "gap_sums": "gap_sums"}
    return [
        column
        for column, name in names.items()
        if (floor.detail != "finish" or name == "finish")
        and not np.array_equal(theirs[column], floor.records[name], equal_nan=True)
    ]


def compare(library: Any, system: System, table: RequestTable, repeats: int) -> list[dict[str, Any]]:
    """Check that C and the engine record the same, then time them alternately; return a row for each policy.

    Raises:
        SystemExit: they differ.
    """
    rows = []
    for rule in RULES:
        least: dict[str, float] = {}
        for repeat in range(repeats):
            simulation, run = prepare(system, table, rule, True)
            _note(least, "kvgym", run)
            for detail in RECORDS:
                floor = open_floor(library, system, table, rule, detail)
                _note(least, detail, floor.play)
                if repeat == 0 and (wrong := differences(simulation, floor)):
                    raise SystemExit(f"{rule}: C ({detail}) and the engine differ in {', '.join(wrong)}")
                floor.close()
        iterations = int(simulation.workers["iteration"].sum())
        rows.append({"requests": len(table), "rule": rule, "iterations": iterations, **least})
        print(_row(rows[-1]), flush=True)
    return rows


def _note(least: dict[str, float], name: str, run: Any) -> None:
    """Run a function once, and keep its least CPU time so far, milliseconds."""
    started = time.thread_time()
    run()
    least[name] = min(least.get(name, np.inf), 1e3 * (time.thread_time() - started))


HEAD = """| requests | rule | iterations | C, finish, ms | C, by event | C, by token | kvgym | kvgym / C by token |
|---|---|---|---|---|---|---|---|"""


def _row(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    times = " | ".join(f"{row[name]:.2f}" for name in (*RECORDS, "kvgym"))
    ratio = row["kvgym"] / row["tokens"]
    return f"| {row['requests']:,} | {row['rule']} | {row['iterations']:,} | {times} | {ratio:.2f} |"


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__)
    parser.add_argument("--million", action="store_true", help="1,000,000 requests as well")
    parser.add_argument("--repeats", type=int, default=101, help="repetitions with 10,000 requests")
    options = parser.parse_args()
    sizes = [(100, 2)] if options.smoke else [(10_000, options.repeats)]
    sizes += [(1_000_000, 5)] if options.million else []
    capacity = load_scenario(OVERLOAD_SCENARIO).make_system().kv_capacity
    system = System(kv_capacity=capacity, batch_time=make_batch_time(AFFINE))
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        version = subprocess.run([str(compiler()), "--version"], capture_output=True, text=True, check=True)
        print(
            f"{_processor()}, {version.stdout.splitlines()[0]}, Python {platform.python_version()}, "
            f"Numba {numba.__version__}, {sys.platform}\n\n{HEAD}"
        )
        rows = [
            row
            for n, repeats in sizes
            for row in compare(library, system, make_workload("lmsys", num_requests=n).sample(0), repeats)
        ]
    write_json(options.json, {"rows": rows})


def _processor() -> str:
    """Return the name of the processor, as far as the system reports it."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
