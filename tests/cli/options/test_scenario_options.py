"""Scenario options: each field is set by its option or by ``--set``, in every command that has it."""

import dataclasses

import pytest

from kvgym.cli.app import COMMANDS, load_command
from kvgym.cli.fields import ALL, DESCRIBED_OPTIONS, FIELDS, SCENARIO_OPTIONS
from kvgym.errors import KVGymError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario_options import UNCHANGED, ScenarioOptions
from kvgym.studies.sweeping import fields as fields_of_sweeps

TEXTS = {"name", "summary"}

GIVEN = {
    "trace": "requests.csv", "trace_format": "vidur", "columns": "arrival=when", "time_unit": "ms", "rate_scale": 2.0,
    "shared_prefix": 800,
    "workload": "lmsys", "rate": 3.0, "num_requests": 7, "predictions": "none", "ttft_slo": 1.5, "tbt_slo": 0.25,
    "e2e_slo": 30.0,
    "too_long": "drop", "hardware": "llama3-8b-a100-tp1", "engine": "none", "batch_time": "unit", "kv_capacity": 9000,
    "block_size": 16, "prefix_cache": "computed", "prefix_block": 32, "cache_rule": "fixed:tool=5",
    "speculate": "eagle-chat:depth=2", "host_memory": 8.0, "rules": "engine", "workers": 4,
    "prefill_workers": 2, "decode_workers": 3, "link": "10GB/s", "local_prefill": True,
    "fleet": "2-6", "startup": "45", "autoscaler": "hpa:target=4",
    "router": "round_robin", "router_view": "inflight", "scrape": "5s", "routers": 3,
    "sessions": "closed", "horizon": 12.5, "warm_up": "5", "cool_down": "20r",
}  # fmt: skip
"""A value for every field."""

ARGUMENTS = {
    "run": ["-p", "fcfs"], "tune": ["-p", "fcfs"], "evaluate": ["ppo_noisy"], "sweep": ["system.stall_limit=9"],
    "server observe": ["http://127.0.0.1:9"], "workload": ["lmsys"],
}  # fmt: skip
"""Required arguments of commands."""

OWN = {
    ("capacity", "workers"),
    ("server validate", "columns"),
    ("server validate", "time_unit"),
    *(("render", name) for name in ALL),
    ("workload", "trace"),
}
"""Options with the name of a scenario option that take several values, describe a log, or are of an environment."""


def fields_of(command):
    """Return the fields that a command sets by ``--set``, without those of hardware."""
    (known,) = (each for each in load_command(command).params if each.name == "settings")
    found = [item.value.removesuffix("=") for item in known.shell_complete(None, "")]
    return [name for name in found if name in ALL]


COMMANDS_WITH_FIELDS = [
    command for command in COMMANDS if any("--set" in each.opts for each in load_command(command).params)
]


@pytest.fixture
def built(monkeypatch):
    """Return the options of scenarios that commands build, each with the fields that replace some; none is built."""
    found = []

    def build(scenario, options=UNCHANGED, /, **fields):
        found.append((dataclasses.replace(options, **fields) if fields.get("too_long") else options, fields))
        raise KVGymError("built")

    monkeypatch.setattr(fields_of_sweeps, "build_scenario", build)
    monkeypatch.setattr("kvgym.experiments.changes.build_scenario", build)
    return found


def test_every_field_is_declared():
    assert ALL == tuple(field.name for field in dataclasses.fields(ScenarioOptions)) == tuple(GIVEN)


@pytest.mark.parametrize("command", ["compare", "run", "watch", "sweep", "tune", "evaluate"])
def test_commands_that_compare_on_scenarios_have_all_fields(command):
    assert fields_of(command) == list(ALL)
    flags = {flag for each in load_command(command).params for flag in each.opts}
    assert flags >= {flag for name, field in FIELDS.items() for flag in field.flags(name)}


@pytest.mark.parametrize("command", COMMANDS_WITH_FIELDS)
def test_hardware_can_be_described(command):
    flags = {flag for each in load_command(command).params for flag in each.opts}
    described = {flag for name, field in DESCRIBED_OPTIONS.items() for flag in field.flags(name)}
    assert ("--hardware" in flags) == (described <= flags)


