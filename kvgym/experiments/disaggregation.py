"""Separate prefill and decode workers by options: their groups, the link between them, and the same GPUs together."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, TypeVar

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.scenario_options import ScenarioOptions
from kvgym.utils.checks import real_number, whole_number
from kvgym.utils.specs import parse_seconds, parse_value

T = TypeVar("T")

UNITS = {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Mbit/s": 1.25e5, "Gbit/s": 1.25e8}
"""Bytes per second of each unit."""

LINK_FORMS = (
    "25GB/s or 200Gbit/s, with a latency as in 25GB/s+1ms, a share attained as in 200GB/s+0.4ms,share=0.73, shared by "
    "transfers as in 25GB/s,shared"
)

SERVER_GPUS = 8
"""Most GPUs in a server that are linked to each other, as in DGX and HGX servers of A100, H100, H200 and B200."""

_LINK = re.compile(r"([^\s+a-zA-Z]+(?:[eE]\d+)?) *([A-Za-z]+/s)(?:\+(.+))?")


def roles(scenario: Scenario) -> tuple[int, int]:
    """Return the numbers of prefill and of decode workers; (0, 0) if workers serve whole requests."""
    groups = () if isinstance(scenario.workers, int) else scenario.workers
    counts = {role: sum(g.count for g in groups if g.role == role) for role in ("prefill", "decode")}
    return counts["prefill"], counts["decode"]


def split_workers(base: Scenario, options: ScenarioOptions) -> list[dict[str, Any]] | None:
    """Return the groups of workers that options describe; None if they describe none.

    Args:
        base: the scenario; its numbers of workers hold unless both are given.
        options: the options.

    Raises:
        ConfigError: a number is missing or out of range, or the number of equal workers is given too.
    """
    given = {"prefill": options.prefill_workers, "decode": options.decode_workers}
    if all(count is None for count in given.values()):
        return None
    if options.workers is not None:
        raise ConfigError(
            f"workers = {options.workers} and prefill_workers or decode_workers exclude each other: workers that serve "
            "whole requests, or separate ones"
        )
    groups = []
    for (role, count), present in zip(given.items(), roles(base), strict=True):
        number = present if count is None else count
        if number < 1:
            other = next(name for name in given if name != role)
            raise ConfigError(
                f"{role}_workers = {count}: expected a whole number ≥ 1"
                if count is not None
                else f"{other}_workers = {given[other]} needs {role}_workers too, as in {role}_workers = 1"
            )
        groups.append({"role": role, "count": number})
    return groups


class Link(NamedTuple):
    """Link from prefill to decode workers.

    Attributes:
        bandwidth: nominal bytes per second from one worker to another, all its network cards together.
        latency: seconds of a hand-over without a token; None = the GPU's.
        share: of the bandwidth that transfers attain.
        copies: of the cache that are sent; None = as many as the decode worker keeps.
        shared: whether the transfers of a worker share it, see ``transfer_link`` of the system.
        overlap: layers of the model, where prefill and hand-over overlap; 0 = they do not.
    """

    bandwidth: float
    latency: float | None = None
    share: float = 1.0
    copies: int | None = None
    shared: bool = False
    overlap: int = 0


def parse_link(text: str) -> Link:
    """Read a link such as ``"25GB/s"``, ``"25GB/s+1ms,shared,overlap=32"`` or ``"200GB/s+0.4ms,share=0.73,copies=2"``.

    Raises:
        ConfigError: the text has another form.
    """
    what = f"link {shown(text)}"
    first, _, rest = text.partition(",")
    match = _LINK.fullmatch(first.strip())
    try:
        bandwidth = float(match[1]) * UNITS[match[2]] if match else math.nan
    except (ValueError, KeyError):
        bandwidth = math.nan
    if not match or not 0 < bandwidth < math.inf:
        raise ConfigError(f"{what}: expected a bandwidth, as in {LINK_FORMS}")
    latency = None if match[3] is None else parse_seconds(match[3], f"{what}: latency")
    given = dict(part.strip().partition("=")[::2] for part in rest.split(",")) if rest else {}
    shared = given.pop("shared", None)
    if shared:
        raise ConfigError(f"{what}: shared = {shown(shared)}; expected shared alone, as in 25GB/s,shared")
    if unknown := sorted(set(given) - {"share", "copies", "overlap"}):
        raise ConfigError(
            f"{what}: {shown(unknown[0])} is none of share=…, copies=…, shared and overlap=…; expected {LINK_FORMS}"
        )
    options = {name: parse_value(value) for name, value in given.items()}
    share = real_number(
        options.get("share", 1.0), f"{what}: share", "a number above 0 and at most 1", _is_share
    )
    copies = options.get("copies")
    if copies is not None:
        copies = whole_number(copies, f"{what}: copies", "a whole number ≥ 1")
    overlap = options.get("overlap", 0)
    whole_number(overlap, f"{what}: overlap", "layers of the model, 0 … 10,000", least=0, most=10_000)
    return Link(bandwidth, latency, share, copies, shared is not None, overlap)


def _is_share(value: float) -> bool:
    return 0 < value <= 1


def link_settings(scenario: Scenario, link: str | None) -> dict[str, Any]:
    """Return the settings of the engine for the link between prefill and decode workers.

    A hand-over takes the latency, and the KV cache of the request divided by the share of the bandwidth that transfers
    attain. Where a decode worker has more GPUs than KV heads, each of them keeps a copy of its heads, and all copies
    are sent.

    Args:
        scenario: a scenario with prefill and decode workers.
        link: see :func:`parse_link`; None = the GPU's, of its data sheet, where each GPU of the prefill worker sends
            its part of the cache over its own link to peers in the same server.

    Returns:
        ``transfer_latency``, seconds, and ``transfer_time``, seconds per token; of a link that is given also
        ``transfer_link`` and ``transfer_overlap``; empty if there is no link to set.

    Raises:
        ConfigError: the workers are not separate, the size of the cache is unknown, or no link is given although the
            workers do not fit into one server.
    """
    if not any(roles(scenario)):
        if link is None:
            return {}
        raise ConfigError(
            f"link = {shown(link)} needs separate workers; add prefill_workers and decode_workers, as in "
            "--prefill-workers 1 --decode-workers 1"
        )
    hardware = _hardware_of(scenario, "prefill")
    if hardware is None:
        if link is None:
            return {}
        raise ConfigError(
            f"link = {shown(link)} needs hardware, which has the bytes of a token; without, set transfer_time of the "
            "system, seconds per token"
        )
    gpu, model, sharing = hardware.gpu, hardware.model, {}
    if link is None:
        _check_one_server(scenario)
        bandwidth, latency = gpu.link_bandwidth * model.kv_parts(hardware.tensor_parallel), None
    else:
        given = parse_link(link)
        bandwidth = given.bandwidth * given.share / (given.copies or _copies(scenario))
        latency = given.latency
        sharing = {
            "transfer_link": "shared" if given.shared else "private",
            "transfer_overlap": given.overlap,
        }
    return {
        "transfer_latency": gpu.link_latency if latency is None else latency,
        "transfer_time": model.kv_bytes_per_token / bandwidth,
        **sharing,
    }


def _check_one_server(scenario: Scenario) -> None:
    """Check that the workers fit into one server, where the GPUs' own links end.

    Raises:
        ConfigError: they do not.
    """
    assert not isinstance(scenario.workers, int)
    groups = zip(scenario.workers, scenario.served, strict=True)
    loaded = [(group.count, served.loaded) for group, served in groups]
    gpus = sum(count * hardware.tensor_parallel for count, hardware in loaded if hardware is not None)
    if gpus > SERVER_GPUS:
        raise ConfigError(
            f"{gpus} GPUs of prefill and decode workers do not fit into one server of {SERVER_GPUS}, so the KV cache "
            f"crosses the network; add its bandwidth, as in link = {LINK_FORMS}"
        )


def _copies(scenario: Scenario) -> int:
    """Return the number of copies of the cache in a decode worker."""
    hardware = _hardware_of(scenario, "decode")
    if hardware is None:
        return 1
    return hardware.tensor_parallel // hardware.model.kv_parts(hardware.tensor_parallel)


def describe_roles(scenario: Scenario) -> str:
    """Return prefill and decode workers and their link in words; "" if workers serve whole requests."""
    prefill, decode = roles(scenario)
    if not prefill:
        return ""
    seconds, hardware = scenario.system.transfer_time, _hardware_of(scenario, "prefill")
    if not seconds:
        link = "a link that takes no time"
    elif hardware is None:
        link = f"{1e6 * seconds:.3g} µs per token between them"
    else:
        link = f"link {hardware.model.kv_bytes_per_token / seconds / 1e9:.3g} GB/s"
    if scenario.system.transfer_link == "shared":
        link += ", shared"
    if scenario.system.transfer_overlap:
        link += f", overlap over {scenario.system.transfer_overlap} layers"
    return f"{prefill} prefill and {decode} decode workers, {link}"


def together(scenario: Scenario) -> Scenario:
    """Return the scenario with the same workers, each of which serves whole requests.

    Raises:
        ConfigError: the workers are not separate.
    """
    if isinstance(scenario.workers, int) or not any(roles(scenario)):
        raise ConfigError(
            f"scenario {shown(scenario.name)} has no separate workers to compare with the same ones together; add "
            "prefill_workers and decode_workers"
        )
    groups = [{**group.model_dump(), "role": "mixed"} for group in scenario.workers]
    return scenario.override(workers=groups)


def in_settings(
    pairs: dict[str, T], scenario: Scenario, both: bool
) -> tuple[dict[str, T], dict[str, Scenario]]:
    """Return what to run and the scenario of each, by label.

    Args:
        pairs: what to run, by label.
        scenario: the scenario.
        both: whether to run the pairs on its separate workers and on the same workers together.
    """
    if not both:
        return pairs, dict.fromkeys(pairs, scenario)
    prefill, decode = roles(scenario)
    places = {
        f"{prefill} prefill {decode} decode": scenario,
        f"{prefill + decode} together": together(scenario).resolved(),
    }
    labelled = {f"{label}, {place}": (label, place) for label in pairs for place in places}
    return (
        {name: pairs[label] for name, (label, _) in labelled.items()},
        {name: places[place] for name, (_, place) in labelled.items()},
    )


def _hardware_of(scenario: Scenario, role: str) -> Hardware | None:
    """Return the hardware of the first worker with a role; None if it has none."""
    if isinstance(scenario.workers, int):
        return None
    groups = zip(scenario.workers, scenario.served, strict=True)
    return next(served.loaded for group, served in groups if group.role == role)
