"""Schedulers over the stand-in for vLLM's, and what they log."""

import logging

import pytest

from helpers.servers import fake_vllm
from helpers.servers.fake_vllm import MEMORY, configuration
from helpers.servers.vllm_driver import BATCH_TIME, Driver
from kvgym.integrations.vllm import Scheduler, deciding


@pytest.fixture
def make(monkeypatch):
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(deciding, "LEAST_ROWS", 32)

    def made(policy="fcfs", **options):
        settings = {"policy": policy, "batch_time": BATCH_TIME, **options.pop("settings", {})}
        if not isinstance(policy, str):
            settings["policy"] = "fcfs"
            monkeypatch.setattr(deciding, "choose_policy", lambda _: (policy, policy.info.needs))
        scheduler = Scheduler(configuration(settings, **options), MEMORY)
        Driver.of(scheduler)
        return scheduler

    return made


@pytest.fixture
def messages():
    """Return the list of messages that kvgym logs."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    deciding.logger.addHandler(handler)
    yield found
    deciding.logger.removeHandler(handler)
