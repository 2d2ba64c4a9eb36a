"""Check the declared versions of dependencies: install the lowest or highest ones and use kvgym with them.

Builds the wheel, reads its requirements, and installs it into a new environment of the Python that runs this script:

    python scripts/checks/check_versions.py lowest
    python scripts/checks/check_versions.py lowest --extras minari,observe,parquet,report,train,tune,video
    python scripts/checks/check_versions.py highest
    python scripts/checks/check_versions.py lowest --suite

Outside the repository it then imports every module and runs a comparison, an environment, a trace, and a check of every
requested extra. Packages in constraints.txt keep the version there; the output says so. It also prints the size of the
environment. Needs a package index; two to ten minutes, mostly compilation. With ``--suite`` it runs all tests of the
repository with all extras instead: half an hour on a core.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?\s*([^;]*)(?:;\s*extra\s*==\s*[\"'](.+?)[\"'])?\s*")
MEGABYTE = 1e6

IMPORTS = """
import importlib, pkgutil, sys, kvgym
absent = set(sys.argv[1].split(","))
for module in pkgutil.walk_packages(kvgym.__path__, "kvgym."):
    if module.name.rsplit(".")[-1] == "__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:  # allowed: a library of an extra is missing, or the error names the extra
        if (error.name or "").split(".")[0].lower() not in absent and "kvgym[" not in str(error):
            raise
    except kvgym.errors.ConfigError as error:
        if not any(f"kvgym[{extra}]" in str(error) for extra in sys.argv[2].split(",")):
            raise
"""
ENVIRONMENT = """
import gymnasium as gym, kvgym
for name in ("kvgym/AdmitCount-v0", "kvgym/Route-v0"):
    env = gym.make(name, num_requests=20)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        env.step(env.action_space.sample())
envs = gym.make_vec("kvgym/AdmitCount-v0", num_envs=2, num_requests=20)
envs.reset(seed=0)
envs.step(envs.action_space.sample())
"""
SAMPLE = """
from kvgym.workloads.traces import write_sample_trace
import sys
write_sample_trace(sys.argv[1], sys.argv[2], 30)
"""
OBSERVE = """
import subprocess
from kvgym.servers.endpoint.mock import MockServer
from kvgym.servers.endpoint.online import OnlineRun
from kvgym.experiments.changes import build_scenario
from kvgym.policies.policy import make_policy
server = MockServer(OnlineRun(build_scenario("vllm-v1").make_system(), make_policy("fcfs")), speed=20.0)
server.start()
command = ["kvgym", "server", "observe", server.url, "--workload", "lmsys", "--rate", "2", "-n", "3"]
command += ["--out", "observed"]
code = subprocess.run([*command, "--no-progress"]).returncode
server.close()
raise SystemExit(code)
"""
DATASET = """
import os, subprocess
command = ["kvgym", "render", "dataset", "fcfs", "--scenario", "mc-sf-model-2", "--episodes", "1"]
raise SystemExit(subprocess.run(command, env={**os.environ, "MINARI_DATASETS_PATH": "datasets"}).returncode)
"""
PYTHON, KVGYM = "python", "kvgym"
COMPARE = "compare --scenario mc-sf-model-2 --seeds 3 --no-progress"
CHECKS: dict[str, list[list[str]]] = {
    "": [
        [KVGYM, "--version"],
        [KVGYM, "list", "policies"],
        [KVGYM, *COMPARE.split(), "--no-report", "--out", "compared"],
        [PYTHON, "-c", ENVIRONMENT],
        [PYTHON, "-c", SAMPLE, "azure.csv", "azure"],
        [KVGYM, "run", "-p", "fcfs", "--trace", "azure.csv", "--out", "run"],
    ],
    "parquet": [
        [PYTHON, "-c", SAMPLE, "azure.parquet", "azure"],
        [KVGYM, "run", "-p", "fcfs", "--trace", "azure.parquet", "--records", "parquet", "--out", "parquet"],
        [KVGYM, "run", "-p", "fcfs", "--trace", "parquet/requests.parquet", "--out", "again"],
    ],
    "observe": [[PYTHON, "-c", OBSERVE]],
    "minari": [[PYTHON, "-c", DATASET]],
    "report": [[KVGYM, *COMPARE.split(), "--out", "reported"]],
    "pictures": [[KVGYM, "workload", "lmsys", "-n", "50", "--plot", "lmsys.png"]],
    "video": [
        [KVGYM, "render", "kvgym/AdmitCount-v0", "-n", "6", "--max-frames", "4", "--out", "film.mp4"],
    ],
    "tune": [
        [KVGYM, "tune", "-p", "fcfs", "--scenario", "mc-sf-model-2", "--seeds", "1", "--search", "optuna",
         "--trials", "2", "--out", "tuned"],
    ],
    "train": [
        [KVGYM, "train", "noisy", "total_steps=128", "num_envs=2", "hyperparameters.n_steps=16",
         "hyperparameters.batch_size=16", "hyperparameters.n_epochs=1", "env.workload.num_requests=20",
         "evaluation.seeds=1", "evaluation.interval=128", "--no-progress", "--out", "trained"],
    ],
    "ray": [[KVGYM, *COMPARE.split(), "--no-report", "--ray", "local", "--out", "cluster"]],
}  # fmt: skip
"""Commands that check the core ("") and every extra: arguments of ``python`` or ``kvgym``."""


def requirements(wheel: Path) -> list[tuple[str, str, str]]:
    """Return name, versions and extra ("" = always) of all requirements of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    matches = [REQUIREMENT.fullmatch(line) for line in lines]
    return [(m[1], m[2].strip(), m[3] or "") for m in matches if m is not None]


