"""KV memory of the host in a scenario, in the units of data sheets."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.errors import ConfigError, shown
from kvgym.simulator.prefix.host_memory import HostMemory, Tier
from kvgym.utils.reading import Description

LINK_GB_PER_S = 25.0
"""Default bandwidth between the memory of the host and a GPU in each direction, GB/s: what copies over 16 lanes of PCIe
4.0 attain (32 GB/s at most).
"""


STORE_GB_PER_S = 5.0
"""Default bandwidth between a store and a host in each direction, GB/s: a drive on four lanes of PCIe 4.0 attains 5 to
7 GB/s.
"""


class TierSettings(Description):
    """A memory of KV below the host, see :class:`~kvgym.simulator.prefix.host_memory.Tier`.

    Attributes:
        gib: its size for each worker, GiB; needs hardware, as ``gb_per_s`` does.
        tokens: its size, tokens, instead.
        gb_per_s: bandwidth of each worker from it, GB/s; None = the usual one.
        write_gb_per_s: bandwidth of each worker to it, GB/s; None = the same.
        load_time: seconds per token, instead of ``gb_per_s``.
        store_time: seconds per token, instead of ``write_gb_per_s``; None = as ``load_time``.
        latency: as in :class:`~kvgym.simulator.prefix.host_memory.Tier`.
        shared: ``"worker"``, ``"host"`` or ``"all"``; then the size is that of the memory which they share.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gib: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1)
    gb_per_s: float | None = Field(default=None, gt=0)
    write_gb_per_s: float | None = Field(default=None, gt=0)
    load_time: float | None = None
    store_time: float | None = None
    latency: float = 0.0
    shared: str = "worker"

    def figures(
        self, hardware: Hardware | None, place: str, usual: float, links: int
    ) -> tuple[int, float, float, float, str]:
        """Return its size in tokens, seconds per token up and down and per transfer, and the workers that share it.

        Args:
            hardware: of the worker; None if it has none.
            place: where it is among the settings.
            usual: bandwidth of a link unless given, GB/s.
            links: how many the worker has.

        Raises:
            ConfigError: a size or a speed is missing or given twice, or needs hardware.
        """
        if (self.gib is None) == (self.tokens is None):
            raise ConfigError(f"{place}: expected either gib or tokens, as in host_memory: {{gib: 64}}")
        model = getattr(hardware, "model", None)
        if model is None and (self.tokens is None or self.load_time is None):
            given = "gib" if self.tokens is None else "gb_per_s"
            raise ConfigError(
                f"{place}: {given} needs hardware with a known model, which has the bytes of a token; without, "
                f"give tokens and load_time (seconds per token), got hardware = {shown(hardware)}"
            )
        size = 0.0 if model is None else float(model.kv_bytes_per_token)
        seconds = size / (1e9 * links)
        load_time = seconds / (self.gb_per_s or usual) if self.load_time is None else self.load_time
        store_time = self.store_time
        if store_time is None:
            store_time = load_time if self.write_gb_per_s is None else seconds / self.write_gb_per_s
        tokens = int((self.gib or 0.0) * 2**30 / size) if self.tokens is None else self.tokens
        return tokens, load_time, store_time, self.latency, self.shared


class HostMemorySettings(TierSettings):
    """KV memory below that of each worker, see :class:`~kvgym.simulator.prefix.host_memory.HostMemory`.

    Attributes:
        gib: as in :class:`TierSettings`, as the next six, but bandwidths are those of each GPU.
        tokens: its size, tokens, instead.
        gb_per_s: from the host, GB/s.
        write_gb_per_s: to the host, GB/s.
        load_time: seconds per token.
        store_time: seconds per token.
        latency: seconds per transfer.
        shared: ``"worker"`` or ``"host"``.
        load: ``"overlap"``, ``"wait"`` or ``"async"``.
        outputs: whether units with output tokens are written, too.
        load_if: ``"always"``, or ``"cheaper"``: only what is loaded faster than it could be computed.
        write: ``"through"``, or ``"back"``: only when the GPU drops it.
        below: a disk or another store below the host; None = none.
        workers_per_host: workers that share what is ``shared: host``.
    """

    load: str = "overlap"
    outputs: bool = True
    load_if: str = "always"
    write: str = "through"
    below: TierSettings | None = None
    workers_per_host: int = 1

    @property
    def tiers(self) -> tuple[TierSettings, ...]:
        """All memories, from the GPU down."""
        return (self,) if self.below is None else (self, self.below)

    def memory(self, hardware: Hardware | None) -> HostMemory:
        """Return the memory of a worker.

        Args:
            hardware: of the worker; None if it has none.

        Raises:
            ConfigError: a size or a speed is missing or given twice, or needs hardware.
        """
        links, below = 1 if hardware is None else hardware.num_gpus, None
        if self.below is not None:
            below = Tier(*self.below.figures(hardware, "host_memory: below", STORE_GB_PER_S, 1))
        return HostMemory(
            *self.figures(hardware, "host_memory", LINK_GB_PER_S, links),
            load=self.load,
            outputs=self.outputs,
            load_if=self.load_if,
            write=self.write,
            below=below,
            workers_per_host=self.workers_per_host,
        )
