"""kvgym's policies in a running vLLM: a scheduler for its option ``--scheduler-cls``; see docs/deploy.md.

    vllm serve MODEL --scheduler-cls kvgym.integrations.vllm.Scheduler \
        --additional-config '{"kvgym": {"policy": "ranked", "hardware": "kernels:model=llama3-8b,gpu=h100-80gb"}}'

vLLM is imported when a scheduler is made, and only then.
"""

from __future__ import annotations

from typing import Any

from kvgym.integrations.vllm.deciding import Deciding
from kvgym.integrations.vllm.releases import CHECKED, check_release, scheduler_class
from kvgym.integrations.vllm.settings import Settings, read_settings

__all__ = [
    "CHECKED",
    "Deciding",
    "Scheduler",
    "Settings",
    "check_release",
    "read_settings",
    "scheduler_class",
]


class Scheduler:
    """The class for ``--scheduler-cls``: makes a scheduler of vLLM in which a policy of kvgym decides.

    It derives from vLLM's ``AsyncScheduler`` if asynchronous scheduling is on, otherwise from its ``Scheduler``.

    Raises:
        ConfigError: vLLM is missing or its release unknown, an option of vLLM does not fit, or the settings are wrong
            or lack what the policy needs.
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the scheduler; arguments as for vLLM's."""
        made = scheduler_class(bool(vllm_config.scheduler_config.async_scheduling))
        return made(vllm_config, *args, **kwargs)