def lowest(name: str, versions: str) -> str:
    """Return the requirement of the lowest version, such as ``numpy==1.26``."""
    found = re.search(r">=\s*([\w.]+)", versions)
    if found is None:
        raise SystemExit(f"{name}{versions}: no lowest version is declared")
    return f"{name}=={found[1]}"


def pinned() -> dict[str, str]:
    """Return the lines of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return {line.split("==")[0]: line for line in lines if "==" in line and not line.startswith("#")}


def weigh(site: Path) -> str:
    """Return the size of an environment's packages in MB, the largest first."""
    sizes: dict[str, int] = {}
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            top = path.relative_to(site).parts[0].removesuffix(".libs")
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    heaviest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    shown = ", ".join(f"{name} {size / MEGABYTE:.0f}" for name, size in heaviest)
    return f"{sum(sizes.values()) / MEGABYTE:.0f} MB: {shown}"


def main() -> None:
    """Check one set of versions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "which",
        choices=["lowest", "highest"],
        help="versions to install from a package index, into a new environment",
    )
    parser.add_argument("--extras", default="", help=f"comma-separated: {', '.join(filter(None, CHECKS))}")
    parser.add_argument(
        "--suite", action="store_true", help="run all tests of the repository with all extras instead"
    )
    options = parser.parse_args()
    extras = [extra for extra in options.extras.split(",") if extra]
    if unknown := set(extras) - set(CHECKS):
        parser.error(f"unknown extras {', '.join(sorted(unknown))}; valid: {', '.join(filter(None, CHECKS))}")
    with tempfile.TemporaryDirectory() as folder:
        if options.suite:
            check_suite(options.which, Path(folder))
        else:
            check(options.which, extras, Path(folder))


def build(python: Path, folder: Path) -> Path:
    """Return a wheel of the repository, built in a copy, as setuptools would include modules of an old build."""
    copy = folder / "source"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "results", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    command = [str(python), "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(copy)]
    run(command, folder, quiet=True)
    return next(folder.glob("*.whl"))


def install(which: str, extras: list[str], python: Path, wheel: Path, *target: str) -> None:
    """Install a target with the versions that a wheel declares for some extras, and print all packages."""
    wanted = [(name, versions) for name, versions, extra in requirements(wheel) if extra in ("", *extras)]
    held = pinned()
    for name, versions in wanted:
        if name in held:
            print(f"{held[name]}: fixed by constraints.txt; declared: {name}{versions}", flush=True)
    pins = [lowest(*item) for item in wanted if item[0] not in held] if which == "lowest" else []
    constraints = ["-c", str(ROOT / "constraints.txt")]
    run([str(python), "-m", "pip", "install", "-q", *constraints, *target, *pins], wheel.parent)
    run([str(python), "-m", "pip", "list", "--format=freeze"], wheel.parent)


def check_suite(which: str, folder: Path) -> None:
    """Run the tests with one set of versions for kvgym and its extras, and the newest ones for test tools."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    install(which, list(filter(None, CHECKS)), python, build(python, folder), "-e", f"{ROOT}[dev,tune]")
    run([str(python), "-m", "pytest", "-n", "auto", "-p", "no:cacheprovider", str(ROOT)], ROOT, cache=folder)


def check(which: str, extras: list[str], folder: Path) -> None:
    """Install the wheel with one set of versions into a folder and run all checks."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    wheel = build(python, folder)
    install(which, extras, python, wheel, f"{wheel}[{','.join(extras)}]" if extras else str(wheel))
    run([str(python), "-m", "pip", "check"], folder)
    print(weigh(next((folder / "env" / "lib").glob("python*/site-packages"))), flush=True)
    others = [(name, extra) for name, _, extra in requirements(wheel) if extra not in ("", *extras, "dev")]
    absent = ",".join(name.replace("-", "_").lower() for name, _ in others)
    named = ",".join(extra for _, extra in others)
    run([str(python), "-c", IMPORTS, absent, named], folder)
    for extra in ("", *extras):
        for program, *arguments in CHECKS[extra]:
            run([str(python.with_name(program)), *arguments], folder, quiet=True)
    print(f"the {which} versions work: {', '.join(['core', *extras])}")


def run(command: list[str], folder: Path, *, quiet: bool = False, cache: Path | None = None) -> None:
    """Run a command in a folder; with ``quiet``, its output is shown only if it fails.

    Compiled code is cached in ``cache``, by default in the folder.
    """
    shown = " ".join("…" if "\n" in part else Path(part).name if os.sep in part else part for part in command)
    print(f"+ {shown}", flush=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "KVGYM_PLUGINS")}
    done = subprocess.run(
        command, cwd=folder, env={**kept, "KVGYM_CACHE_DIR": str((cache or folder) / "cache")},
        stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}\nfailed with {done.returncode}: {shown}")


if __name__ == "__main__":
    main()
