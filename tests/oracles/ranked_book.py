"""The scheduler ``ranked`` in plain Python, written from docs/ranked.md alone ("The rule, exactly")."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kvgym.policies.policy import Decision, Policy, SystemInfo, make_policy
from kvgym.simulator.view import SystemView, simulation_of
from oracles.ranked_jobs import Batch, Job, in_order, load_of, prefix, revealed
from oracles.ranked_lengths import Counts, learn

INF = math.inf
MOST_TOKENS = 8192
SIZES = [32, 64, *range(128, 1025, 128), *range(1536, MOST_TOKENS + 1, 512)]

# ---------------------------------------------------------------- the rule


class RankedBook(Policy):
    """The rule, with its weights by name, and the system's swap time if evicted requests keep their KV.

    ``met`` counts the situations that a comparison should cover.
    """

    info = make_policy("ranked").info

    def __init__(self, weights: Mapping[str, Any], swap_time: float) -> None:
        self.weights, self.swap_time, self.met = weights, swap_time, Counter[str]()

    def reset(self, system: SystemInfo) -> None:
        self.batch_time = system.batch_time
        self.shows_at_prefill = system.first_token == "uncounted"
        self.block = system.block_size
        self.places = max(1, min(system.max_requests, system.kv_capacity))
        self.shortest = max(self.batch_time(num_decodes=1, decode_context=1), 1e-9)
        prompt = self.batch_time(num_prefills=1, prefill_tokens=512, prefill_squares=512 * 512)
        self.per_prompt_token = (prompt - self.shortest) / 512
        self.last_duration, self.swapped = 0.0, 0
        self.jobs, self.joined = dict[int, Job](), list[Job]()
        self.done, self.seen, self.next_at = [Counts() for _ in range(9)], 0, 0
        self.arrived, self.sum_of_logs = 0, 0.0
        self.any_objective, self.since_looked, self.pressing = False, 0, 0
        self.evicted, self.admitted = list[Job](), list[Job]()
        self.worth_of_decode, self.gaps = 1.0, list[float]()  # as the last ranking left them

    def schedule(self, view: SystemView) -> Decision:
        self.view, self.clock = view, view.clock
        self.look()
        self.tau = max(self.last_duration, self.shortest)
        self.busy = 1 - self.shortest / self.tau
        self.pressure = math.log(1 + len(self.waiting) / (1 + len(self.running)))
        context = view.kv_tokens // max(len(self.running), 1) + 1
        decodes = self.batch_time(num_decodes=64, decode_context=64 * context)
        per_decode = (decodes - self.shortest) / 63
        self.ratio = min(self.per_prompt_token / per_decode, 10.0) if per_decode > 0 else 1.0
        stay, evict, learned = list(self.running), list[Job](), self.count()
        taken = sum(map(self.claim, stay))
        self.between = self.is_between(learned, taken)
        self.rate(learned)
        while taken > view.kv_capacity:
            worst = max(stay, key=lambda job: job.score + self.weights["evict_kv"] * math.log(1 + job.kv))
            stay.remove(worst)
            evict.append(worst)
            taken -= self.claim(worst)
        spare = self.weights["free"] * view.kv_capacity
        spare += self.weights["growth"] * sum(job.rest for job in stay) / max(len(stay), 1)
        entering = [] if evict else self.waiting
        room = view.kv_capacity - taken - math.floor(spare)
        batch, duration = self.best(stay, entering, room)
        return self.decide(stay, evict, batch, duration)

    def is_between(self, learned: bool, taken: int) -> bool:
        """Return whether too many requests are active to rank them at this boundary."""
        many = len(self.running).bit_length() - 5  # from 128 on at every 8th, from 256 on at every 16th
        if many < 3:
            return False
        due, tight = self.view.iteration % 2**many == 0, taken > self.view.kv_capacity
        self.met[f"ranked at {2**many}th"] += due
        self.met["learned between rankings"] += learned and not due
        self.met["tight between rankings"] += tight and not due
        return not (due or learned or tight)

    # ---------------------------------------------------------------- observation

    def look(self) -> None:
        """Update the information about each request."""
        for i in self.view.left.tolist():
            self.jobs.pop(i, None)  # it may have returned as a new one
        self.waiting, self.running = list[Job](), list[Job]()
        self.joined = [job for job in self.evicted if job.id in self.jobs]
        for rows, active in ((self.view.waiting, False), (self.view.active, True)):
            state = (rows.num_prefill_left, rows.num_output_tokens, rows.num_kv_tokens, rows.num_evictions)
            for k, i in enumerate(rows.request_id.tolist()):
                if i not in self.jobs:
                    self.jobs[i] = self.arrival(rows, k)
                    self.joined.append(self.jobs[i])
                job = self.jobs[i]
                job.left, job.made, job.kv, job.evictions = (int(column[k]) for column in state)
                job.active = active
                at_prefill = self.shows_at_prefill and active and job.left == 0 and math.isnan(job.last)
                if job.made > job.most or at_prefill:
                    job.shown(self.clock)
                job.most = max(job.most, job.made)
                (self.running if active else self.waiting).append(job)

    def arrival(self, rows: Any, k: int) -> Job:
        # No column has the tokens that a request emitted on a prefill worker before it arrived here.
        record = simulation_of(self.view).requests[rows.request_id[k]]
        return Job(
            id=int(rows.request_id[k]),
            arrival=float(rows.arrival_time[k]),
            predicted=revealed(rows, "predicted_output_len", k),
            low=revealed(rows, "predicted_low", k),
            high=revealed(rows, "predicted_high", k),
            group=1 + min(revealed(rows, "class_id", k), 7),
            ttft=float(rows.ttft_slo[k]),
            tbt=float(rows.tbt_slo[k]),
            first=float(record["first_token_time"]),
            last=float(record["last_token_time"]),
            gap=float(record["max_token_gap"]),
            most=int(record["num_delivered_tokens"]),
        )

    def count(self) -> bool:
        """Count completions, and learn hazards when it is time; return whether it did."""
        for i in self.view.finished.tolist():
            job = self.jobs.pop(i)
            for group in {0, job.group}:
                self.done[group].add(job.made + 1, job.predicted)
            self.seen += 1
        if self.seen < self.next_at:
            return False
        self.next_at = self.seen + max(8, self.seen // 8)
        censored = [Counts() for _ in range(9)]
        for job in [*self.running, *(job for job in self.waiting if job not in self.joined)]:
            for group in {0, job.group}:
                censored[group].add(job.most, job.predicted)
        self.costs = learn(self.done, censored)
        return True

    # ---------------------------------------------------------------- scores

    def output_to_come(self, job: Job) -> float:
        of_tokens, of_ratios = self.costs[job.group]
        predicted = job.predicted
        cost = predicted * of_ratios(job.most / predicted) if predicted > 0 else of_tokens(job.most)
        rest = job.most - job.made + max(cost, 1.0)
        if job.high > 0:
            rest = min(max(rest, job.low - job.made), job.high - job.made)
        return max(rest, 1.0)

    @property
    def usual(self) -> float:
        """Return the mean logarithm of the expected output over arrivals."""
        return self.sum_of_logs / self.arrived if self.arrived else 0.0

    def rate(self, learned: bool) -> None:
        for job in self.joined:
            self.score(job)
            if job.evictions == 0:
                self.sum_of_logs += math.log(job.rest)
                self.arrived += 1
                self.any_objective |= job.has_objective
        self.since_looked += 1
        if learned:
            for job in self.waiting:
                self.score(job)
            self.looked()
        elif self.any_objective and self.since_looked > self.pressing // 8:
            for job in self.waiting:
                if job.pressed:
                    self.add_deadline(job)
            self.looked()
        batches = self.view.iteration
        for job in self.running:
            new = job in self.admitted
            due = batches % 16 == 0 or (batches % 4 == 0 and (job.left > 0 or job.made < 32))
            if new or (not self.between and (learned or due)):
                self.find_base(job)
            if new or not self.between:
                self.add_deadline(job)

    def looked(self) -> None:
        """Record that the queue's deadlines were updated, and how many requests press."""
        self.since_looked, self.pressing = 0, sum(map(self.presses, self.waiting))

    def spare(self, job: Job) -> float:
        """Return the time until its next deadline, less the time for its prompt and the shortest batch."""
        return job.deadline() - self.clock - (self.shortest + self.per_prompt_token * job.left)

    def presses(self, job: Job) -> bool:
        return math.isfinite(job.deadline()) and self.spare(job) >= 0

    def nearness(self, job: Job) -> float:
        """Return q."""
        t = self.spare(job) if job.has_objective else INF
        return 8.0 if t < 0 else min(math.log(1 + t / self.tau), 8.0)

    def score(self, job: Job) -> None:
        self.find_base(job)
        self.add_deadline(job)

    def add_deadline(self, job: Job) -> None:
        job.added, job.pressed = 0.0, self.presses(job)
        if job.has_objective:
            w, t = self.weights, self.spare(job)
            lost, urgent = t < 0, job.left == 0 and 0 <= t < 2 * self.tau
            job.added = w["lost"] * lost - w["urgent"] * urgent + w["slack"] * (self.nearness(job) - 8)
            self.met["lost"] += lost
            self.met["urgent"] += urgent

    def find_base(self, job: Job) -> None:
        w, job.rest = self.weights, self.output_to_come(job)
        volume = math.log(job.kv + job.left + job.rest / 2)
        base = math.log(job.rest + w["prompt"] * job.left) + w["footprint"] * volume
        base -= w["attained"] * math.log(1 + job.made)
        if job.active:
            base -= w["held"] * math.log(1 + job.kv)
        features = (
            math.log(job.rest) - self.usual,
            math.log(1 + job.left) - self.usual,
            volume - self.usual,
            math.log(1 + job.made),
            math.log(1 + job.kv) if job.active else 0.0,
            0.0 if job.active else 1.0,
            math.log(1 + job.evictions),
            self.nearness(job) / 8,
            float(job.has_objective and self.spare(job) < 0),
            self.pressure,
            self.busy,
            self.view.kv_allocated / self.view.kv_capacity,
        )
        output = 0.0  # summed in this order: the last bit decides between identical requests
        for u in range(w["hidden"]):
            *into, bias, out = w["network"][14 * u : 14 * u + 14]
            output += out * math.tanh(sum((x * f for x, f in zip(into, features, strict=True)), bias))
        job.base = base + output

    # ---------------------------------------------------------------- the decision

    def claim(self, job: Job) -> int:
        """Return the memory that it takes with its whole prompt and one more token."""
        return -(-(job.kv + job.left + 1) // self.block) * self.block

    def finds(self, queue: list[Job]) -> bool:
        """Find the best of a sorted queue, again if its deadline has been lost; return whether there is one."""
        while queue and queue[0].pressed and self.spare(queue[0]) < 0:
            self.met["lost while waiting"] += 1
            self.add_deadline(queue[0])
            queue.sort(key=in_order)
        return bool(queue)

    def ranking(self, active: list[Job], entering: list[Job], room: int, total: int) -> Iterator[Job]:
        """Yield the requests that may run after ``total`` tokens, in order and lazily."""
        w = self.weights
        bias = w["waiting"] + w["waiting_pressure"] * self.pressure
        active, queue = (sorted(jobs, key=in_order) for jobs in (active, entering))
        anybody, entered, aside = bool(active) or total > 0, 0, 0
        while total < MOST_TOKENS:
            while self.finds(queue) and anybody:
                job = queue[0]
                if self.busy > w["gate_busy"] and math.log(job.rest) > self.usual + w["gate"]:
                    if aside == min(8, self.places - 1):
                        self.met["gate closed"] += 1
                        queue = []
                    else:
                        self.met["put aside"] += 1
                        aside += 1
                        queue = queue[1:]
                elif self.claim(job) > room or len(self.running) + entered == self.places:
                    self.met["no room"] += 1
                    queue = []
                else:
                    break
            if queue and (not active or queue[0].score + bias < active[0].score):
                job = queue.pop(0)
                self.met["enters before an active one"] += bool(active)
                self.met["enters between rankings"] += self.between
                room -= self.claim(job)
                anybody, entered = True, entered + 1
            elif active:
                job = active.pop(0)
            else:
                break
            yield job
            total += job.tokens

    def room(self) -> float:
        """Return f / (f + 2,048), with f tokens of free memory."""
        free = self.view.kv_capacity - self.view.kv_allocated
        return free / (free + 2048)

    def best(self, stay: list[Job], entering: list[Job], room: int) -> tuple[Batch, float]:
        """Return the prefix of the ranking with the best worth, and its duration."""
        w = self.weights
        power = w["cost"] + w["cost_pressure"] * self.pressure
        share = len(self.waiting) / (1 + len(self.running) + len(self.waiting))
        power += (w["cost_room"] + w["cost_waiting"] * share) * self.room()
        power += w["cost_active"] * math.log(1 + len(self.view.active))
        power = max(power, w["cost_least"])
        pressed = [job for job in stay if self.presses(job)]
        free = 1 - self.view.kv_allocated / self.view.kv_capacity
        pressing = (w["prefill_pressure"] + w["prefill_room"] * free) * self.pressure
        prompt_value = w["prefill_value"] * self.ratio * math.exp(pressing)
        decodes = [job for job in stay if job.left == 0] if self.between else []
        ranked = [job for job in stay if job.left > 0 or not self.between]
        items = self.ranking(ranked, entering, room, len(decodes))
        chosen, total = [(job, 1) for job in decodes], len(decodes)
        worths = {job.id: self.worth_of_decode for job in decodes}  # of a token
        most, best, judged = -INF, (Batch(), 0.0), 0
        for size in [len(decodes), *(size for size in SIZES if size > len(decodes))]:
            # The search stops at the size at which the walk ends.
            while total < size and (job := next(items, None)):
                chosen.append((job, job.tokens))
                worths[job.id] = math.exp(-w["value"] * job.score) * (prompt_value if job.left else 1)
                total += job.tokens
            if min(size, total) == judged:
                continue
            judged = min(size, total)
            batch = prefix(chosen, judged)
            duration = float(self.batch_time(**load_of(batch)))
            d, value = max(duration, 1e-9), 0.0
            for job, part in batch:
                value += part * worths[job.id]
            worth = value / (d / self.shortest) ** power
            runs = {job.id for job, _ in batch}
            if self.between:
                late = sum(gap < d for gap in self.gaps)
                self.met["late between rankings"] += late
            else:
                ends = (self.clock + d + (0 if job.id in runs else self.shortest) for job in pressed)
                late = sum(job.deadline() < end for job, end in zip(pressed, ends, strict=True))
                self.met["makes late"] += late
            worth *= math.exp(-w["late"] * late)
            more = worth > most
            if more:
                most, best = worth, (batch, duration)
            if total < size:
                break
            if self.between and not more:
                self.met["stops between rankings"] += 1
                break
            if most > 0 and worth < 0.7 * most:
                if all(job.id in runs for job in pressed):
                    self.met["hopeless size"] += 1
                    break
                self.met["pressing beyond"] += 1
        if not self.between:
            of_decodes = [worths[job.id] for job, _ in chosen if job.left == 0]
            self.worth_of_decode = sum(of_decodes) / len(of_decodes) if of_decodes else 1.0
            self.gaps = [job.tbt for job in stay if not math.isnan(job.last) and self.spare(job) >= 0]
        return best

    def decide(self, stay: list[Job], evict: list[Job], batch: Batch, duration: float) -> Decision:
        tokens = {job.id: part for job, part in batch}
        admit = [job for job, _ in batch if not job.active]
        waits = not stay and not admit
        self.evicted, self.admitted = evict, admit
        self.swapped += sum(job.kv for job in (*evict, *admit))
        if not waits:
            self.last_duration = duration + self.swap_time * self.swapped
            self.swapped = 0
        self.met["chunk"] += any(0 < part < job.left for job, part in batch)
        self.met["pause"] += any(job.id not in tokens for job in stay)
        return Decision(
            admit=[job.id for job in admit],
            evict=[job.id for job in evict],
            tokens=dict.fromkeys((job.id for job in stay), 0) | tokens,
            wait_until=INF if waits else None,
        )
