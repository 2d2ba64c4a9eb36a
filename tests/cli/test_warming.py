"""Compilation in advance: all kernels, and only from sources that are part of the cache key."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvgym.batch_time import BATCH_TIMES
from kvgym.cli.warming import all_kernels, compile_all, parts_of, warm_up
from kvgym.compiling import kernel as compiled
from kvgym.compiling.kernel import Kernel, kernels
from kvgym.compiling.sources import reached
from kvgym.envs.demonstrations.loop import demonstrate_episode
from kvgym.envs.registration import ACTIONS
from kvgym.envs.routing.features import observe
from kvgym.envs.scheduling.stepping import step_envs
from kvgym.errors import ConfigError
from kvgym.policies.policy import POLICIES, CompiledPolicy
from kvgym.policies.routing import ROUTERS
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.cluster.loop import run_cluster
from kvgym.simulator.loop import run_full_loop, run_loop, step_worker
from kvgym.utils.execution.executor import InProcess


@pytest.fixture(scope="module")
def known():
    return [kernel for kernel in all_kernels() if kernel.function.__module__.startswith("kvgym.")]


def test_every_registered_kernel_is_compiled(known):
    holders = [POLICIES[name] for name in POLICIES if issubclass(POLICIES[name], CompiledPolicy)]
    holders += [ROUTERS[name] for name in ROUTERS]
    holders += [x for name in BATCH_TIMES for x in models(BATCH_TIMES[name])]
    holders += [ACTIONS[name].make() for name in ACTIONS if ACTIONS[name].id.startswith("kvgym/")]
    assert len(holders) > 40
    found = {
        x
        for h in holders
        for x in (getattr(h, n, None) for n in dir(h) if n[0] != "_")
        if isinstance(x, Kernel)
        and x.function.__module__.startswith("kvgym.")  # other tests have some of their own
    }
    found |= {
        run_loop,
        run_full_loop,
        step_worker,
        run_cluster,
        step_envs,
        observe,
        demonstrate_episode,
    }
    assert len(found) > 50
    assert found <= set(known)


def test_no_extra_is_needed():
    """Picture libraries, for example, are missing after the first command of the README."""
    extras = (
        "matplotlib",
        "PIL",
        "imageio_ffmpeg",
        "jinja2",
        "markupsafe",
        "pyarrow",
        "aiohttp",
        "prometheus_client",
        "ray",
        "minari",
    )
    extras += ("torch", "stable_baselines3", "sb3_contrib", "tensorboard", "tqdm", "cma", "optuna")
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({extras}))\n"
        "from kvgym.cli.warming import all_kernels\nprint(len(all_kernels()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def models(constructor):
    """Return the class of batch times of a constructor, or all classes if it is a function."""
    return [constructor] if isinstance(constructor, type) else BatchTimeModel.__subclasses__()


def test_compiled_code_comes_from_sources_in_the_cache_key(known):
    """An edit of another source would not invalidate the cache."""
    found = 0
    for kernel in known:
        if kernel.function.__closure__ is None:
            sources = {path.resolve() for path in reached([kernel.function.__module__])}
            functions = {source_of(function).resolve() for function in compiled._all_reached(kernel.function)}
            assert functions <= sources, kernel.title
            found += len(functions)
    assert found > 300


def source_of(function):
    """Return the file of a function; of one that kvgym.compiling.tables generates, the file of its declaration."""
    file = function.__code__.co_filename
    return Path(sys.modules[function.__module__].__file__ if file == "<string>" else file)


def test_kernels_made_inside_functions_are_not_listed():
    made = compiled.kernel("float64(float64)")(lambda x: x)
    assert made not in kernels()


def small():
    """Return the two smallest kernels, as in a process that has not used them."""
    found = sorted(kernels(), key=lambda k: len(k.function.__code__.co_code))
    mine = [k for k in found if k.function.__module__.startswith("kvgym.batch_time")][:2]
    return [Kernel(k.function, k.signature, "batch times") for k in mine]


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "cache_dir", lambda: tmp_path)
    return tmp_path


def test_cached_kernels_are_not_compiled_again(empty_cache, monkeypatch, capsys):
    wanted = small()
    assert not any(kernel.cached for kernel in wanted)
    costs = dict(compile_all(wanted, jobs=1))
    assert list(costs) == [kernel.title for kernel in wanted]
    assert all(seconds > 0 for seconds in costs.values())
    assert capsys.readouterr().err == ""  # the caller shows progress
    again = small()
    assert all(kernel.cached for kernel in again)
    monkeypatch.setattr("kvgym.cli.warming.all_kernels", lambda: again)
    assert warm_up(jobs=1) == {}


def test_parts_are_whole_balanced_and_of_one_kind(known):
    parts = parts_of(known, 4)
    assert sorted(kernel.title for part in parts for kernel in part) == sorted(k.title for k in known)
    sizes = [sum(kernel.size for kernel in part) for part in parts]
    assert len(parts) == 4
    assert max(sizes) < 2 * min(sizes)
    kinds = [kernel.title.partition(" ")[0] for part in parts for kernel in part]
    assert kinds == sorted(kinds)
    assert [len(part) for part in parts_of(known[:3], 8)] == [1, 1, 1]
    assert parts_of([], 4) == []


def test_several_processes_compile_each_kernel_once(empty_cache, monkeypatch):
    done = []

    class Together(InProcess):
        def stream(self, tasks):
            done.extend(tasks)
            return super().stream(tasks)

    monkeypatch.setattr("kvgym.cli.warming.make_executor", lambda work, jobs: Together(work))
    wanted = small()
    assert sorted(dict(compile_all(wanted, jobs=2))) == sorted(kernel.title for kernel in wanted)
    assert [len(part) for part in done] == [1, 1]
    assert all(kernel.cached for kernel in wanted)


def test_disabled_compilation_is_an_error(monkeypatch):
    monkeypatch.setattr("kvgym.cli.warming.jit_disabled", lambda: True)
    with pytest.raises(ConfigError, match="unset"):
        warm_up()