@pytest.mark.parametrize("command", COMMANDS_WITH_FIELDS)
def test_fields_reach_the_scenario(kvgym, built, tmp_path, command):
    """By their options, by --set, and not at all."""
    log = tmp_path / "log.csv"
    log.write_text(
        "arrival_time,when,prompt_len,output_len,first_token_time,finish_time\n0,0,9,3,1,2\n1,1,9,3,2,3\n"
    )
    arguments = ARGUMENTS.get(command, [log] if command == "server validate" else [])
    given = {name: GIVEN[name] for name in fields_of(command) if (command, name) not in OWN}
    flagged = {name: value for name, value in given.items() if SCENARIO_OPTIONS[name].metavar}
    flags = [
        word for name, value in flagged.items() for word in (SCENARIO_OPTIONS[name].flags(name)[0], value)
    ]
    settings = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    for words, expected in ((flags, flagged), (settings, given), ([], {})):
        code, _, error = kvgym(*command.split(), *arguments, *words)
        assert (code, error) == (2, "error: built\n")
        options, fields = built.pop()
        for name in set(ALL) - {"horizon"} | expected.keys():  # an agent has the horizon of its training
            assert str(getattr(options, name)) == str(expected.get(name, getattr(UNCHANGED, name))), name
        for name in fields.keys() & expected.keys():  # None: the command uses the option itself
            assert str(fields[name]) in (str(expected[name]), "None"), name


@pytest.mark.parametrize("name", ALL)
def test_every_field_changes_the_scenario(name, tmp_path, azure_trace):
    times = tmp_path / "times.csv"
    times.write_text("arrival_time,when,prompt_len,output_len\n0,0,9,3\n1,1,9,3\n")
    given = {
        **GIVEN,
        "trace": times,
        "trace_format": "azure",
        "router": "uniform_random",
        "engine": "base_ms=5",
    }[name]
    others = {"workers": 4} if name in ("router", "router_view", "scrape", "routers") else {}
    if name in ("startup", "autoscaler"):
        others = {"fleet": "1-4"}
    if name in ("trace_format", "columns", "time_unit", "rate_scale", "shared_prefix"):
        others = {"trace": azure_trace if name == "trace_format" else times}
    separate = name in ("prefill_workers", "decode_workers", "link", "local_prefill")
    base = "a100-llama3-8b-disaggregated" if separate else "a100-llama2-70b"
    before = build_scenario(base, **others)
    after = build_scenario(base, **others, **{name: given})
    assert after.model_dump(exclude=TEXTS) != before.model_dump(exclude=TEXTS)


@pytest.mark.parametrize("name", DESCRIBED_OPTIONS)
def test_a_model_and_a_gpu_become_hardware(kvgym, built, name):
    value = {"model": "qwen3-8b", "gpu": "l4", "tp": 2, "memory_fraction": 0.8, "kv_context": 64}.get(
        name, "fp8"
    )
    flags = DESCRIBED_OPTIONS[name].flags(name)
    for words in ((flags[0], value) if flags else (), ("--set", f"hardware.{name}={value}")):
        if words:
            assert kvgym("run", "-p", "fcfs", *words)[2] == "error: built\n"
            expected = f"roofline:{name}={value}" if name == "gpu" else f"{name}={value}"
            assert built.pop()[0].hardware == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["block_size"], "--set 'block_size': expected FIELD=VALUE, as in block_size=16 (kvgym list fields)"),
        (["blok_size=16"], "unknown field of --set 'blok_size'. Did you mean 'block_size'?"),
        (["block_size=x"], "--set 'block_size=x': expected a whole number"),
        (["rate_scale=x"], "--set 'rate_scale=x': expected a number"),
        (["block_size=16,32"], "expected one value; for several: kvgym sweep block_size=16,32"),
        (["horizon=5min"], "--set horizon '5min': expected seconds, as in 0.5 or 0.5s, or milliseconds, as in 500ms"),
        (["sessions=open", "--set", "sessions=closed"], "--set 'sessions=closed': sessions is given twice"),
        (["rate=5", "--rate", "6"], "rate is given by --rate and by --set"),
        (["hardware.tp=2", "--tp", "4"], "hardware.tp is given by --tp and by --set"),
        (["hardware.weights=fp8", "--hardware", "x.yaml"], "--hardware and --set hardware.weights exclude each other"),
    ],
)  # fmt: skip
def test_wrong_settings_have_a_remedy(kvgym, arguments, message):
    code, out, err = kvgym("compare", "--set", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_only_fields_that_a_command_uses_are_valid(kvgym):
    assert "unknown field of --set 'rate'" in kvgym("server", "validate", "x.csv", "--set", "rate=2")[2]


def test_fields_replace_options():
    options = ScenarioOptions(rate=3.0, num_requests=7)
    both = build_scenario("a100-llama2-70b", options, num_requests=9)
    assert both == build_scenario("a100-llama2-70b", rate=3.0, num_requests=9)
    assert both != build_scenario("a100-llama2-70b", options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'rat'"):
        build_scenario("a100-llama2-70b", rat=3.0)
