"""KV memory of the host in a scenario, in the units of data sheets."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.errors import ConfigError, shown
from kvgym.simulator.prefix.host_memory import HostMemory
from kvgym.utils.reading import Description

LINK_GB_PER_S = 25.0
"""Default bandwidth between the memory of the host and a GPU in each direction, GB/s: what copies over 16 lanes of PCIe
4.0 attain (32 GB/s at most).
"""


class HostMemorySettings(Description):
    """KV memory below that of each worker, see :class:`~kvgym.simulator.prefix.host_memory.HostMemory`.

    Attributes:
        gib: its size for each worker, GiB; needs hardware, as ``gb_per_s`` does.
        tokens: its size, tokens, instead.
        gb_per_s: bandwidth of each GPU from the host, GB/s.
        write_gb_per_s: bandwidth of each GPU to the host, GB/s; None = the same.
        load_time: seconds per token, instead of ``gb_per_s``.
        store_time: seconds per token, instead of ``write_gb_per_s``; None = as ``load_time``.
        latency: as in :class:`~kvgym.simulator.prefix.host_memory.HostMemory`, as the next two.
        load: ``"overlap"`` or ``"wait"``.
        outputs: whether units with output tokens are written, too.
        load_if: ``"always"``, or ``"cheaper"``: only what is loaded faster than it could be computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gib: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)
    gb_per_s: float = Field(default=LINK_GB_PER_S, gt=0)
    write_gb_per_s: float | None = Field(default=None, gt=0)
    load_time: float | None = None
    store_time: float | None = None
    latency: float = 0.0
    load: str = "overlap"
    outputs: bool = True
    load_if: str = "always"

    def memory(self, hardware: Hardware | None) -> HostMemory:
        """Return the memory of a worker.

        Args:
            hardware: of the worker; None if it has none.

        Raises:
            ConfigError: a size or a speed is missing or given twice, or needs hardware.
        """
        if (self.gib is None) == (self.tokens is None):
            raise ConfigError("host_memory: expected either gib or tokens, as in host_memory: {gib: 64}")
        model = getattr(hardware, "model", None)
        if model is None and (self.tokens is None or self.load_time is None):
            given = "gib" if self.tokens is None else "gb_per_s"
            raise ConfigError(
                f"host_memory: {given} needs hardware with a known model, which has the bytes of a token; without, "
                f"give tokens and load_time (seconds per token), got hardware = {shown(hardware)}"
            )
        size = 0.0 if model is None else float(model.kv_bytes_per_token)
        links = 1e9 * (1 if hardware is None else hardware.num_gpus)
        load_time = size / (self.gb_per_s * links) if self.load_time is None else self.load_time
        store_time = self.store_time
        if store_time is None:
            chosen = self.write_gb_per_s
            store_time = load_time if chosen is None else size / (chosen * links)
        tokens = int((self.gib or 0.0) * 2**30 / size) if self.tokens is None else self.tokens
        return HostMemory(tokens, load_time, store_time, self.latency, self.load, self.outputs, self.load_if)
