"""Columns of lists and labels: block hashes, sessions and turns, clients, and predictions of several numbers."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import TraceFormatError, WorkloadError, shown
from kvgym.workloads.forecasts import Forecasts
from kvgym.workloads.graphs import Parents, checked_parents
from kvgym.workloads.hashes import BlockHashes, wrong_count
from kvgym.workloads.traces.source import SourceFile
from kvgym.workloads.traces.values import Column, Columns

HASH_COLUMNS = (
    Column("hash_ids", "hash_ids", "hashes", required=False),
    Column("hash_block", "hash_block", "positive", required=False),
    Column("hash_tokens", "hash_tokens", "tokens", required=False),
)
"""Columns of block hashes in kvgym's own format: hashes, tokens of a block, tokens that the hashes cover."""

SESSION_COLUMNS = (
    Column("session_id", "session_id", "label", required=False),
    Column("turn", "turn", "positive", required=False),
    Column("think_time", "think_time", "seconds", required=False),
    Column("gap_kind", "gap_kind", "index", required=False),
    Column("job_id", "job_id", "label", required=False),
    Column("parents", "parents", "list", required=False),
)
"""Columns of sessions and agent graphs in kvgym's own format; parents are rows of the file, from 0."""

FORECAST_COLUMNS = (
    Column("predicted_tenths", "predicted_tenths", "list", required=False),
    Column("renewed_lens", "renewed_lens", "list", required=False),
    Column("renew_every", "renew_every", "positive", required=False),
)
"""Columns of forecasts in kvgym's own format: distributions, renewed predictions, tokens between two of these."""

ROOT = -1
"""Parent of a session's first turn."""


