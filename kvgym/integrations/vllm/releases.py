"""The releases of vLLM that kvgym's scheduler works with, and its classes in them."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.integrations.vllm.deciding import Deciding

CHECKED = ("0.33",)
"""Releases in which the scheduler was checked, batch by batch; see docs/deploy.md."""


def check_release() -> None:
    """Check that vLLM is there, in a release that kvgym's scheduler was checked in.

    Raises:
        ConfigError: it is not.
    """
    expected = f"vLLM {' or '.join(CHECKED)}, e.g. pip install 'vllm=={CHECKED[-1]}.*'"
    try:
        version = str(importlib.import_module("vllm").__version__)
    except Exception as error:  # an incomplete installation may raise any exception
        raise ConfigError(
            f"vLLM cannot be imported ({type(error).__name__}: {shown(str(error))}); kvgym's scheduler needs {expected}"
        ) from error
    found = re.match(r"\d+\.\d+", version)
    if found is None or found[0] not in CHECKED:
        raise ConfigError(
            f"vLLM {shown(version)}: kvgym's scheduler uses inner parts of vLLM and was not checked in this release; "
            f"it needs {expected}"
        )


@functools.lru_cache(maxsize=2)
def scheduler_class(asynchronous: bool) -> type[Any]:
    """Return the scheduler class for asynchronous or synchronous scheduling.

    Raises:
        ConfigError: see :func:`check_release`.
    """
    check_release()
    name = "AsyncScheduler" if asynchronous else "Scheduler"
    module = importlib.import_module(
        f"vllm.v1.core.sched.{'async_scheduler' if asynchronous else 'scheduler'}"
    )
    queues = importlib.import_module("vllm.v1.core.sched.request_queue")
    return type(
        f"KVGym{name}",
        (Deciding, getattr(module, name)),
        {"queue_class": queues.FCFSRequestQueue, "__doc__": __doc__},
    )
