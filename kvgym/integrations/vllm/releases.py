"""The releases of vLLM that kvgym's scheduler works with, and its classes in them."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.integrations.vllm.deciding import Deciding

CHECKED = ("0.33",)
"""Releases in which the scheduler was checked, batch by batch; see docs/deploy.md."""


METHODS = {
    "add_request": ("request",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "schedule": ("throttle_prefills",),
    "_free_request": ("request",),
    "_preempt_request": ("request", "timestamp", "drop_stale_output"),
    "_reserve_prefill_lookahead": ("request", "num_computed_tokens", "num_new_tokens"),
    "_is_blocked_waiting_status": ("status",),
    "_handle_blocked_waiting_request": ("request",),
}
"""Methods of vLLM's scheduler that kvgym's calls or overrides, with the parameters that it gives or takes."""

READ = (
    "running",
    "waiting",
    "max_num_active_reqs",
    "scheduler_reserve_full_isl",
    "_reserve_prefill_lookahead",
)
"""What ``schedule`` must read, as kvgym's scheduler decides by changing it."""

QUEUE = ("remove_request", "prepend_request")
"""Methods of vLLM's queue."""


def check_release() -> None:
    """Check that vLLM is there, in a release that kvgym's scheduler was checked in, or a later one with the same parts.

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
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and found[0] in CHECKED:
        return
    last = tuple(map(int, CHECKED[-1].split(".")))
    if found is None or (int(found[1]), int(found[2])) < last:
        raise ConfigError(
            f"vLLM {shown(version)}: kvgym's scheduler uses inner parts of vLLM and was not checked in this release; "
            f"it needs {expected} or a later release with the same parts"
        )
    if differing := differences(*_classes(False)):
        raise ConfigError(
            f"vLLM {shown(version)} has other inner parts than kvgym's scheduler uses: {'; '.join(differing)}; "
            f"it needs {expected}"
        )


def differences(scheduler: type[Any], queue: type[Any]) -> list[str]:
    """Return what a scheduler and a queue of vLLM lack of the parts that kvgym's scheduler uses; [] = nothing."""
    found = []
    for name, needed in METHODS.items():
        method = getattr(scheduler, name, None)
        if not callable(method):
            found.append(f"no {scheduler.__name__}.{name}")
        elif lacking := [p for p in needed if p not in inspect.signature(method).parameters]:
            found.append(f"{scheduler.__name__}.{name} has no parameter {', '.join(lacking)}")
    code = getattr(getattr(scheduler, "schedule", None), "__code__", None)
    unread = [name for name in READ if code is not None and name not in code.co_names]
    found += [f"{scheduler.__name__}.schedule does not read {', '.join(unread)}"] if unread else []
    return found + [f"no {queue.__name__}.{name}" for name in QUEUE if not hasattr(queue, name)]


def _classes(asynchronous: bool) -> tuple[type[Any], type[Any]]:
    """Return vLLM's scheduler and its queue in order of arrival."""
    name = "AsyncScheduler" if asynchronous else "Scheduler"
    module = importlib.import_module(
        f"vllm.v1.core.sched.{'async_scheduler' if asynchronous else 'scheduler'}"
    )
    queues = importlib.import_module("vllm.v1.core.sched.request_queue")
    return getattr(module, name), queues.FCFSRequestQueue


@functools.lru_cache(maxsize=2)
def scheduler_class(asynchronous: bool) -> type[Any]:
    """Return the scheduler class for asynchronous or synchronous scheduling.

    Raises:
        ConfigError: see :func:`check_release`.
    """
    check_release()
    scheduler, queue = _classes(asynchronous)
    return type(
        f"KVGym{scheduler.__name__}", (Deciding, scheduler), {"queue_class": queue, "__doc__": __doc__}
    )
