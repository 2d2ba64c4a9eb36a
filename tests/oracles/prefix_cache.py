"""A prefix cache, and first come, first served over it, in plain Python: an oracle for tests, written for clarity.

It shares no code with the engine. The state is what each running request holds and the list of shareable units;
references, the order of eviction and hits are searched for whenever they are needed.

A *unit* is a part of a prompt or output that requests may share: one or several whole blocks. A *chain* names the
contents of a request's full units; equal names mean equal content and equal content before it. Units are used (held
by a running request) or cached (listed, so that a start finds them, but held by none: free memory). A block that is
not full, not listed yet or has no name is private to its request. All other blocks are blank.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple


@dataclass(eq=False)
class Unit:
    """A listed copy of a content; several copies of one content may be listed."""

    content: Any
    parent: Any  # the content before it in its chain, None for the first
    released: int = 0  # number of the release that last gave it back


@dataclass(eq=False)
class Table:
    """What a running request holds: ``units`` are its listed units, from the start of its chain."""

    chain: Sequence[Any]
    tokens: int  # tokens with KV, those of the present batch included
    units: list[Unit]


@dataclass
class ReferencePool:
    """Blocks of memory with a prefix cache."""

    blocks: int
    size: int  # tokens of a block
    share: str  # a full unit is listed: "computed" = at the end of its batch, "scheduled" = once allocated
    chains: Mapping[Any, Sequence[Any]]  # contents of the full units of each request, by its id
    unit: int = 0  # tokens of a unit, a multiple of ``size``; 0 = ``size``
    ahead: int = 0  # tokens beyond its KV that each running request has memory for

    def __post_init__(self) -> None:
        """Start with blank memory."""
        self.unit, self.blank, self.releases = self.unit or self.size, self.blocks, 0
        self.per_unit, rest = divmod(self.unit, self.size)
        assert rest == 0
        assert self.share in ("computed", "scheduled")
        self.tables = dict[Any, Table]()  # in order of start
        self.pins = dict[Any, tuple[float, list[Unit]]]()  # deadline (s) and units of finished requests
        self.listed = list[Unit]()  # oldest first

    def references(self) -> Counter[Unit]:
        """Return how many running requests hold each used unit."""
        return Counter(itertools.chain.from_iterable(table.units for table in self.tables.values()))

    def pinned(self) -> set[Unit]:
        """Return the units of all pins, used or not."""
        return set[Unit]().union(*(units for _, units in self.pins.values()))

    def held(self) -> set[Unit]:
        """Return the used units."""
        return set(self.references())

    def order_of_eviction(self) -> list[Unit]:
        """Return the cached units without a pin, next victim first: in order of release."""
        spared = self.held() | self.pinned()
        return sorted((unit for unit in self.listed if unit not in spared), key=attrgetter("released"))

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks of a request that has KV of ``tokens`` tokens, whether shared or its own."""
        return -(-(tokens + self.ahead) // self.size)

    def private(self, table: Table) -> int:
        """Return the private blocks of a request."""
        return self.blocks_of(table.tokens) - self.per_unit * len(table.units)

    @property
    def used(self) -> int:
        """Blocks in use; a shared one counts once."""
        return self.per_unit * len(self.held()) + sum(map(self.private, self.tables.values()))

    @property
    def cached(self) -> int:
        """Blocks of cached units."""
        return self.per_unit * (len(self.listed) - len(self.held()))

    @property
    def free(self) -> int:
        """Blocks that new tokens may take."""
        return self.blank + self.cached

    def match(self, i: Any, known: int) -> list[Unit]:
        """Return the hit of request ``i``: its first units as far as listed, but never all ``known`` tokens."""
        first = {unit.content: unit for unit in reversed(self.listed)}  # of copies, the one listed first
        contents = self.chains[i][: (known - 1) // self.unit]
        return [first[content] for content in itertools.takewhile(first.__contains__, contents)]

    def need(self, known: int, hit: list[Unit]) -> int:
        """Return the free blocks that a start with ``known`` tokens takes: all but units that others hold now."""
        return self.blocks_of(known) - self.per_unit * len(self.held().intersection(hit))

    def growth(self, i: Any, tokens: int) -> int:
        """Return the free blocks that ``tokens`` more tokens of a running request take."""
        now = self.tables[i].tokens
        return self.blocks_of(now + tokens) - self.blocks_of(now)

    def allocate(self, blocks: int, table: Table) -> None:
        """Take blocks for a request, blank ones first, then those of cached units; list its full units if due."""
        if self.blank < blocks:
            self.drop(-(-(blocks - self.blank) // self.per_unit))
        self.blank -= blocks
        if self.share == "scheduled":
            self.enlist(table)

    def enlist(self, table: Table) -> None:
        """Make the full units of a request shareable."""
        for j in range(len(table.units), min(len(table.chain), table.tokens // self.unit)):
            unit = Unit(table.chain[j], table.chain[j - 1] if j else None)
            self.listed.append(unit)
            table.units.append(unit)

    def admit_many(
        self, starts: Sequence[tuple[Any, int, int]], whole: bool = False
    ) -> list[tuple[int, int]] | None:
        """Start requests by one decision: all are matched and hold their hits before a block is allocated.

        Args:
            starts: id, known tokens and largest first chunk (tokens beyond the hit) of each.
            whole: admit only if all known tokens fit, not just the first chunk.

        Returns:
            Tokens of the hit and of the chunk of each; None = they do not all fit, and nothing has changed.
        """
        assert self.share == "computed" or len(starts) == 1
        hits = [self.match(i, known) for i, known, _ in starts]
        need = self.per_unit * len({unit for hit in hits for unit in hit} - self.held())
        tables, sizes = dict[Any, Table](), list[tuple[int, int]]()
        for (i, known, chunk), hit in zip(starts, hits, strict=True):
            found = self.unit * len(hit)
            sizes.append((found, min(chunk, known - found)))
            tables[i] = Table(self.chains[i], sum(sizes[-1]), hit)
            need += self.blocks_of(known if whole else tables[i].tokens) - self.per_unit * len(hit)
        if need > self.free:
            return None
        self.tables |= tables
        for table in tables.values():
            self.allocate(self.private(table), table)
        return sizes

    def admit(self, i: Any, known: int, chunk: int, whole: bool = False) -> tuple[int, int] | None:
        """Start one request; arguments and result as of :meth:`admit_many`."""
        sizes = self.admit_many([(i, known, chunk)], whole)
        return sizes[0] if sizes else None

    def grow(self, i: Any, tokens: int) -> bool:
        """Give a running request more tokens; False = they do not fit, and nothing has changed."""
        if (new := self.growth(i, tokens)) > self.free:
            return False
        self.tables[i].tokens += tokens
        self.allocate(new, self.tables[i])
        return True

    def end_batch(self) -> None:
        """List the units that the batch has filled."""
        for table in self.tables.values():
            self.enlist(table)

    def release(self, i: Any) -> None:
        """End or evict a request: it gives back its units, the last one first."""
        table = self.tables.pop(i)
        self.blank += self.private(table)
        self.give_back(table.units)

    def give_back(self, units: list[Unit]) -> None:
        """Make units the last victims, the last unit first."""
        for unit in reversed(units):
            self.releases += 1
            unit.released = self.releases

    def pin(self, i: Any, units: list[Unit], deadline: float) -> None:
        """Spare the units that a finished request has just given back."""
        if units:
            self.pins[i] = deadline, units

    def unpin(self, i: Any) -> None:
        """End a pin; its units become the last victims, unless they are used or have another pin."""
        self.give_back(self.pins.pop(i)[1])

    def first_pin(self) -> Any:
        """Return the request with the pin that ends first, of equal deadlines the one pinned first."""
        return min(self.pins, key=lambda i: self.pins[i][0], default=None)

    def drop(self, count: int) -> int:
        """Make the blocks of the next ``count`` victims blank; return how many units there were."""
        victims: list[Unit] = []
        while len(victims) < count and (order := self.order_of_eviction() or self.pins):
            if isinstance(order, dict):
                self.unpin(self.first_pin())
                continue
            victims.append(order[0])
            self.listed.remove(order[0])
        self.blank += self.per_unit * len(victims)
        return len(victims)

    def state(self) -> dict[str, Any]:
        """Return the counters, cached contents (next victim first), copies per content, and references above 0."""
        return {
            "used": self.used,
            "cached": self.cached,
            "blank": self.blank,
            "lru": [unit.content for unit in self.order_of_eviction()],
            "listed": sorted(Counter(unit.content for unit in self.listed).items()),
            "refs": [1] * sum(map(self.private, self.tables.values())) + sorted(self.references().values()),
        }

    def check(self) -> None:
        """Assert the properties that hold after every operation."""
        assert self.blank >= 0
        assert self.used + self.cached + self.blank == self.blocks
        assert self.held() <= set(self.listed)
        for table in self.tables.values():
            assert [unit.content for unit in table.units] == list(table.chain[: len(table.units)])
            assert self.private(table) >= 0
        holders = Counter(unit.content for table in self.tables.values() for unit in table.units)
        links = {(unit.parent, unit.content) for unit in self.listed if unit.parent is not None}
        assert {parent for parent, _ in links} <= {unit.content for unit in self.listed}
        assert all(holders[parent] >= holders[content] for parent, content in links)


@dataclass
class Outcome:
    """Times (s) of a request, its evictions, and the tokens that its starts found in the cache."""

    start: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    evictions: int = 0
    hit: int = 0  # of the first start
    hit_resumed: int = 0  # of all later starts


class Iteration(NamedTuple):
    """One iteration; memory in tokens, requests by index."""

    start: float
    memory_before: int  # in use when the policy decides
    cached_before: int
    hits: dict[int, int]  # tokens that each waiting request would find then
    evicted: list[int]
    admitted: list[int]
    memory: int  # in use while the batch runs
    cached: int


def run_reference(
    requests: Sequence[tuple[float, int, int, Sequence[Any]]],
    capacity: int,
    block: int,
    unit: int,
    progress: str,
    share: str = "computed",
    keep: Callable[[int], float] = lambda i: 0.0,
) -> tuple[list[Outcome], list[Iteration]]:
    """Serve requests first come, first served on one worker; every iteration takes 1 s.

    A prompt is prefilled whole, less its hit, in an iteration that emits an output token. If the next iteration does
    not fit, the requests activated last are evicted one by one, and none is admitted. Otherwise requests are
    admitted in order of arrival while their needs, each judged before any of them starts, fit together.

    An output token takes memory from the iteration that emits it, but engines compute its KV one iteration later: a
    running request has memory for one token more than it can share.

    Args:
        requests: arrival (s), prompt and output (tokens), chain of each; equal arrivals are served by index.
        capacity: memory, tokens; only whole blocks count.
        block: tokens of a block.
        unit: tokens of a unit, a multiple of ``block``.
        progress: what evicted requests keep: ``"lost"`` = nothing; ``"recompute"`` = their output tokens, with KV
            to prefill again.
        share: see :class:`ReferencePool`. If ``"scheduled"``, running requests grow one by one before others start,
            and those to be evicted are released only when the next one does not fit.
        keep: time for which the units of a finished request are spared (s), or until a request starts with a hit that
            ends with the last of them.

    Returns:
        The outcome of each request, and the iterations.
    """
    assert progress in ("lost", "recompute")
    arrival, prompt, output, chains = zip(*requests, strict=True)
    outcomes, trace, generated = [Outcome() for _ in requests], list[Iteration](), [0] * len(requests)
    pool = ReferencePool(capacity // block, block, share, dict(enumerate(chains)), unit, ahead=1)
    assert all(pool.blocks_of(p + o - 1) <= pool.blocks for p, o in zip(prompt, output, strict=True))
    future = sorted(range(len(requests)), key=arrival.__getitem__)
    waiting, active, clock = list[int](), list[int](), 0.0
    while future or waiting or active:
        if not (waiting or active):
            clock = max(clock, arrival[future[0]])
        while future and arrival[future[0]] <= clock:
            waiting.append(future.pop(0))
        waiting.sort(key=lambda i: (arrival[i], i))
        known = {i: prompt[i] + generated[i] for i in waiting}
        matches = {i: pool.match(i, known[i]) for i in waiting}
        hits = {i: unit * len(match) for i, match in matches.items()}
        assert all(hits[i] < known[i] for i in waiting)
        before = (pool.used * block, pool.cached * block)

        evicted, admitted = list[int](), list[int]()
        trial = copy.deepcopy(pool)
        while (left := trial.free - sum(trial.growth(i, 1) for i in active)) < 0:
            evicted.append(active.pop())
            trial.release(evicted[-1])
        for i in [] if evicted else waiting:
            if (need := pool.need(known[i], matches[i])) > left:
                break
            left -= need
            admitted.append(i)

        victims = list(evicted)
        while share == "computed" and victims:
            pool.release(victims.pop(0))
        for i in admitted:
            ends = [j for j, (_, units) in pool.pins.items() if matches[i] and units[-1] is matches[i][-1]]
            if ends:
                pool.unpin(ends[-1])
        while pool.pins and pool.pins[first := pool.first_pin()][0] <= clock:
            pool.unpin(first)
        starts, found = [(i, known[i], known[i]) for i in admitted], list[tuple[int, int] | None]()
        if share == "computed":  # starts hold their hits before growth may evict them
            found += pool.admit_many(starts) or []
            assert found == [(hits[i], known[i] - hits[i]) for i in admitted]
        for i in active:
            while not pool.grow(i, 1):
                pool.release(victims.pop(0))
        while victims:
            pool.release(victims.pop(0))
        if share == "scheduled":
            found += [pool.admit(*start) for start in starts]
        assert pool.free >= left  # needs before the decision bound what the decision takes
        pool.check()
        for i, sizes in zip(admitted, found, strict=True):
            assert sizes is not None
            if math.isnan(outcomes[i].start):
                outcomes[i].start, outcomes[i].hit = clock, sizes[0]
            else:
                outcomes[i].hit_resumed += sizes[0]
        for i in evicted:
            outcomes[i].evictions += 1
            generated[i] = generated[i] if progress == "recompute" else 0
        waiting = [i for i in waiting if i not in admitted] + evicted
        active += admitted
        assert active
        now = (pool.used * block, pool.cached * block)
        trace.append(Iteration(clock, *before, hits, evicted, admitted, *now))

        clock += 1.0
        pool.end_batch()
        for i in list(active):
            generated[i] += 1
            if math.isnan(outcomes[i].first_token):
                outcomes[i].first_token = clock
            if generated[i] == output[i]:
                outcomes[i].finish = clock
                active.remove(i)
                units = pool.tables[i].units
                pool.release(i)
                if seconds := keep(i):
                    pool.pin(i, units, clock + seconds)
    return outcomes, trace
