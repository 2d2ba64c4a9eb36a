"""Newer schedulers: scores and schedules worked out by hand, and plain-Python twins written from the definitions."""

import math

import numpy as np
import pytest

import kvgym
from kvgym.baselines.newer import ordered
from kvgym.baselines.newer.past_future import note_length, peak_of, sort_list
from kvgym.batch_time import UnitBatchTime
from kvgym.policies.contract.cases import Case, requests, require_equal
from kvgym.policies.policy import Decision, Policy, PolicyInfo, make_policy
from kvgym.simulator.system import PROGRESS_ON_EVICT, System
from kvgym.workloads import Forecasts, RequestTable
from kvgym.workloads.hashes import BlockHashes

# ---------------------------------------------------------------- scores by hand


def test_gittins_cost_by_hand():
    cost = ordered.gittins_cost.py_func
    # All ten lengths 4 after a prompt of 2: 4 (2 + 2) = 16, certain to finish.
    assert cost([4] * 10, 2, 0) == 16
    # Nine of ten have 1 token, cost 1 (2 + 0.5) = 2.5: stopping there costs 2.5 per 0.9 of a request.
    assert cost([1] * 9 + [100], 2, 0) == pytest.approx(2.5 / 0.9)
    # After that token the tenth costs 100 (2 + 50) less what is spent.
    assert cost([1] * 9 + [100], 2, 1) == 5200 - 2.5
    # Past the longest: one token more, 3 (2 + 1.5) - 2 (2 + 1).
    assert cost([1] * 10, 2, 2) == 10.5 - 6


def test_levels_by_hand():
    level = ordered.level_of.py_func
    # Quanta 1, 2, 4, …; a prefill of 3 joins the level with 4 and stays for one token.
    assert [level(3.0, 1.0, made)[0] for made in (0, 1, 2)] == [2, 2, 3]
    # Without a prefill: level 0 for one token, level 1 for two, level 2 for four.
    found = [level(0.0, 1.0, made) for made in range(9)]
    assert [number for number, _ in found] == [0, 0, 1, 1, 2, 2, 2, 2, 3]
    assert [ago for _, ago in found[2:]] == [0, 1, 0, 1, 2, 3, 0]


def test_future_peak_by_hand():
    # Holds 5 and grows by 3 more, holds 2 and grows by 1: when the second ends they hold 7 + 2, later 5 + 3.
    assert peak_of.py_func(np.array([5, 2, 3, 1]), 0, 2, 2) == 9


def test_lists_are_sorted_by_their_rest():
    rng, count, most = np.random.default_rng(0), 50, 60
    for largest in (0, 1, 200, 5000, 100_000):
        held, left = rng.integers(1, 100, count), rng.integers(0, largest + 1, count)
        state = np.zeros(4 * most + 256, np.int64)
        state[:count], state[most : most + count] = held, left
        sort_list.py_func(state, 0, 2 * most, most, count)
        order = np.argsort(-left, kind="stable")
        assert state[:count].tolist() == held[order].tolist()
        assert state[most : most + count].tolist() == left[order].tolist()


def test_past_lengths_replace_the_oldest():
    state = np.zeros(8 + 2 * 3, np.int64)
    for length in (5, 2, 9, 4):
        note_length.py_func(state, 3, length)
    assert state[6] == 3
    assert state[8 + 3 :].tolist() == [2, 4, 9]


# ---------------------------------------------------------------- schedules by hand


def starts(policy, capacity, system=None, **columns):
    table = RequestTable.from_columns(**columns)
    result = kvgym.simulate(system or System(capacity, UnitBatchTime()), table, policy, compiled=False)
    return result.requests["start_time"].tolist()


ONE_AT_A_TIME = {"prompt_len": [2] * 4, "output_len": [2] * 4}
"""With a capacity of 4 each takes two seconds, alone: 3 tokens while it prefills, 4 with the second token."""


def test_virtual_counters_by_hand():
    # Client 0 sends three requests, client 1 one. The first start costs client 0 2 for the prompt, then 2 per token,
    # so client 1 with 0 is next at 2; it then has 6, as client 0, which is first by its number.
    assert starts("vtc", 4, arrival_time=[0] * 4, client_id=[0, 0, 0, 1], **ONE_AT_A_TIME) == [0, 4, 6, 2]


def test_a_client_that_was_idle_is_lifted():
    # Client 1 arrives at 3, when client 0 has 2 + 4 + 2 + 2 = 10 and waits, so it starts from 10. At 4 client 0 has 12,
    # and client 1 goes first; at 6 client 1 has 16. From 0 it would have 6 then, and go first again.
    columns = {"prompt_len": [2] * 5, "output_len": [2] * 5, "client_id": [0, 0, 0, 1, 1]}
    assert starts("vtc", 4, arrival_time=[0, 0, 0, 3, 3], **columns) == [0, 2, 6, 4, 8]


