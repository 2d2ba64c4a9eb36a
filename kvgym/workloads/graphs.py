"""Agent graphs: which requests must have ended before a request arrives.

A turn of a session follows the turn before it. An agent that calls others makes further edges: the first turn of a
called agent follows the turn that has called it, and the turn that uses what several agents have found follows the
last turn of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import WorkloadError
from kvgym.utils.checks import MOST, whole_numbers
from kvgym.workloads.hashes import positions


@dataclass(frozen=True, eq=False)
class Parents:
    """The requests that must have ended before each of n requests arrives: a ragged column of rows.

    Attributes:
        start: int64 (n + 1,), position in ``rows`` of each request's first parent; the last is the number of all.
        rows: int64 (E,), the parents, as rows of the requests.
    """

    start: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Convert and check the arrays.

        Raises:
            WorkloadError: arrays of wrong shapes or ranges.
        """
        start, rows = (
            whole_numbers(getattr(self, name), f"parents: {name}", WorkloadError, most=most)
            for name, most in (("start", MOST), ("rows", 2**31 - 1))
        )
        if not len(start) or start[0] != 0 or start[-1] != len(rows) or (np.diff(start) < 0).any():
            raise WorkloadError(
                f"parents: start must not decrease from 0 to {len(rows):,}, the number of parents; "
                "Parents.from_rows makes it"
            )
        vars(self).update(start=start, rows=rows)
        start.setflags(write=False)
        rows.setflags(write=False)

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[int]]) -> Parents:
        """Return the parents of requests from the rows of each request's parents.

        Raises:
            WorkloadError: a row is no whole number ≥ 0.
        """
        lists = [list(each) for each in rows]
        flat = [row for each in lists for row in each]
        start = np.cumsum([0, *map(len, lists)])
        return cls(start, np.array(flat) if flat else np.zeros(0, np.int64))

    @classmethod
    def from_edges(cls, parent: NDArray[np.int64], child: NDArray[np.int64], n: int) -> Parents:
        """Return the parents of ``n`` requests from edges, (E,) each; an edge counts once."""
        child, parent = np.divmod(np.unique(child * n + parent), max(n, 1))
        return cls(np.searchsorted(child, np.arange(n + 1)), parent)

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.start) - 1

    @property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The parent and the child of each edge, by child, int64 (E,) each."""
        return self.rows, np.repeat(np.arange(len(self)), np.diff(self.start))

    @property
    def roots(self) -> NDArray[np.bool_]:
        """Whether each request has no parents, bool (n,)."""
        return np.asarray(np.diff(self.start) == 0)

    def __getitem__(self, chosen: Any) -> Parents:
        """Return the parents of some requests, a slice, a mask (n,) or different indices, with their new numbers.

        In place of a parent that is left out, a request has the parents of that one.
        """
        kept = np.arange(len(self))[chosen]
        number = np.full(len(self), -1)
        number[kept] = np.arange(len(kept))
        found = self
        while (gone := number[found.rows] < 0).any():  # a round halves chains of rows that are left out
            parent, child = found.edges
            begin = found.start[parent[gone]]
            count = found.start[parent[gone] + 1] - begin
            inherited = parent[np.repeat(begin, count) + positions(count)[1]]
            found = Parents.from_edges(
                np.concatenate([parent[~gone], inherited]),
                np.concatenate([child[~gone], np.repeat(child[gone], count)]),
                len(self),
            )
        parent, child = found.edges
        here = number[child] >= 0
        return Parents.from_edges(number[parent[here]], number[child[here]], len(kept))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the column of a file: rows as text, ``"0 3"``."""
        rows = self.rows.tolist()
        texts = np.empty(len(self), object)
        texts[:] = [" ".join(map(str, rows[a:b])) for a, b in zip(self.start, self.start[1:], strict=False)]
        return {"parents": texts}


def turns_before(session_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of turns that follow another turn of their session, and of the turns that they follow."""
    order = np.argsort(session_id, kind="stable")
    same = session_id[order][1:] == session_id[order][:-1]
    return order[1:][same], order[:-1][same]


def checked_parents(
    given: Any, session_id: NDArray[np.int64] | None, times: NDArray[np.float64]
) -> Parents | None:
    """Return the parents of requests with the turns before them in their sessions; None if none are given.

    Args:
        given: the parents by row.
        session_id: int64 (n,), or None.
        times: arrival times, (n,), in any order.

    Raises:
        WorkloadError: no :class:`Parents` of n rows, or a parent that arrives after its child, as in every cycle.
    """
    if given is None:
        return None
    n = len(times)
    if not isinstance(given, Parents) or len(given) != n:
        raise WorkloadError(f"parents: expected Parents of {n:,} rows, e.g. by Parents.from_rows")
    parent, child = given.edges
    if (wrong := parent >= n).any():
        edge = int(np.argmax(wrong))
        raise WorkloadError(
            f"parents, row {child[edge]}: there is no row {parent[edge]}; the last is {n - 1}"
        )
    order = np.argsort(times, kind="stable")
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    if (wrong := place[parent] >= place[child]).any():
        edge = int(np.argmax(wrong))
        raise WorkloadError(
            f"parents, row {child[edge]}: its parent, row {parent[edge]}, does not arrive before it; a request arrives "
            "when its parents have ended: correct parents or arrival times"
        )
    if session_id is not None:
        later, before = turns_before(session_id[order])
        parent, child = np.concatenate([parent, order[before]]), np.concatenate([child, order[later]])
    return Parents.from_edges(parent, child, n)


def check_jobs(job_id: NDArray[np.int64] | None, session_id: NDArray[np.int64] | None) -> None:
    """Check that all turns of a session are of one job.

    Raises:
        WorkloadError: they are not; the message names two rows.
    """
    if job_id is None or session_id is None:
        return
    later, before = turns_before(session_id)
    if (wrong := job_id[later] != job_id[before]).any():
        row, other = (int(rows[int(np.argmax(wrong))]) for rows in (later, before))
        raise WorkloadError(
            f"column job_id, row {row}: job {job_id[row]}, but row {other} of the same session {session_id[row]} is of "
            f"job {job_id[other]}; expected one job for each session"
        )
