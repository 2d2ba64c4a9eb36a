"""Coverage-guided fuzzing with Atheris, for kinds of scripts/checks/fuzz.py that contain bytes.

    pip install atheris                                        # wheels for some versions of Python, on Linux
    python scripts/checks/fuzz_guided.py trace --seconds 600   # starts from valid inputs of the kind
    python scripts/checks/fuzz_guided.py recipe --corpus results/guided  # continues with the inputs it has found

Failures are those of scripts/checks/fuzz.py. The first one ends the run, with its traceback and a file for
``scripts/checks/fuzz.py --replay``. Coverage is measured in modules that read and check input, not in compiled code.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.trees import at, places, put, revive  # noqa: E402  (the rest of it imports kvgym, see main)

READERS = (
    "kvgym.utils.reading", "kvgym.utils.checks", "kvgym.utils.specs", "kvgym.simulator.recording.window",
    "kvgym.experiments",
    "kvgym.workloads.traces", "kvgym.servers.calibration.recipes", "kvgym.batch_time.hardware.operator_tables",
    "kvgym.batch_time.deployments.deployment", "kvgym.agents.runs.config", "kvgym.agents.trained.header",
    "kvgym.agents.trained.numpy_model", "kvgym.agents.evolution.model", "kvgym.agents.evolution.config",
)  # fmt: skip
"""Instrumented modules and packages: those that read and check input, without kernels."""


def byte_places(tree: Any) -> list[tuple[Any, ...]]:
    """Return the paths of the bytes in a tree."""
    found = ((path, at(tree, path)) for path in places(tree))
    return [path for path, value in found if isinstance(value, dict) and value.keys() == {"$bytes"}]


def load(name: str) -> None:
    """Import a module, and the modules in it if it is a package."""
    module = importlib.import_module(name)
    for inner in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}."):
        load(inner.name)


def main() -> int:
    """Search until an input fails or time runs out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", help="kind of input, as in scripts/checks/fuzz.py")
    parser.add_argument("--seconds", type=int, default=60, help="time limit")
    parser.add_argument("--seed", type=int, default=1, help="seed of the search, ≥ 1")
    parser.add_argument("--corpus", type=Path, help="folder of interesting inputs, to continue from")
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="folder for a failing input")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        parser.error("Atheris is not installed: pip install atheris")
    with atheris.instrument_imports(include=list(READERS)):
        for name in READERS:
            load(name)
    from fuzz.campaign import Report, play, prepare, save
    from fuzz.kinds import all_kinds, raw

    prepare()
    kinds = all_kinds()
    if options.kind not in kinds:
        parser.error(f"unknown kind {options.kind!r}; valid: {', '.join(kinds)}")
    kind = kinds[options.kind]
    templates = [(tree, path) for tree in kind.seeds() for path in byte_places(tree)]
    if not templates:
        parser.error(f"inputs of kind {kind.name} have no bytes in them; scripts/checks/fuzz.py mutates them")
    kind.ready(Path(tempfile.mkdtemp()))

    def one(data: bytes) -> None:
        # The first byte chooses the template that the others are put into.
        tree, path = templates[data[0] % len(templates) if data else 0]
        wanted = put(copy.deepcopy(tree), path, raw(data[1:]))
        verdict = play(kind, wanted)
        if verdict.failed:
            report = Report()
            report.note(kind.name, (options.seed, 0), wanted, verdict)
            found = ", ".join(map(str, save(report, options.out)))
            raise RuntimeError(f"{verdict.outcome}: {verdict.message}\n{verdict.trace}\nwritten to {found}")

    corpus = options.corpus or Path(tempfile.mkdtemp())
    corpus.mkdir(parents=True, exist_ok=True)
    for number, (tree, path) in enumerate(templates):
        (corpus / f"valid-{number}").write_bytes(bytes([number % 256]) + revive(at(tree, path)))
    limits = [
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        "-max_len=20000",
        "-rss_limit_mb=0",
    ]
    artifacts = f"-artifact_prefix={tempfile.mkdtemp()}/"
    atheris.Setup([sys.argv[0], *limits, artifacts, str(corpus)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