def join_columns(data: Columns, source: SourceFile, block: int | None) -> tuple[dict[str, Any], list[str]]:
    """Return columns in which those of hashes, sessions and chats are replaced by a request table's, and notes.

    Args:
        data: columns in file order; times are in seconds.
        source: the file, for messages.
        block: tokens of a block in this format, None if it has no usual number.

    Raises:
        TraceFormatError: hashes do not fit the lengths, or turns their sessions.
    """
    columns: dict[str, Any] = {}
    data, notes = dict(data), []
    hash_ids, given, tokens = (data.pop(c.target, None) for c in HASH_COLUMNS)
    if hash_ids is not None:
        covered = (data["prompt_len"] if tokens is None else tokens).astype(np.int64)
        count = np.array([len(ids) for ids in hash_ids], np.int64)
        if given is not None and len(given):
            block = int(given[0])
            if (other := given != block).any():
                _fail(
                    source,
                    int(np.argmax(other)),
                    f"hash_block differs from the first row's, {block}; expected one",
                )
        found = _block(count, covered, block) if given is None else block
        if found is None:
            raise TraceFormatError(
                f"{source.path}: how many tokens a hash stands for does not follow from the lengths; add a column "
                "hash_block with that number"
            )
        if (wrong := count != -(-covered // found)).any():
            row = int(np.argmax(wrong))
            _fail(source, row, wrong_count(int(count[row]), int(covered[row]), found))
        if found != block and given is None:
            notes.append(f"Each hash id stands for {found} tokens, which follows from the lengths.")
        columns["hashes"] = BlockHashes.from_rows(hash_ids, covered, found)
    if "chat_id" in data:
        columns |= _sessions_by_parent(data, source)
    elif "session_id" in data:
        columns["session_id"] = _numbered(data.pop("session_id"))
        if "turn" not in data:
            columns["turn"] = _turns(columns["session_id"], data.get("arrival_time"))
    for name in ("client_id", "job_id"):
        if name in data:
            columns[name] = _numbered(data.pop(name))
    if "parents" in data:
        times = data.get("arrival_time", np.zeros(len(data["prompt_len"])))
        columns["parents"] = _parents(source, data.pop("parents"), columns.get("session_id"), times)
    tenths, renewed, every = (data.pop(c.target, None) for c in FORECAST_COLUMNS)
    if tenths is not None or renewed is not None:
        columns["forecasts"] = _forecasts(source, tenths, renewed, every)
    return data | columns, notes


def _parents(source: SourceFile, rows: Any, session_id: Any, times: NDArray[np.float64]) -> Parents | None:
    """Return the parents of their column; arguments as of :func:`~kvgym.workloads.graphs.checked_parents`."""
    try:
        return checked_parents(Parents.from_rows(rows), session_id, times)
    except WorkloadError as error:
        raise TraceFormatError(f"{source.path} (rows from 0): {error}") from None


def _forecasts(source: SourceFile, tenths: Any, renewed: Any, every: Any) -> Forecasts:
    """Return the forecasts of their columns, each None if the file has none."""
    several = every is not None and len(set(every.tolist())) > 1
    try:
        if several:
            raise WorkloadError("renew_every differs between rows; expected one number")
        points = None
        if tenths is not None:
            if len({len(row) for row in tenths}) > 1:
                raise WorkloadError(
                    "predicted_tenths have different lengths; expected ten numbers in each row"
                )
            points = np.array([list(row) for row in tenths])
        rows = None if renewed is None else [list(row) for row in renewed]
        return Forecasts.from_rows(points, rows, 0 if every is None or not len(every) else int(every[0]))
    except WorkloadError as error:
        raise TraceFormatError(f"{source.path}: {error}") from None


def _block(count: NDArray[np.int64], tokens: NDArray[np.int64], usual: int | None) -> int | None:
    """Return how many tokens a hash stands for: the usual number if it fits, else the one that the lengths imply.

    Where none fits, return one that fits the longest row, for the message.
    """
    if usual is not None and (count == -(-tokens // usual)).all():
        return usual
    some = count > 0
    if not some.any():
        return usual or 1
    low = int((-(-tokens[some] // count[some])).max())
    several = count > 1
    high = int((-(-tokens[several] // (count[several] - 1)) - 1).min()) if several.any() else 2**31
    power = 1 << max(low - 1, 0).bit_length()
    if low > high:
        longest = int(np.argmax(count))
        return usual or 1 << max(int(-(-tokens[longest] // count[longest])) - 1, 0).bit_length()
    if low == high:
        return low
    return power if power <= high < 2 * power else usual


def _sessions_by_parent(data: Columns, source: SourceFile) -> dict[str, Any]:
    """Return session and turn of each chat, which names the chat that it continues.

    A chat's first continuation, by time, belongs to its session; further ones begin sessions of their own.
    """
    chats, times = data.pop("chat_id").tolist(), data["arrival_time"].tolist()
    parents = data.pop("parent_chat_id", np.full(len(chats), ROOT)).tolist()
    rows = {chat: row for row, chat in reversed(list(enumerate(chats)))}
    turns = data.pop("turn", None)
    given = None if turns is None else turns.astype(np.int64).tolist()
    before: list[int] = []
    for row, (chat, parent) in enumerate(zip(chats, parents, strict=True)):
        if rows[chat] != row:
            _fail(source, row, f"chat_id {shown(chat)} occurs twice; expected one row per chat_id")
        if parent != ROOT and parent not in rows:
            _fail(
                source, row,
                f"parent_chat_id {shown(parent)} is no chat_id of the file; add its row, or write {ROOT} for a first "
                "turn",
            )  # fmt: skip
        before.append(ROOT if parent == ROOT else rows[parent])
    depth = _depths(source, chats, before)
    turn = given or [d + 1 for d in depth]
    session, continued = [0] * len(chats), set()
    for row in sorted(range(len(chats)), key=lambda row: (depth[row], times[row], row)):
        parent = before[row]
        if parent == ROOT:
            session[row] = row
            continue
        if turn[row] <= turn[parent]:
            _fail(
                source, row,
                f"turn {turn[row]} continues chat {shown(chats[parent])}, which is turn {turn[parent]}; expected a "
                "later turn: correct turn or parent_chat_id",
            )  # fmt: skip
        if (times[row], row) < (times[parent], parent):
            _fail(
                source, row,
                f"turn {turn[row]} at {times[row]:g} s comes before the chat that it continues "
                f"({shown(chats[parent])}, at {times[parent]:g} s); correct timestamp or parent_chat_id",
            )  # fmt: skip
        session[row] = row if parent in continued else session[parent]
        continued.add(parent)
    return {"session_id": _numbered(np.array(session)), "turn": np.array(turn)}


def _depths(source: SourceFile, chats: list[Any], before: list[int]) -> list[int]:
    """Return how many chats each one continues, one after the other."""
    unknown, on_path = -1, -2
    depth = [unknown] * len(chats)
    for first in range(len(chats)):
        path, row = [], first
        while row != ROOT and depth[row] == unknown:
            depth[row] = on_path
            path.append(row)
            row = before[row]
        if row != ROOT and depth[row] == on_path:
            parent = shown(chats[before[row]])
            _fail(
                source, row,
                f"chat_id {shown(chats[row])} continues itself through parent_chat_id {parent}; write {ROOT} for a "
                "first turn",
            )  # fmt: skip
        known = -1 if row == ROOT else depth[row]
        for k, each in enumerate(reversed(path), start=1):
            depth[each] = known + k
    return depth


def _turns(session_id: NDArray[np.int64], times: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """Return the turns of sessions, counted from 1 by time and row."""
    order = np.argsort(np.zeros(len(session_id)) if times is None else times, kind="stable")
    turn = np.empty(len(session_id), np.int64)
    seen: dict[int, int] = {}
    for row in order.tolist():
        session = int(session_id[row])
        turn[row] = seen[session] = seen.get(session, 0) + 1
    return turn


def _numbered(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return labels as numbers: whole numbers from 0 as they are, others by first appearance."""
    if labels.dtype != object:
        numbers = labels.astype(np.int64)
        if not len(numbers) or (numbers.min() >= 0 and numbers.max() < 2**31):
            return numbers
    known: dict[Any, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels.tolist()], np.int64)


def _fail(source: SourceFile, row: int, problem: str) -> NoReturn:
    raise TraceFormatError(f"{source.path}, {source.place(row)}: {problem}")
