"""Settings of kvgym's scheduler for vLLM: what is read, and one clear error at the start for what is missing."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.servers import fake_vllm
from helpers.servers.fake_vllm import MEMORY, Request, configuration
from kvgym.errors import LIMIT, ConfigError
from kvgym.integrations.vllm import Scheduler, check_release, read_settings, releases
from kvgym.integrations.vllm.settings import REMEDIES, RowReader, choose_policy
from kvgym.policies.policy import NEEDS, POLICIES

UNIT = {"kind": "unit"}

NOT_IN_VLLM = "".join(
    line
    for line in (Path(__file__).parents[3] / "docs" / "deploy.md").read_text("utf-8").splitlines()
    if "| no: no server knows" in line or "| no: no request of vLLM" in line
)
"""Rows of the page with policies that cannot decide in vLLM."""


@pytest.fixture(autouse=True)
def found(monkeypatch):
    fake_vllm.install(monkeypatch)
    releases.scheduler_class.cache_clear()
    monkeypatch.delenv("KVGYM_VLLM", raising=False)


def settings_of(**fields):
    return read_settings({"kvgym": {"policy": "fcfs", "batch_time": UNIT, **fields}})


def test_settings_come_from_vllm_or_the_environment(monkeypatch):
    assert settings_of().policy == "fcfs"
    monkeypatch.setenv("KVGYM_VLLM", '{"policy": "mc_sf", "predictions": "max_tokens"}')
    assert read_settings({}).policy == "mc_sf"
    assert settings_of().policy == "fcfs"  # which comes first


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, "kvgym's scheduler has no settings; start vLLM with --additional-config '{\"kvgym\": "),
        ({"batch_time": UNIT}, "kvgym in additional_config: field policy: Field required"),
        ({"policy": "fcfs"}, "policies see batch times, of either hardware or batch_time; set one of them"),
        ({"policy": "fcfs", "batch_time": UNIT, "speed": 1}, "speed"),
        ({"policy": "fcsf", "batch_time": UNIT}, "unknown policy 'fcsf'"),
        (
            {"policy": "fcfs", "batch_time": UNIT, "hyperparameters": {"spec": "vllm"}},
            "policy 'fcfs' has no hyperparameter spec; remove it",
        ),
        ({"policy": "fcfs", "hardware": "nothing"}, "unknown hardware 'nothing'"),
        (
            {"policy": "mc_sf", "batch_time": UNIT},
            "policy 'mc_sf' needs predicted_length, which vLLM does not know; set predictions to max_tokens, ",
        ),
        (
            {"policy": "wait", "batch_time": UNIT},
            "policy 'wait' needs class, class_rates, which vLLM does not know; set classes",
        ),
        (
            {"policy": "slai", "batch_time": UNIT},
            "needs slo, which vLLM does not know; set ttft_slo or tbt_slo",
        ),
        (
            {"policy": "clairvoyant", "batch_time": UNIT},
            "needs true_length, which vLLM does not know; no server knows it; choose another policy",
        ),
        (
            {"policy": "trail", "batch_time": UNIT},
            "renewed_length, which vLLM does not know; no request of vLLM carries it; choose another policy",
        ),
        (
            {"policy": "mc_sf", "batch_time": UNIT, "predictions": "requests"},
            "predictions = requests counts what requests claim, and trust_requests is false; set it to true if",
        ),
        (
            {"policy": "fcfs", "batch_time": UNIT, "patience": math.inf},
            "kvgym in additional_config: field patience: ",
        ),
        (
            {"policy": "mc_sf", "batch_time": UNIT, "predictions": "nowhere:none"},
            "predictions = 'nowhere:none': ModuleNotFoundError: ",
        ),
        ({"policy": "mc_sf", "batch_time": UNIT, "predictions": "math:pi"}, "expected a function, got 3.14"),
    ],
)
def test_wrong_settings_are_one_error_at_the_start(fields, message):
    with pytest.raises(ConfigError) as caught:
        Scheduler(configuration(fields), MEMORY)
    assert message in str(caught.value)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("speculative_config", SimpleNamespace(), "does not support speculative decoding"),
        ("kv_transfer_config", SimpleNamespace(), "does not support KV connectors"),
        ("pipeline_parallel_size", 2, "does not support pipeline parallelism"),
        ("runner_type", "pooling", "does not support models that do not generate token by token"),
        ("prefill_schedule_interval", 2, "prefill_schedule_interval (here a hyperparameter of vllm_v1)"),
    ],
)
def test_options_of_vllm_that_do_not_fit(option, value, message):
    with pytest.raises(ConfigError) as caught:
        Scheduler(configuration({"policy": "fcfs", "batch_time": UNIT}, **{option: value}), MEMORY)
    assert message in str(caught.value)


def test_a_missing_vllm(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"vLLM cannot be imported \(ModuleNotFoundError: .*vLLM 0\.33"):
        check_release()


def test_an_incomplete_vllm(monkeypatch):
    monkeypatch.delattr(sys.modules["vllm"], "__version__")
    with pytest.raises(ConfigError, match=r"vLLM cannot be imported \(AttributeError: .*vLLM 0\.33"):
        Scheduler(configuration({"policy": "fcfs", "batch_time": UNIT}), MEMORY)


@pytest.mark.parametrize("version", ["0.24.0", "0.5.1", "dev"])
def test_an_unknown_release(monkeypatch, version):
    fake_vllm.install(monkeypatch, version)
    with pytest.raises(ConfigError, match=f"vLLM '{version}': kvgym's scheduler uses inner parts of vLLM"):
        Scheduler(configuration({"policy": "fcfs", "batch_time": UNIT}), MEMORY)


@pytest.fixture
def fresh():
    releases.scheduler_class.cache_clear()
    yield
    releases.scheduler_class.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("version", ["0.34.0rc1", "1.0.0"])
def test_a_later_release_with_the_same_parts(monkeypatch, version):
    fake_vllm.install(monkeypatch, version)
    assert Scheduler(configuration({"policy": "fcfs", "batch_time": UNIT}), MEMORY).decisions == 0


@pytest.mark.usefixtures("fresh")
def test_a_later_release_with_other_parts(monkeypatch):
    class Other(fake_vllm.Scheduler):
        _is_blocked_waiting_status = None

        def _preempt_request(self, request, timestamp):
            """Preempt, with one parameter less."""

        def schedule(self, throttle_prefills=False):
            return self.running, self.waiting, self.max_num_active_reqs, self.scheduler_reserve_full_isl

    monkeypatch.delattr(fake_vllm.Queue, "remove_request")
    fake_vllm.install(monkeypatch, "0.34.0")
    monkeypatch.setattr(sys.modules["vllm.v1.core.sched.scheduler"], "Scheduler", Other)
    with pytest.raises(ConfigError) as caught:
        Scheduler(configuration({"policy": "fcfs", "batch_time": UNIT}), MEMORY)
    for part in (
        "vLLM '0.34.0' has other inner parts", "Other._preempt_request has no parameter drop_stale_output",
        "no Other._is_blocked_waiting_status", "Other.schedule does not read _reserve_prefill_lookahead",
        "no Queue.remove_request", "it needs vLLM 0.33",
    ):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize("fulfilled", [False, True])
@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_starts_or_says_what_to_do(name, fulfilled):
    settings = {"policy": name, "batch_time": UNIT}
    if fulfilled:
        one = {"name": "chat", "rate": 1.0, "prompt_len": 5, "output_len": 5}
        settings |= {"predictions": "max_tokens", "classes": [one], "ttft_slo": 1.0}
    try:
        Scheduler(configuration(settings), MEMORY)
    except ConfigError as error:
        text = str(error)
        assert len(text) < LIMIT
        assert text.startswith(f"policy {name!r} needs ")
        remedies = text.partition("which vLLM does not know; ")[2]
        assert any(remedies.startswith(remedy) for remedy in REMEDIES.values())
        assert not fulfilled or (remedies.endswith("choose another policy") and f"`{name}`" in NOT_IN_VLLM)
    else:
        assert f"`{name}`" not in NOT_IN_VLLM


def test_every_need_has_a_remedy():
    assert set(REMEDIES) == set(NEEDS)


WRONG = []
"""Fields with a wrong value, and their errors."""


def reader_of(policy, max_len=100, trust_requests=True, priorities=True, **fields):
    settings = settings_of(policy=policy, trust_requests=trust_requests, **fields)
    chosen, needs = choose_policy(settings)
    WRONG.clear()
    return RowReader(
        settings, chosen.info.needs, needs, max_len, priorities,
        lambda field, request, error: WRONG.append((field, f"{type(error).__name__}: {error}")),
    )  # fmt: skip


def test_requests_carry_predictions_classes_and_objectives():
    reader = reader_of("mc_sf", predictions="requests")
    row = reader.row(Request("a", 10, 1, priority=3, predicted_len=20.5))
    assert row == {"prompt_len": 10, "priority": -3, "predicted_len": 21}
    assert reader.row(Request("b", 95, 1, predicted_len=20))["predicted_len"] == 5  # the context ends there
    assert reader.row(Request("c", 10, 1, max_tokens=30))["predicted_len"] == 30  # it carries none
    assert (
        reader_of("mc_sf", predictions="max_tokens").row(Request("c", 10, 1, max_tokens=40))["predicted_len"]
        == 40
    )
    optional = reader_of("ranked", predictions="requests")
    assert optional.row(Request("c", 10, 1)) == {"prompt_len": 10, "priority": 0}
    assert optional.row(Request("c", 10, 1, predicted_len=9))["predicted_len"] == 9
    assert optional.row(Request("c", 10, 1, predicted_len=9, predicted_low=8, predicted_high=12)) == {
        "prompt_len": 10, "priority": 0, "predicted_len": 9, "predicted_low": 8, "predicted_high": 12,
    }  # fmt: skip
    interval = reader_of("mc_longest", predictions="requests")
    assert interval.row(Request("d", 10, 1, predicted_len=9))["predicted_high"] == 9
    assert interval.row(Request("d", 10, 1, predicted_low=3, predicted_high=8))["predicted_high"] == 8
    classes = [{"name": name, "rate": 1.0, "prompt_len": 5, "output_len": 5} for name in ("chat", "code")]
    assert (
        reader_of("flow_control_classes:budgets=4/4", classes=classes).row(
            Request("e", 1, 1, **{"class": "code"})
        )["class_id"]
        == 1
    )
    objectives = reader_of("slai", tbt_slo=0.1)
    assert objectives.row(Request("f", 1, 1))["tbt_slo"] == 0.1
    assert objectives.row(Request("g", 1, 1, tbt_slo=0.2, ttft_slo="2"))["ttft_slo"] == 2.0
    assert objectives.row(Request("h", 1, 1))["ttft_slo"] == math.inf


def test_a_function_predicts(monkeypatch):
    mine = SimpleNamespace(half_the_prompt=lambda request: request.num_prompt_tokens / 2)
    monkeypatch.setitem(sys.modules, "mine", mine)
    reader = reader_of("mc_sf", predictions="mine:half_the_prompt")
    assert reader.row(Request("a", 10, 1))["predicted_len"] == 5


def test_a_function_that_fails_is_no_prediction(monkeypatch):
    def ends(request):
        raise SystemExit("\n")

    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(ends=ends))
    reader = reader_of("mc_sf", predictions="mine:ends")
    assert reader.row(Request("a", 10, 1, max_tokens=7))["predicted_len"] == 7
    assert [field for field, _ in WRONG] == ["prediction"]
    assert WRONG[0][1].startswith("UserCodeError: predictions test_a_function_that_fails")


@pytest.mark.parametrize("value", [0, -3, "many", [], [1] * 1000, {}, 10**400, None])
def test_a_wrong_prediction_is_treated_as_none(value):
    reader = reader_of("mc_sf", predictions="requests")
    assert reader.row(Request("a", 10, 1, max_tokens=7, predicted_len=value))["predicted_len"] == 7
    assert bool(WRONG) == (value is not None)
    for field, text in WRONG:
        assert field == "prediction"
        assert text.startswith("ConfigError: prediction ")
        assert "of a request; expected " in text


def test_a_prediction_beyond_all_limits_is_the_limit():
    reader = reader_of("mc_longest", predictions="requests")
    row = reader.row(Request("a", 10, 1, max_tokens=7, predicted_low="1e300", predicted_high=math.inf))
    assert (row["predicted_low"], row["predicted_high"]) == (7, 7)
    assert not WRONG


def test_a_wrong_value_is_treated_as_missing_and_the_other_fields_count():
    reader = reader_of("slai", tbt_slo=0.1)
    assert reader.row(Request("a", 10, 1, tbt_slo="soon", ttft_slo=3)) == {
        "prompt_len": 10, "priority": 0, "tbt_slo": 0.1, "ttft_slo": 3.0,
    }  # fmt: skip
    assert WRONG == [("tbt_slo", "ConfigError: tbt_slo 'soon' of a request; expected a number > 0")]
    classes = [{"name": "chat", "rate": 1.0, "prompt_len": 5, "output_len": 5}]
    reader = reader_of("flow_control_classes:budgets=4", classes=classes)
    for name in ("code", ["chat"], 3):
        assert reader.row(Request("a", 10, 1, **{"class": name}))["class_id"] == 0
    assert [text.partition(" of ")[0] for _, text in WRONG] == [
        "ConfigError: class 'code'", "ConfigError: class ['chat']", "ConfigError: class 3",
    ]  # fmt: skip


def test_claims_count_only_where_requests_are_trusted():
    claims = {"predicted_len": 1, "ttft_slo": 1e-9, "tbt_slo": 1e-9, "class": "code"}
    request = Request("a", 10, 1, priority=-99, max_tokens=50, **claims)
    unknown = {"trust_requests": False, "priorities": False}
    row = reader_of("mc_sf", predictions="max_tokens", **unknown).row(request)
    assert row["predicted_len"] == 50
    assert reader_of("slai", tbt_slo=0.1, **unknown).row(request) == {
        "prompt_len": 10, "priority": 0, "ttft_slo": math.inf, "tbt_slo": 0.1,
    }  # fmt: skip
    assert reader_of("slai", tbt_slo=0.1).row(request)["tbt_slo"] == 1e-9
    classes = [{"name": name, "rate": 1.0, "prompt_len": 5, "output_len": 5} for name in ("chat", "code")]
    with pytest.raises(ConfigError, match="set classes, and trust_requests if there is more than one"):
        reader_of("flow_control_classes:budgets=4/4", classes=classes, **unknown)
    one = reader_of("flow_control_classes:budgets=4", classes=classes[:1], **unknown)
    assert one.row(request)["class_id"] == 0
    assert not WRONG


@pytest.mark.parametrize(
    ("trust", "rule", "priority"), [(False, "fcfs", 0), (True, "fcfs", 9), (False, "priority", 9)]
)
def test_priorities_count_where_requests_are_trusted_or_vllm_counts_them(trust, rule, priority):
    settings = {"policy": "vllm_v1:policy=priority", "batch_time": UNIT, "trust_requests": trust}
    scheduler = Scheduler(configuration(settings, **{"policy": rule}), MEMORY)
    scheduler.add_request(Request("a", 10, 1, priority=-9))
    scheduler.schedule()
    assert scheduler._mirror.workload["priority"][0] == priority