def test_deficits_by_hand():
    # Quantum 10: both clients get 10 at 0. A request costs 2 for its prompt and 4 for its tokens, so client 0 has 4
    # left at 2 and goes on; at 4 it has none, and client 1 has 10. At 6 client 0 needs a refill.
    def at(quantum):
        return starts(
            f"dlpm:quantum={quantum}", 4, arrival_time=[0] * 4, client_id=[0, 0, 0, 1], **ONE_AT_A_TIME
        )

    assert at(10) == [0, 2, 6, 4]
    # Quantum 3: a request uses it up and 3 more. At 4 both are at -3, and get 6.
    assert at(3) == [0, 4, 6, 2]
    # Quantum 100: the order of arrival.
    assert at(100) == [0, 2, 4, 6]


def test_hits_decide_within_the_quota():
    """Four blocks of 4 tokens. At 10, AB is cached for client 0 and X for client 1; neither fits next to the other."""
    texts = ["AB", "X", "AB", "XYZ"]
    table = RequestTable.from_columns(
        arrival_time=[0, 0, 10, 10], prompt_len=[8, 4, 9, 12], output_len=[1] * 4, client_id=[0, 1, 0, 1],
        hashes=BlockHashes.from_rows([list(text) for text in texts], [4 * len(text) for text in texts], 4),
    )  # fmt: skip
    system = System(16, UnitBatchTime(), block_size=4, output_kv="next_iteration", prefix_cache="computed")
    # At 10 client 0 has used 10, client 1 has used 6: with a quantum of 8 only client 1 has some left.
    for quantum, expected in ((8, [0, 0, 11, 10]), (12, [0, 0, 10, 11])):
        policy = make_policy(f"dlpm:quantum={quantum}")
        assert (
            kvgym.simulate(system, table, policy, compiled=False).requests["start_time"].tolist() == expected
        )


def test_boosts_by_hand():
    # Sizes 9 and 1 second. With γ = 1 the boosts are 0.00012 and 0.459 s: of two requests 0.4 s apart the short one
    # goes first, of two 0.5 s apart the older one.
    for gap, order in ((0.4, [0, 4, 2]), (0.5, [0, 2, 4])):
        found = starts(
            "gamma_boost:gamma=1,token_time=1", 4,
            arrival_time=[0, 0.1, 0.1 + gap], prompt_len=[2] * 3, output_len=[2] * 3, predicted_output_len=[1, 9, 1],
        )  # fmt: skip
        assert found == order


def test_one_that_falls_goes_behind_those_of_its_new_level():
    """Quanta 1, 2, 4 s; memory for one request. B (prefill 1 s) joins level 0, A (2 s) level 1.

    B falls to level 1 at 1, behind A, which is there since 0, and A takes its place. A falls to level 2 at 2: B goes on
    for its quantum of 2 and falls behind A at 4. A makes its last token, then B.
    """
    table = RequestTable.from_columns(arrival_time=[0, 0], prompt_len=[4, 2], output_len=[2, 4])
    system = System(6, UnitBatchTime(), progress_on_evict="kept")
    result = kvgym.simulate(system, table, "fast_serve:token_time=1,prompt_time=0.5", compiled=False)
    assert result.requests["start_time"].tolist() == [1, 0]
    assert result.requests["finish_time"].tolist() == [5, 6]
    assert result.requests["num_evictions"].tolist() == [1, 2]


def test_the_guard_helps_after_its_wait():
    columns = {"arrival_time": [0, 0, 1, 3, 5], "prompt_len": [2] * 5, "output_len": [2] * 5}
    predicted = {"predicted_output_len": [2, 9, 2, 2, 2]}
    assert starts("learned_rank:guard=0", 4, **columns, **predicted) == [0, 8, 2, 4, 6]
    assert starts("learned_rank:guard=4", 4, **columns, **predicted) == [0, 4, 2, 6, 8]


@pytest.mark.parametrize("guard", [3, 8])
def test_the_guard_serves_everything_once(guard):
    """The period is longer than any request runs; with a shorter one, helped requests can evict each other for ever."""
    for seed in range(3):
        policy = make_policy(f"learned_rank:guard={guard},period=30")
        result = kvgym.simulate(
            System(24, UnitBatchTime()), requests(seed, 24), policy, seed=seed, compiled=False
        )
        assert result.completed


