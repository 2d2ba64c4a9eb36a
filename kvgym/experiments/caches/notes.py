"""Notes on prefix caches that find nothing, or that are off although requests share beginnings."""

from __future__ import annotations

from kvgym.workloads.table import RequestTable


def cache_notes(table: RequestTable, prefix_cache: str, replays: bool) -> list[str]:
    """Return the note on a prefix cache and the requests that it serves; mostly none.

    Args:
        table: the requests.
        prefix_cache: as in :class:`~kvgym.simulator.system.System`.
        replays: whether they are the rows of a trace.
    """
    hashes, on = table.hashes is not None, prefix_cache != "off"
    if on and not hashes:
        assumed = (
            "--shared-prefix TOKENS assumes them from session_id and from a system prompt of that many tokens (0: "
            "none), see docs/prefix-cache.md"
        )
        remedy = assumed if replays else "give the workload prefixes, see docs/traces.md"
        return [f"The prefix cache finds nothing, as these requests have no block hashes: {remedy}."]
    if not on and (hashes or (table.turn is not None and (table.turn > 1).any())):
        what = "share beginnings" if hashes else "belong to sessions"
        more = "" if hashes else " --shared-prefix TOKENS (of the system prompt, 0: none)"
        return [
            f"The prefix cache is off although requests {what}; today's engines have one by default: --prefix-cache "
            f"scheduled{more}."
        ]
    return []
