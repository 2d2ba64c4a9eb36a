"""Sources of engines: stubs, wheels, and the command's errors. The engines themselves are not needed."""

import importlib
import sys
from dataclasses import replace

import pytest
from conformance.command import main
from conformance.stubs import StubFinder
from conformance.vllm_engine import Arrivals, draw_case
from conformance.wheel import unpacked

from kvgym.errors import ConfigError


@pytest.fixture
def imports():
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] == "anengine"]:
        del sys.modules[name]


def test_some_modules_are_real_and_the_others_stubs(tmp_path, imports):
    (tmp_path / "anengine" / "core").mkdir(parents=True)
    (tmp_path / "anengine" / "core" / "__init__.py").touch()
    (tmp_path / "anengine" / "core" / "scheduler.py").write_text(
        "from anengine.config import Config, STAGES, LIMIT\nfrom anengine.log import make_logger\n"
        "import anengine.models.all\n"
        "log = make_logger(__name__)\n"
        "def plan(config: Config | None = None, other: 'None | Config' = None):\n"
        "    with log.timed('plan'):\n        log.info('nothing')\n"
        "    return LIMIT + len(list(STAGES)) + bool(log.enabled)\n"
        "class Special(Config[int]):\n    pass\n"
    )
    StubFinder(
        "anengine", tmp_path, ("anengine.core", "anengine.core."), {"anengine.config": {"LIMIT": 3}}
    ).install()
    scheduler = importlib.import_module("anengine.core.scheduler")
    assert scheduler.plan() == 3
    assert list(scheduler.STAGES) == list(scheduler.Config()) == []
    assert scheduler.Special(size=4).size == 4
    with pytest.raises(AttributeError):
        getattr(scheduler.Config, "__missing__")  # noqa: B009


def test_workloads_are_drawn_by_seed():
    assert draw_case(3, True) == draw_case(3, True) != draw_case(4, True)
    assert "prefill_schedule_interval" not in draw_case(3, False).settings
    case = draw_case(3, True, prefix_cache=True)
    assert replace(case, texts=()) == draw_case(3, True)
    assert len(case.texts) == len(case.prompt)
    text, common = case.texts[1]
    assert case.content(1, common) == ("text", text, common)
    assert case.content(1, common + 1) == ("request", 1, common + 1)


def test_later_turns_come_after_earlier_ones_and_begin_with_them():
    cases = [draw_case(seed, True, prefix_cache=True, sessions=True) for seed in range(40)]
    assert not any(case.sessions for case in cases[::2])
    assert all(len(case.sessions) == len(case.think) == len(case.prompt) for case in cases[1::2])
    case = next(case for case in cases if len({*case.sessions}) < len(case.sessions))
    later = next(i for i, session in enumerate(case.sessions) if session in case.sessions[:i])
    first = max(i for i in range(later) if case.sessions[i] == case.sessions[later])
    whole = case.prompt[first] + case.output[first]
    assert case.prompt[later] > whole
    assert case.content(first, whole) == case.content(later, whole)
    arrivals = Arrivals(case)
    due = list(arrivals.until(1e9))
    assert later not in [i for _, i, _ in due]
    assert [number for number, _, _ in due] == list(range(len(due)))
    arrivals.end(next(number for number, i, _ in due if i == first), 2e9)
    assert arrivals.due == [(2e9 + case.think[later], later)]


def test_an_unpacked_release_is_not_downloaded_again(tmp_path):
    (tmp_path / "vllm-0.33.0").mkdir()
    assert unpacked("vllm", "0.33.0", tmp_path) == tmp_path / "vllm-0.33.0"
    with pytest.raises(ConfigError, match=r"version = 'newest'; expected a release of vllm, as in 0\.33\.0"):
        unpacked("vllm", "newest", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vllm", "--version", "0.28.0"], "kvgym follows vLLM 0.24 and 0.33; give one of these releases"),
        (
            ["sarathi"],
            "source = None: expected a checkout of Sarathi-Serve, with the folder sarathi; give --source",
        ),
        (
            ["vidur", "--prefix-cache"],
            "--prefix-cache, --async-scheduling, --speculation and --offloading are for vLLM; leave them out",
        ),
        (["vllm", "--variant", "in-place"], "--variant is for SGLang; leave it out"),
        (["sglang", "--version", "0.4.9"], "kvgym follows SGLang 0.5.23; give this release"),
        (["vidur", "--source", "."], "source = .: expected a checkout of Vidur"),
        (["vllm", "--workloads", "0"], "--workloads 0: expected a whole number ≥ 1"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code != 0
    assert message in str(stopped.value) + capsys.readouterr().err
