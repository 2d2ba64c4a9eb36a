"""Specs, registries and random streams."""

import pickle
import sys

import pytest

from kvgym.errors import LIMIT, ConfigError, UnknownNameError
from kvgym.policies.hyperparameters import fraction_of
from kvgym.policies.policy import (
    POLICIES,
    CompiledPolicy,
    Policy,
    PolicyInfo,
    make_policy,
    register_policy,
)
from kvgym.policies.routing import make_router
from kvgym.utils.registry import Registry, Sources, import_package, load_plugins
from kvgym.utils.seeding import STREAMS, stream
from kvgym.utils.specs import parse_spec, split_specs


def test_parse_spec():
    assert parse_spec("alpha_beta:alpha=0.2, beta=1,x=true,y=none,z=text", "policy") == (
        "alpha_beta",
        {"alpha": 0.2, "beta": 1, "x": True, "y": None, "z": "text"},
    )
    assert parse_spec("fcfs", "policy") == ("fcfs", {})
    for bad in ("p:alpha", "p:=3", ":a=1", ""):
        with pytest.raises(ConfigError, match="key=value"):
            parse_spec(bad, "policy")
    with pytest.raises(ConfigError, match=r"'Mine' is not key=value.*the name under which it is registered"):
        parse_spec("my_rules:Mine", "policy")  # as check-policy takes it


def test_split_specs_keeps_hyperparameters_together():
    text = "mc_sf, alpha_beta:alpha=0.2,beta=0.1,fcfs"
    assert split_specs(text) == ["mc_sf", "alpha_beta:alpha=0.2,beta=0.1", "fcfs"]


def test_registry_refuses_duplicates_and_suggests():
    registry: Registry[int] = Registry("thing")
    registry.add("first", 1)
    registry.add("first", 1)
    with pytest.raises(ConfigError, match="already registered"):
        registry.add("first", 2)
    with pytest.raises(UnknownNameError, match=r"Did you mean 'first'") as caught:
        registry["frist"]
    assert "Valid names: first" in str(caught.value)


def test_streams_are_independent_and_reproducible():
    draws = {name: stream(7, name).random(4).tolist() for name in STREAMS}
    assert draws == {name: stream(7, name).random(4).tolist() for name in STREAMS}
    assert len({tuple(d) for d in draws.values()}) == len(STREAMS)
    assert stream(8, "arrivals").random() != stream(7, "arrivals").random()
    with pytest.raises(ValueError, match="unknown random stream"):
        stream(0, "weather")


def test_fraction_of_is_exact():
    assert fraction_of(10, 0.1) == 9  # (1 - 0.1) * 10 in floating point is 9.0, but 0.7 * 10 is not 7
    assert [fraction_of(1000, a) for a in (0.3, 0.2, 0.21, 0.999)] == [700, 800, 790, 1]
    assert all(fraction_of(100, k / 100) == 100 - k for k in range(100))


def test_make_policy():
    policy = make_policy("alpha_beta:alpha=0.25", beta=0.5)
    assert policy.hyperparameters() == {"alpha": 0.25, "beta": 0.5}
    assert repr(policy) == "alpha_beta(alpha=0.25, beta=0.5)"
    assert make_policy(policy) is policy
    with pytest.raises(ConfigError, match=r"valid: alpha=0\.2, beta=0\.1"):
        make_policy("alpha_beta:gamma=1")
    with pytest.raises(ConfigError, match=r"alpha = 1\.5; expected a fraction in \(0, 1\)"):
        make_policy("alpha_greedy:alpha=1.5")
    with pytest.raises(ConfigError, match="not one of"):
        PolicyInfo(name="x", summary="", needs=frozenset({"crystal_ball"}))


def test_a_policy_is_abstract():
    with pytest.raises(TypeError):
        Policy()


def test_sources_are_asked_in_order() -> None:
    sources: Sources[str] = Sources([])
    assert sources.find("a") is None
    asked: list[str] = []

    @sources.add
    def first(text: str) -> str | None:
        asked.append(text)
        return "from the first" if text == "one" else None

    sources.add(lambda text: "from the second")
    assert sources.find("one") == "from the first"
    assert sources.find("two") == "from the second"
    assert asked == ["one", "two"]


