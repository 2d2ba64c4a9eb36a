"""Files of observed requests: a row per request, and what was observed of the server as a whole.

A row is appended when its answer has ended, in one write, so that no end of this process loses it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgym.errors import KVGymError
from kvgym.experiments.result_files import run_context, write_json
from kvgym.servers.endpoint.client import Measured, Server, lateness
from kvgym.servers.endpoint.target import Counters
from kvgym.servers.validation.log_formats import OBSERVED, REQUESTS
from kvgym.utils.files import open_plain, write_text

LATE = 0.01
"""Lateness of requests, seconds, above which a log has a note of it."""


WARM_UP = 300
"""Requests after the start of a server in which measured servers were slower than later."""


def notes(server: Server, found: Sequence[Measured], counters: tuple[Counters, Counters]) -> list[str]:
    """Return what a reader of a log should know, one sentence each; arguments as of :func:`save_observed`."""
    before, after = counters
    said = []
    if server.simulated:
        said.append(
            f"The server was kvgym server mock at {server.speed:g} times real time: agreement with it proves nothing."
        )
    if not server.ignore_eos:
        said.append("The server does not take ignore_eos: answers end where the model ends them.")
    if (late := lateness(found)) > LATE * server.speed:
        said.append(
            f"1 % of the requests were sent more than {1e3 * late:,.0f} ms late; this client was too slow."
        )
    warm = before.answered + sum(each.warm_up for each in found)
    if warm < WARM_UP and not server.simulated:
        said.append(
            f"The log begins at the server's start, after {before.answered:,.0f} requests: in their first {WARM_UP} "
            "requests servers were 10 to 25 % slower than later; leave them out by --skip N, or observe --warm-up N."
        )
    known = [each for each in found if each.cached_tokens is not None and each.prompt_len]
    if known:
        cached, prompts = (
            sum(getattr(each, name) for each in known) for name in ("cached_tokens", "prompt_len")
        )
        said.append(f"The prefix cache had {cached / prompts:.1%} of all prompt tokens.")
    if math.isfinite(after.kv_capacity):
        said.append(
            f"The server reports {after.kv_capacity:,.0f} KV tokens (--kv-capacity {after.kv_capacity:.0f})."
        )
    return said


class RequestLog:
    """The rows of ``requests.jsonl``, appended one by one in order of their ends.

    Args:
        folder: created if missing; an earlier file of this name is replaced.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / REQUESTS, "")
        self._file = open_plain(folder / REQUESTS, "a")

    def add(self, request: Measured) -> None:
        """Append a request.

        Raises:
            KVGymError: the disk takes no more.
        """
        try:
            self._file.write(json.dumps(request.row()) + "\n")
            self._file.flush()
        except OSError as error:
            raise KVGymError(f"{self._file.name}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def save_observed(
    folder: Path,
    server: Server,
    found: Sequence[Measured] | None,
    counters: tuple[Counters, Counters],
    *,
    workload: str,
    command: str,
) -> None:
    """Write ``observed.json``, without the key.

    Args:
        folder: of the rows.
        server: the server.
        found: the requests that were sent; None at the beginning, for a measurement that will be killed.
        counters: of the server, before and after.
        workload: description of the workload.
        command: the command line.
    """
    before, after = counters
    evictions = after.evictions - before.evictions
    target, sent = server.target, found or ()
    said = notes(server, sent, counters)
    if found is None:
        said.append("The measurement was killed: requests without an answer until then are missing.")
    about: dict[str, Any] = {
        "url": target.url,
        "model": target.model,
        "api": target.api,
        "key_sent": bool(target.key),
        "workload": workload,
        "sent": None if found is None else len(found),
        "complete": sum(not each.reason for each in sent),
        "reasons": dict(Counter(each.reason for each in sent if each.reason)),
        "num_evictions": int(evictions) if math.isfinite(evictions) else None,
        "kv_capacity": int(after.kv_capacity) if math.isfinite(after.kv_capacity) else None,
        "late_p99": lateness(sent),
        "tokens_per_word": server.prompts.tokens_per_word,
        "fixed_tokens": server.prompts.fixed_tokens,
        "ignore_eos": server.ignore_eos,
        "notes": said,
        **run_context(command),
    }
    write_json(folder / OBSERVED, about)
