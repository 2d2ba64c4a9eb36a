"""The measurement of policies in vLLM, without a GPU: its arguments, and serving over a stand-in for vLLM."""

import json
import sys
from types import SimpleNamespace

import measure_in_vllm
import pytest
from measure_in_vllm import BLOCK_SIZE, BLOCKS, GUESS, fit, main, predict, requests_of, serve

from helpers.servers import fake_vllm
from kvgym.integrations.vllm import Scheduler, deciding, releases

COUNT = 24


@pytest.fixture
def found(monkeypatch):
    fake_vllm.install(monkeypatch)
    releases.scheduler_class.cache_clear()


class Engine:
    """vLLM's engine in this process, with batches that take no time."""

    def __init__(self, **options):
        settings = options["additional_config"]["kvgym"]
        limits = {"budget": options["max_num_batched_tokens"], "seqs": options["max_num_seqs"]}
        config = fake_vllm.configuration(settings, blocks=BLOCKS - 1, block_size=BLOCK_SIZE, **limits)
        config.model_config.max_model_len = options["max_model_len"]
        scheduler = Scheduler(config, fake_vllm.MEMORY)
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self.llm_engine, self.engine_core, self.scheduler = self, core, scheduler

    def add_request(self, name, prompt, params):
        made = fake_vllm.Request(
            name, len(prompt["prompt_token_ids"]), params.max_tokens, max_tokens=params.max_tokens,
            **params.extra_args,
        )  # fmt: skip
        self.scheduler.add_request(made)

    def has_unfinished_requests(self):
        return bool(self.scheduler.requests)

    def step(self):
        before = len(self.scheduler.requests)
        self.scheduler.update_from_output(self.scheduler.schedule(), None)
        return [SimpleNamespace(finished=True)] * (before - len(self.scheduler.requests))


def test_policies_serve_and_are_predicted(monkeypatch, found):
    sys.modules["vllm"].LLM = Engine
    sys.modules["vllm"].SamplingParams = SimpleNamespace
    monkeypatch.setattr(deciding, "LEAST_ROWS", 64)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    measured = json.loads(json.dumps(serve("fcfs", COUNT, GUESS)))
    assert measured["decisions"] == len(measured["seconds"]) == len(measured["loads"])
    assert measured["own_rule"] == {}
    prompts, outputs = requests_of(COUNT)
    prefill, decode = (sum(load[k] for load in measured["loads"]) for k in (1, 2))
    assert (prefill, decode) == (prompts.sum(), outputs.sum() - COUNT)  # memory is enough for all
    seconds = [0.5 + 0.01 * load[1] + 0.1 * load[2] for load in measured["loads"]]
    fitted = fit(measured["loads"], seconds)
    assert fitted["per_decode_token"] == pytest.approx(0.1)
    assert predict("fcfs", COUNT, GUESS) > GUESS["constant"] * outputs.mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "fcfs"], "--policies fcfs: expected two, separated by a comma"),
        (["--requests", "1"], "--requests 1: expected a whole number ≥ 2"),
        (["--policies", "fcfs,nothing"], "error: unknown policy 'nothing'"),
        ([], "error: PyTorch finds no GPU; run this where vLLM can serve a model"),
    ],
)
def test_wrong_arguments_and_machines_are_explained(monkeypatch, found, arguments, message, capsys):
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert message in str(stopped.value) + capsys.readouterr().err


def test_a_missing_vllm_and_a_server_that_fails(monkeypatch, found):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(SystemExit, match="error: vLLM cannot be imported"):
        main([])
    monkeypatch.setattr(measure_in_vllm, "check_machine", lambda: None)
    failed = SimpleNamespace(returncode=1)
    monkeypatch.setattr(measure_in_vllm.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match="error: vLLM did not serve the requests with policy fcfs"):
        main([])
