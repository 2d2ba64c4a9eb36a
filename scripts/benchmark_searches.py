"""Searches for scripts/freeze_benchmark.py: settings of rules on training seeds, and the best runs in hindsight.

A setting is chosen for each task by its mean over a few training seeds. Hindsight is a search for each test seed apart,
on the very requests: weights of ``ranked`` with true lengths, weights of a router and then single assignments, or the
sizes of a fleet over time. It finds what is possible, not what is best, so that more may be left than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kvgym.agents.library import agent_names, kind_of, load_agent, load_model
from kvgym.baselines.autoscalers.given import Plan
from kvgym.baselines.ranked.weights import WEIGHTS
from kvgym.baselines.routing.weighted import WEIGHTS as ROUTING_WEIGHTS
from kvgym.errors import KVGymError
from kvgym.experiments.fleet.choices import fixed_sizes
from kvgym.experiments.load.sustained import backlog_figures
from kvgym.experiments.runs import PlannedRun, Player
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.routing import Router, RouterInfo, make_router
from kvgym.policies.runner import check_needs, simulate
from kvgym.simulator.view import ClusterView
from kvgym.studies.benchmark.entries import load_entry
from kvgym.studies.benchmark.running import planned_run, value_of
from kvgym.studies.benchmark.tasks import Task
from kvgym.studies.capacity.hindsight import FleetRuns, plan_in_hindsight
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import describe_workload

TUNING = range(1000, 1003)
"""Training seeds that settings are chosen on."""

BACKLOG = 2500
"""Requests of the backlog that shows what a worker sustains."""

_ONGOING = (3, 4, 5, 6, 7, 8, 10, 12)
_BUDGETS = (128, 256, 512, 1024, 2048)

GRIDS: dict[str, dict[str, tuple[str, ...]]] = {
    "autoscaler": {
        "hpa": tuple(f"hpa:target={n},down={s}" for n in _ONGOING for s in (60, 300)),
        "keda": tuple(f"keda:metric=ongoing,target={n}" for n in _ONGOING),
        "ray": tuple(f"ray:target={n}" for n in _ONGOING),
        "apa": tuple(f"apa:target={n}" for n in _ONGOING),
        "kpa": tuple(f"kpa:target={n}" for n in _ONGOING),
        "wva_v2": tuple(f"wva_v2:full={x}" for x in (0.2, 0.3, 0.4, 0.6, 0.85)),
        "roles": tuple(f"roles:base={x},ratio={y}" for x in (-1.8, -1.2, -0.6) for y in (0.45, 0.65, 0.85)),
        "dynamo": tuple(
            f"dynamo:ttft=2,itl=1,share={x}{trend}"
            for x in (0.3, 0.4, 0.5, 0.6, 0.8) for trend in ("", ",predictor=trend,adjust=60")
        ),
    },
    "router": {
        "preble": tuple(f"preble:output={n}" for n in (45, 180, 400)),
        "lmetric": tuple(f"lmetric:queued={x}" for x in ("true", "false")),
        "prefix_aware": tuple(
            f"prefix_aware:prefix={x},queue={y}" for x in (0, 1, 2) for y in (1, 3)
        ) + tuple(
            f"prefix_aware:prefix={x},queue={y},free={y},relative=false,host=1"
            for x in (0, 1) for y in (0.1, 0.3, 1, 2)
        ),
        "cache_aware": tuple(
            f"cache_aware:threshold={x},absolute={n}" for x in (0.3, 0.5, 0.8) for n in (4, 16, 64)
        ),
        "weighted": (),  # drawn
    },
    "scheduler": {
        "vllm_v1": tuple(f"vllm_v1:max_num_batched_tokens={n},max_num_seqs={min(n, 256)}" for n in _BUDGETS),
        "sarathi": tuple(
            f"sarathi:order={order},token_budget={n},watermark={w}"
            for order in ("fcfs", "spf") for n in _BUDGETS for w in (0.01, 0.05)
        ),
        "slai": tuple(f"slai:token_budget={n}" for n in _BUDGETS),
        "ranked": (),  # drawn
    },
}  # fmt: skip
"""Settings of each rule by role; of the two with weights they are drawn."""


BY_HAND: tuple[dict[str, float], ...] = (
    {"work": 0.0, "requests": 0.0, "pace": 0.0, "uncached": 1.0, "backlog": 1.0},
    {"work": 0.0, "requests": 0.0, "pace": 0.0, "uncached": 0.1, "uncached_delay": 1.0},
    {"work": 0.0, "requests": 1.0, "pace": 0.0, "uncached": 5.0, "backlog": 1.0, "below": 4.0},
)
"""Weights of ``weighted`` by hand, chosen on training seeds: for prompts, for caches, and for caches with memory
below the GPU.
"""


FORESIGHT = tuple(f"foresight:bursts=true,share={x}" for x in (0.7, 0.9))
"""Autoscalers that know the rates to come, which a search may begin with."""


SPANS = (240.0, 60.0)
"""Seconds for which a plan keeps a split of two pools: first long spans, then short ones."""


FOR_SESSIONS = 0.8
"""Share of the changes of a plan of assignments that move what is left of a session, where there are sessions."""


class Runs:
    """Runs on the requests of tasks, kept between them."""

    def __init__(self, suite: str) -> None:
        self.suite, self.player = suite, Player()

    def value(self, task: Task, made: Any, seed: int) -> float:
        """Return the signed metric of a run, inf if it failed or needs what the requests lack."""
        (played,) = self.player([planned_run(task.scenario(self.suite), made, seed, "searched")])
        found = value_of(task, played)[0]
        return found if np.isfinite(found) else np.inf

    def mean(self, task: Task, spec: str, seeds: Sequence[int]) -> float:
        """Return the mean of the signed metric of an entry."""
        made = load_entry(spec).made
        return float(np.mean([self.value(task, made, seed) for seed in seeds]))

    def tuned(self, task: Task, draws: int) -> dict[str, str]:
        """Return the spec of each rule with the setting that is best on training seeds."""
        found = {}
        for rule, specs in GRIDS[task.role].items():
            every = specs or tuple(drawn_specs(rule, draws))
            means = [self.mean(task, spec, TUNING) for spec in every]
            if np.isfinite(min(means)):
                found[rule] = every[int(np.argmin(means))]
        return found

    def best_fixed(self, task: Task) -> str:
        """Return the constant size that is best on training seeds."""
        specs = fixed_sizes(task.scenario(self.suite))
        return specs[int(np.argmin([self.mean(task, spec, TUNING) for spec in specs]))]

    def load(self, task: Task) -> str:
        """Return the rate relative to what the workers sustain under the plain rule, or a fleet's range of rates."""
        scenario = task.scenario(self.suite)
        workload = describe_workload(scenario.workload)
        if task.role == "autoscaler":
            return "varies"
        rate = scenario.make_workload().spec.mean_rate
        backlog = {**workload, "arrivals": {"kind": "poisson", "rate": 1e6}, "num_requests": BACKLOG}
        if turns := (backlog.get("prefixes") or {}).get("turns"):  # a worker has its share of the sessions
            workers = len(scenario.make_system().all_workers)
            backlog["prefixes"] = {
                **backlog["prefixes"],
                "turns": {**turns, "open": turns["open"] // workers},
            }
        policy = task.plain if task.role == "scheduler" else scenario.policies[0]
        groups = [(scenario.workers, {})] if isinstance(scenario.workers, int) else [
            (group.count, {"hardware": group.hardware} if group.hardware else {}) for group in scenario.workers
        ]  # fmt: skip
        sustained = 0.0
        for count, change in groups:
            alone = scenario.override(workload=backlog, workers=1, **change)
            (played,) = self.player(
                [PlannedRun(alone, policy, None, 0, "", log=True, measure=backlog_figures)]
            )
            sustained += count * played.measured["sustained"]
        return f"{rate / sustained:.2f}"


def drawn_specs(rule: str, draws: int) -> Iterator[str]:
    """Yield specs of a rule: its defaults, weights by hand, and weights drawn around these and those of agents."""
    rng = np.random.default_rng(0)
    yield rule
    for weights in (*(BY_HAND if rule == "weighted" else ()), *_around(_bases(rule), rule, draws, rng)):
        yield f"{rule}:{','.join(f'{name}={value:.6g}' for name, value in weights.items())}"


def _bases(rule: str) -> list[dict[str, float]]:
    """Return the weights of the agents that are this rule, those by hand, and none for its defaults."""
    kind = "router" if rule == "weighted" else "policy"
    names = [n for n in agent_names() if kind_of(n) == kind and (kind == "router" or n.startswith("ranked"))]
    learned = [dict(load_model(name).weights) for name in names]  # type: ignore[union-attr]
    return [{}, *learned, *(BY_HAND if rule == "weighted" else ())]


def _around(
    bases: Sequence[dict[str, float]], rule: str, draws: int, rng: np.random.Generator, scale: float = 1.0
) -> Iterator[dict[str, float]]:
    """Yield weights drawn around bases, one base after the other."""
    space = ROUTING_WEIGHTS if rule == "weighted" else WEIGHTS
    for draw in range(draws):
        base = bases[draw % len(bases)]
        yield {
            w.name: float(
                np.clip(base.get(w.name, w.default) + scale * w.step * rng.standard_normal(), w.low, w.high)
            )
            for w in space
        }


def climbed(value: Callable[[dict[str, float]], float], rule: str, draws: int, seed: int) -> float:
    """Return the best value of weights: two fifths drawn around agents', then ever smaller changes of the best."""
    rng = np.random.default_rng(seed)
    broad = 2 * draws // 5
    tried = list(_around(_bases(rule), rule, broad, rng))
    values = [value(weights) for weights in tried]
    best, least = tried[int(np.argmin(values))], min(values)
    for step in range(draws - broad):
        (weights,) = _around([best], rule, 1, rng, 0.6 * (1 - step / (draws - broad)) + 0.05)
        if (found := value(weights)) < least:
            best, least = weights, found
    return least


def hindsight(
    task: Task, scenario: Scenario, seed: int, effort: int, first: str, policies: Sequence[str]
) -> float:
    """Return the best signed metric that a search finds on the requests of a seed.

    Args:
        task: the task.
        scenario: its scenario.
        seed: the test seed.
        effort: runs of the search.
        first: spec of the best autoscaler or router, which the search begins with.
        policies: schedulers that are given true lengths.
    """
    system, workload = scenario.make_system(), scenario.make_workload()
    requests = scenario.sample(workload, seed, system.usable_capacity)
    if task.role == "autoscaler":
        runs = FleetRuns(system, requests, scenario.policies[0], scenario.router, seed)
        if len(runs.fleet.pools) > 1:
            return split_in_hindsight(runs, task, effort)
        starts = (first, *FORESIGHT)
        best = min(starts, key=lambda start: runs.metrics(load_entry(start).made)["fleet_cost"])  # type: ignore[arg-type]
        return plan_in_hindsight(runs, best, effort=effort)[1]["fleet_cost"]
    exact = requests.replace(
        predicted_output_len=requests.output_len, predicted_low=None, predicted_high=None, forecasts=None
    )

    def value(table: RequestTable, policy: str | Policy, router: Router | None) -> float:
        try:
            if isinstance(policy, Policy):
                check_needs(policy, table)
            result = simulate(
                system,
                table,
                policy,
                router=router or scenario.make_router(),
                seed=seed,
                window=scenario.window,
            )
        except KVGymError:
            return np.inf
        return task.sign * float(compute_metrics(result, [task.metric])[task.metric])

    if task.role == "scheduler":
        known = min(value(exact, made, None) for made in map(_policy, policies))
        return min(
            known,
            climbed(lambda w: value(exact, make_policy("ranked", **w), None), "ranked", effort, seed),
        )
    policy = scenario.policies[0]
    found = climbed(
        lambda w: value(exact, policy, make_router("weighted", **w)), "weighted", effort // 2, seed
    )
    recorded = Recording(load_entry(first).made)  # type: ignore[arg-type]
    least = value(requests, policy, recorded)
    plan, rng = recorded.plan, np.random.default_rng(seed)
    workers, sessions = 1 + max(plan), requests.session_id
    for _ in range(effort // 2):
        changed = np.array(plan)
        start, length = int(rng.integers(len(plan))), int(2 ** rng.uniform(0, 5))
        if sessions is not None and rng.random() < FOR_SESSIONS:
            changed[start:][sessions[start:] == sessions[start]] = rng.integers(workers)
        else:
            changed[start : start + length] = rng.integers(workers, size=len(changed[start : start + length]))
        if (new := value(requests, policy, Replaying(changed.tolist()))) < least:
            plan, least = changed.tolist(), new
    return min(found, least)


def split_in_hindsight(runs: FleetRuns, task: Task, effort: int) -> float:
    """Return the best signed metric of plans that split all GPUs between two pools, by spans of :data:`SPANS`."""
    budget, (low, high) = runs.fleet.limit, (runs.fleet.pools[0].least, runs.fleet.pools[0].most)
    blocks = int(runs.table.arrival_time[-1] // SPANS[-1]) + 1
    rng = np.random.default_rng(runs.seed)

    def value(firsts: Sequence[int]) -> float:
        steps = [(k * SPANS[-1], (n, budget - n)) for k, n in enumerate(firsts)]
        return task.sign * runs.metrics(Plan(file=steps))[task.metric]

    plan = [(low + high) // 2] * blocks
    least, left = value(plan), effort
    for span in SPANS:
        width = round(span / SPANS[-1])
        places = list(range(0, blocks, width))
        while left > 0:
            before = least
            for place in places if span == SPANS[0] else rng.permutation(places).tolist():
                for n in range(low, high + 1):
                    tried = [*plan[:place], *[n] * len(plan[place : place + width]), *plan[place + width :]]
                    if left <= 0 or (span != SPANS[0] and abs(n - plan[place]) != 1):
                        continue
                    left -= 1
                    if (found := value(tried)) < least:
                        plan, least = tried, found
            if least == before or span == SPANS[0]:
                break
    return least


def _policy(spec: str) -> Policy:
    return load_agent(spec) if spec in agent_names() else make_policy(spec)


class Recording(Router):
    """Routes as another router does, and keeps the workers of the requests."""

    info = RouterInfo("recording", "keeps the workers that a router chose")

    def __init__(self, inner: Router) -> None:
        self.inner, self.plan = inner, list[int]()

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Begin a run."""
        self.inner.reset(num_workers, seed)
        self.plan = []

    def route(self, view: ClusterView) -> int:
        """Return what the other router answers."""
        self.plan.append(self.inner.route(view))
        return self.plan[-1]


class Replaying(Router):
    """Routes by a list: the k-th request to the k-th worker of it."""

    info = RouterInfo("replaying", "the workers of a list")

    def __init__(self, plan: Sequence[int]) -> None:
        self.plan, self.place = plan, 0

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Begin a run."""
        self.place = 0

    def route(self, view: ClusterView) -> int:
        """Return the next worker of the list."""
        self.place += 1
        return int(self.plan[self.place - 1])
