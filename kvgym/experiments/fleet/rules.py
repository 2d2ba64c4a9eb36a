"""Rules of the engine in a scenario."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, field_validator, model_serializer

from kvgym.simulator.drafts.settings import make_speculation
from kvgym.utils.reading import Description

_YOUNGER = ("transfer_link", "transfer_overlap", "local_prefill", "speculation")
"""Rules that files and hashes of scenarios have only where they are used."""


class SystemSettings(Description):
    """Rules of the engine, see :class:`~kvgym.simulator.system.System`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_token: str = "counted"
    progress_on_evict: str = "lost"
    requeue: str = "arrival"
    horizon: float | None = None
    stall_limit: int | None = None
    swap_time: float = 0.0
    transfer_latency: float = 0.0
    transfer_time: float = 0.0
    block_size: int = 1
    output_kv: str = "at_once"
    prefix_cache: str = "off"
    prefix_block: int | None = None
    cache_rule: str = "lru"
    cache_staleness: float = 0.0
    sessions: str = "open"
    transfer_link: str = "private"
    transfer_overlap: int = 0
    local_prefill: bool = False
    speculation: str | dict[str, Any] | None = None

    @field_validator("speculation")
    @classmethod
    def _speculation(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """Reject settings that do not describe a speculation."""
        make_speculation(value)
        return None if value == "off" else value

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit younger rules that are not used, so that files and hashes of other scenarios stay."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name not in _YOUNGER or value != fields[name].default
        }