def test_modules_of_sources_are_imported_when_needed(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "late_source.py").write_text(
        "import builtins\nbuiltins.late_sources.add(lambda text: text.upper())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sources: Sources[str] = Sources(["late_source"])
    monkeypatch.setattr("builtins.late_sources", sources, raising=False)
    assert sources.find("a") == "A"
    missing: Sources[str] = Sources(["no_such_module_of_sources"])
    for _ in range(2):  # an import that fails is tried again, not forgotten
        with pytest.raises(ModuleNotFoundError):
            missing.find("a")


def test_plugins_of_other_distributions(tmp_path, monkeypatch):
    """Entry points of a group are imported; one that fails causes a warning, and the others are imported."""
    monkeypatch.setenv("KVGYM_PLUGINS", "1")
    folder = tmp_path / "acme-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[kvgym.things]\nbad = acme_absent\ngood = acme_things\n")
    (tmp_path / "acme_things.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match=r"things of acme \(acme_absent\) cannot be loaded: ModuleNotFound"):
        load_plugins("kvgym.things", "things")
    assert sys.modules.pop("acme_things").loaded


@pytest.mark.parametrize("content", [b"\xff\xfe[", b"[kvgym.things]\nno equals sign\n"])
def test_a_damaged_file_of_entry_points_hides_no_other_plugin(tmp_path, monkeypatch, content):
    monkeypatch.setenv("KVGYM_PLUGINS", "1")
    for name, entries in (("acme_damaged", content), ("acme", b"[kvgym.things]\ngood = acme_things\n")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_bytes(entries)
    (tmp_path / "acme_things.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="entry_points.txt of 'acme_damaged' cannot be read") as found:
        load_plugins("kvgym.things", "things")
    assert all(len(str(warning.message)) <= LIMIT for warning in found)
    assert sys.modules.pop("acme_things").loaded


def test_names_of_sources_are_valid_names():
    sources: Sources[str] = Sources([])
    registry: Registry[str] = Registry("thing", sources=sources)
    registry.add("first", "a")
    sources.add(lambda text: None)
    sources.add(lambda text: "b" if text == "second" else None, lambda: ["second"])
    assert sources.names() == ["second"]
    with pytest.raises(UnknownNameError, match=r"Did you mean 'second'\? Valid names: first, second\.$"):
        registry["secnd"]
    assert "second" not in registry


def test_invalid_names_are_not_in_a_registry():
    error = UnknownNameError("thing", "x", ["b", "a"], "a YAML file")
    assert str(error) == "unknown thing 'x'. Valid names: a, b; or a YAML file."
    assert error.details == "valid names: a, b; or a YAML file"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details) == (str(error), error.details)


@pytest.mark.parametrize(("make", "name"), [(make_router, "routing"), (make_policy, "ranked_latency")])
def test_agents_are_valid_names(make, name):
    assert make(name).label == name or make(name).info.name == name
    with pytest.raises(UnknownNameError) as caught:
        make("no_such_name")
    assert name in caught.value.details.split(": ")[1].split(", ")
    with pytest.raises(UnknownNameError, match=f"Did you mean '{name}'"):
        make(f"{name}x")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ndef broken(:", "acme_parts/part.py, line 2: SyntaxError: invalid syntax"),
        (
            "import no_such_thing",
            "acme_parts/part.py, line 1: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        (
            "from kvgym.policies.policy import register_policy\n\n@register_policy\nclass Mine:\n    pass\n",
            "acme_parts/part.py, line 3: Mine.info = None; expected a PolicyInfo",
        ),
    ],
)
def test_a_mistake_in_a_package_that_registers_names_file_and_line(tmp_path, monkeypatch, code, message):
    (tmp_path / "acme_parts").mkdir()
    (tmp_path / "acme_parts" / "__init__.py").write_text("from acme_parts import part\n")
    (tmp_path / "acme_parts" / "part.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        import_package("acme_parts")
    for name in ("acme_parts", "acme_parts.part"):
        sys.modules.pop(name, None)
    assert str(caught.value) == message
    assert "part.py" in caught.value.details


def test_an_error_that_is_no_mistake_of_the_package_passes():
    with pytest.raises(ModuleNotFoundError):
        import_package("acme_missing")


def test_only_policies_can_be_registered():
    class Plain:
        info = PolicyInfo("no_policy", "a class of its own")

    class NoKernel(CompiledPolicy):
        info = PolicyInfo("no_kernel", "a compiled policy without a kernel")

    for given in (Plain, Plain()):
        with pytest.raises(ConfigError, match=r"is not a class derived from kvgym\.Policy"):
            register_policy(given)
    with pytest.raises(ConfigError, match="NoKernel has no kernel"):
        register_policy(NoKernel)
    assert not {"no_policy", "no_kernel"} & set(POLICIES)