def test_only_young_requests_are_preempted():
    # Request 1 is shorter, and does not fit next to request 0, which would run until 5.
    columns = {"prompt_len": [2, 4], "output_len": [5, 1], "predicted_output_len": [5, 1]}
    assert starts("bounded_srpt:most=1", 7, arrival_time=[0, 1], **columns) == [0, 1]
    assert starts("bounded_srpt:most=0", 7, arrival_time=[0, 1], **columns) == [0, 5]
    # TRAIL with C = 0.4: request 0 may be preempted while it has fewer than 2 of 5 tokens.
    forecasts = Forecasts.from_rows(renewed=[[5] * 4, []], every=1)
    for arrival, start in ((1, 1), (3, 5)):
        found = starts("trail:share=0.4", 7, arrival_time=[0, arrival], forecasts=forecasts, **columns)
        assert found == [0, start]


def test_tails_count_more_under_pressure():
    # Means 10 and 12, longest tenths 91 and 12: with β = 0.1 that is 19.1 and 13.2; means alone have the other order.
    forecasts = Forecasts.from_rows([[1] * 10, [1] * 9 + [91], [12] * 10])
    columns = {"prompt_len": [2] * 3, "output_len": [2] * 3}
    assert starts("tie", 4, arrival_time=[0, 0, 0], forecasts=forecasts, **columns) == [0, 4, 2]


# ---------------------------------------------------------------- twins


class Job:
    """A request as a policy sees it, with the memory that its next iteration needs."""

    def __init__(self, view, rows, k):
        self.id, self.made = int(rows.request_id[k]), int(rows.num_output_tokens[k])
        left, kv = int(rows.num_prefill_left[k]), int(rows.num_kv_tokens[k])
        self.need = int(view.allocated(kv + (left + view.prefill_writes if left else 1)))
        self.rows, self.k = rows, k

    def __getattr__(self, name):
        return getattr(self.rows, name)[self.k]


def jobs(view):
    return [[Job(view, rows, k) for k in range(len(rows))] for rows in (view.waiting, view.active)]


class InOrder(Policy):
    """Least score first; on overflow the largest leave; with preemption the largest leave for smaller ones."""

    preempts = False

    def score(self, job):
        raise NotImplementedError

    def schedule(self, view):
        waiting, active = jobs(view)
        key = {job.id: (self.score(job), job.id) for job in waiting + active}
        position = {job.id: k for k, job in enumerate(active)}
        worst_first = sorted(active, key=lambda job: (key[job.id][0], position[job.id]), reverse=True)
        need, evicted, admitted = sum(job.need for job in active), [], []
        if need > view.kv_capacity:
            while need > view.kv_capacity:
                job = worst_first.pop(0)
                need -= job.need
                evicted.append(job.id)
            return Decision(evict=tuple(evicted))
        for job in sorted(waiting, key=lambda job: key[job.id]):
            if self.preempts and need + job.need > view.kv_capacity:
                larger = [a for a in worst_first if key[a.id][0] > key[job.id][0]]
                if need + job.need - sum(a.need for a in larger) <= view.kv_capacity:
                    while need + job.need > view.kv_capacity:
                        gone = larger.pop(0)
                        worst_first.remove(gone)
                        need -= gone.need
                        evicted.append(gone.id)
            if need + job.need > view.kv_capacity:
                break
            need += job.need
            admitted.append(job.id)
        return Decision(admit=tuple(admitted), evict=tuple(evicted))


class Boost(InOrder):
    """γ-Boost: first come, first served by the arrival time less b(s) = ln(1 / (1 - e^(-γ s))) / γ."""

    info = PolicyInfo(name="boost_twin", summary="twin", needs={"predicted_length"}, evicts=True)

    def score(self, job):
        gamma, size = 0.5, 0.2 * job.predicted_output_len
        return job.arrival_time - math.log(1 / (1 - math.exp(-gamma * size))) / gamma


class Gittins(InOrder):
    """The Gittins index of the cost x (s + x / 2): the best ratio of expected cost to the chance to finish."""

    info = PolicyInfo(name="gittins_twin", summary="twin", needs={"length_distribution"}, evicts=True)
    preempts = True

    def reset(self, system):
        self.most = {}

    def score(self, job):
        made = self.most[job.id] = max(self.most.get(job.id, 0), job.made)
        prompt = int(job.prompt_len)

        def cost(x):
            return x * (prompt + x / 2)

        lengths = [int(x) for x in job.predicted_tenths if x > made] or [made + 1]
        ratios = []
        for stop in sorted(set(lengths)):
            spent = sum(min(cost(x), cost(stop)) - cost(made) for x in lengths) / len(lengths)
            ratios.append(spent / (sum(x <= stop for x in lengths) / len(lengths)))
        return min(ratios)


class Counters(Policy):
    """VTC: the client with the least counter of service starts its earliest request."""

    info = PolicyInfo(name="vtc_twin", summary="twin", needs={"client"}, evicts=True)

    def reset(self, system):
        self.counter, self.queues, self.paid, self.seen, self.client = {}, {}, {}, {}, {}
        self.last, self.returned, self.known = None, (), set()

    def _queue(self, client):
        self.counter.setdefault(client, 0.0)
        return self.queues.setdefault(client, [])

    def _charge(self, i, made):
        self.counter[self.client[i]] += 2.0 * max(0, made - self.paid.get(i, 0))
        self.paid[i] = max(made, self.paid.get(i, 0))

    def schedule(self, view):
        waiting, active = jobs(view)
        for i in view.finished.tolist():
            self._charge(i, self.seen.get(i, 0) + 1)
        for job in active:
            self._charge(job.id, job.made)
        for i in self.returned:
            self._queue(self.client[i]).insert(0, i)
        for job in waiting:
            if job.id not in self.known:
                self.known.add(job.id)
                client = self.client[job.id] = int(job.client_id)
                if not self._queue(client):
                    others = [self.counter[c] for c, queue in self.queues.items() if queue]
                    floor = min(others) if others else self.counter.get(self.last, 0.0)
                    self.counter[client] = max(self.counter[client], floor)
                self.queues[client].append(job.id)
        need, self.returned, admitted = sum(job.need for job in active), [], []
        self.seen = {job.id: job.made for job in active}
        if need > view.kv_capacity:
            for job in reversed(active):
                if need > view.kv_capacity:
                    need -= job.need
                    self.returned.append(job.id)
            return Decision(evict=tuple(self.returned))
        by_id = {job.id: job for job in waiting}
        while candidates := [c for c, queue in self.queues.items() if queue]:
            client = min(candidates, key=lambda c: (self.counter[c], c))
            job = by_id[self.queues[client][0]]
            if need + job.need > view.kv_capacity:
                break
            need += job.need
            self.queues[client].pop(0)
            self.last = client
            if job.num_evictions == 0:
                self.counter[client] += int(job.prompt_len)
            self.seen[job.id] = job.made
            admitted.append(job.id)
        return Decision(admit=tuple(admitted))


class Deficits(Policy):
    """DLPM without a prefix cache: in order, from clients with a positive deficit; quanta when none has one."""

    info = PolicyInfo(name="dlpm_twin", summary="twin", needs={"client"}, evicts=True)
    quantum = 15.0

    def reset(self, system):
        self.deficit, self.paid, self.seen, self.client = {}, {}, {}, {}

    def _charge(self, i, made):
        self.deficit[self.client[i]] -= 2.0 * max(0, made - self.paid.get(i, 0))
        self.paid[i] = max(made, self.paid.get(i, 0))

    def schedule(self, view):
        waiting, active = jobs(view)
        for i in view.finished.tolist():
            self._charge(i, self.seen.get(i, 0) + 1)
        for job in active:
            self._charge(job.id, job.made)
        self.seen = {job.id: job.made for job in active}
        need, admitted, evicted = sum(job.need for job in active), [], []
        if need > view.kv_capacity:
            for job in reversed(active):
                if need > view.kv_capacity:
                    need -= job.need
                    evicted.append(job.id)
            return Decision(evict=tuple(evicted))
        for job in waiting:
            self.client[job.id] = int(job.client_id)
            self.deficit.setdefault(self.client[job.id], 0.0)
        while waiting:
            turn = [job for job in waiting if self.deficit[self.client[job.id]] > 0]
            if not turn:
                for client, deficit in self.deficit.items():
                    self.deficit[client] += self.quantum if deficit <= 0 else 0
            for job in turn:
                if self.deficit[self.client[job.id]] <= 0:
                    continue
                if need + job.need > view.kv_capacity:
                    return Decision(admit=tuple(admitted))
                need += job.need
                self.deficit[self.client[job.id]] -= int(job.num_prefill_left)
                self.seen[job.id] = job.made
                admitted.append(job.id)
                waiting.remove(job)
        return Decision(admit=tuple(admitted))


@pytest.mark.parametrize("progress", PROGRESS_ON_EVICT)
@pytest.mark.parametrize(
    ("spec", "twin"),
    [
        ("gamma_boost:gamma=0.5,token_time=0.2", Boost),
        ("after_sagesched", Gittins),
        ("vtc", Counters),
        ("dlpm:quantum=15", Deficits),
    ],
)
def test_twins_decide_the_same(spec, twin, progress):
    for seed in range(3):
        system = System(32, UnitBatchTime(), progress_on_evict=progress, block_size=(1, 4, 1)[seed])
        case = Case(requests(seed, 24), system, seed)
        runs = [
            kvgym.simulate(case.system, case.table, policy, seed=seed, log=True, compiled=False)
            for policy in (make_policy(spec), twin())
        ]
        require_equal(*runs, f"{spec} and its twin")
