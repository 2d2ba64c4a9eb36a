"""Comparisons: policies × seeds on identical workloads, paired statistics, result files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, UnknownNameError, some
from kvgym.experiments.budgets import ADVICE, budget_note
from kvgym.experiments.disaggregation import in_settings
from kvgym.experiments.fleet.choices import with_autoscalers
from kvgym.experiments.journal import kept_runs
from kvgym.experiments.load.sustained import Backlogs, load_note, with_load
from kvgym.experiments.marks import Mark, find_marks, mark_notes, measure_marks
from kvgym.experiments.notes import merge_notes, not_finished, rule_notes
from kvgym.experiments.resolving import both_described, resolve_policy
from kvgym.experiments.resolving import label_of as label_of
from kvgym.experiments.result_files import jsonable, run_context, write_json, write_table
from kvgym.experiments.runs import PlannedRun, Played, Player, RunRecord
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.experiments.statistics import (
    Estimate,
    improvement_interval,
    less_is_better,
    mean_interval,
    mean_intervals,
    ratio_interval,
)
from kvgym.metrics.catalogue import metric_info, metric_names
from kvgym.metrics.compute import WORKER_METRICS
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.routing import Router, make_router
from kvgym.policies.runner import SimulationResult, check_needs
from kvgym.policies.scaling import foresees
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seeds
from kvgym.utils.frame import Frame
from kvgym.utils.hyperparameters import all_hyperparameters
from kvgym.workloads.table import RequestTable

if TYPE_CHECKING:
    from kvgym.theory.hindsight.calibrated.bounds import Bound

Progress = Callable[[str], None]

BOUNDED = "e2e_latency_mean"
"""The metric that a comparison bounds."""

BOUND_EFFORT = 0.1
"""Effort of the search for prices in slotted time, as a share of the largest useful effort: one bound per seed."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of :func:`compare`.

    Attributes:
        scenario: the scenario as run.
        policies: labels, in order.
        seeds: seeds; every policy saw the same requests under each.
        runs: one record per policy and seed.
        num_requests: requests per seed.
        examples: results of the first seed with per-iteration logs, by label, for plots; empty unless kept.
        notes: changes to the workload (clipped, dropped, ...) and other remarks, one sentence each.
        provenance: sources of the workload.
        hyperparameters: all hyperparameters of each policy, defaults included, by label; if routers are compared, names
            and hyperparameters of ``policy`` and ``router``.
        clairvoyant: labels of clairvoyant policies, which are references and never count as the best.
        bounds: lower bounds on the mean end-to-end latency of any scheduler, by seed; empty unless requested.
        marks: marks of each policy that has some, by label; :attr:`notes` explains them.
        loads: arrivals per second over what each policy sustains, by label, a quick estimate, see
            :mod:`kvgym.experiments.load.sustained`; without those that have none.
    """

    scenario: Scenario
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    num_requests: tuple[int, ...]
    examples: dict[str, SimulationResult] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    clairvoyant: frozenset[str] = frozenset()
    bounds: tuple[Bound, ...] = ()
    marks: dict[str, tuple[Mark, ...]] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a summary; the runs are in :attr:`runs`."""
        failed = sum(run.error != "" for run in self.runs)
        return f"Comparison of {some(self.policies)}: {len(self.runs)} runs, {failed} failed, seeds {some(self.seeds)}"

    def values(self, policy: str, metric: str) -> NDArray[np.float64]:
        """Return a metric of a policy by seed, shape (seeds,); NaN for failed runs.

        Raises:
            UnknownNameError: the metric does not exist, or the policy is not in :attr:`policies`.
        """
        metric_info(metric)
        if policy not in self.policies:
            raise UnknownNameError("policy of this comparison", policy, self.policies)
        return np.array([r.metrics.get(metric, np.nan) for r in self.runs if r.policy == policy])

    def estimate(self, policy: str, metric: str) -> Estimate:
        """Return the mean of a metric over seeds, with its confidence interval."""
        return mean_interval(self.values(policy, metric))

    def ratio(self, policy: str, reference: str, metric: str) -> Estimate:
        """Return the ratio of means of a metric to a reference policy's, paired by seed."""
        return ratio_interval(self.values(policy, metric), self.values(reference, metric))

    def bound(self) -> Estimate:
        """Return the mean lower bound over seeds, with its confidence interval; NaN without bounds."""
        return mean_interval(np.array([b.value for b in self.bounds] or [np.nan]))

    def at_most(self, policy: str) -> float:
        """Return an upper bound on the ratio of a policy's mean end-to-end latency to the optimum, over all seeds.

        It is the policy's mean over the mean bound, so seeds are weighted by their latencies; NaN without bounds.
        """
        mean = self.estimate(policy, BOUNDED).value
        return float(mean / self.bound().value) if self.bounds else float("nan")

    def improvement(self, policy: str, reference: str, metric: str) -> Estimate:
        """Return how much better a policy is than another in a metric, as a share, paired by seed; negative: worse.

        Raises:
            ConfigError: the metric has no direction.
        """
        lower = less_is_better(metric)
        return improvement_interval(
            self.values(policy, metric), self.values(reference, metric), lower_is_better=lower
        )

    def leaders(self, metric: str) -> tuple[str, ...]:
        """Return the best policy in a metric and those not significantly worse; clairvoyant policies are excluded.

        Two policies do not differ significantly if the 95 % interval of the ratio of their means, paired by seed,
        includes 1. With one seed there are no intervals, and all different means count as different.

        Raises:
            ConfigError: the metric has no direction.
        """
        lower = less_is_better(metric)
        means = {p: float(self.values(p, metric).mean()) for p in self.policies if p not in self.clairvoyant}
        order = sorted(
            (p for p, mean in means.items() if np.isfinite(mean)),
            key=lambda p: means[p] if lower else -means[p],
        )

        def tied(policy: str) -> bool:
            if means[policy] == means[order[0]]:
                return True
            small, large = (order[0], policy) if lower else (policy, order[0])
            ratio = self.ratio(small, large, metric)
            return len(self.seeds) > 1 and not ratio.high < 1

        return tuple(p for p in order if p == order[0] or tied(p))

    def reference(self, metric: str) -> str:
        """Return the reference of ratios: the first policy with a value of ``metric`` that is not clairvoyant.

        If all policies with a value are clairvoyant, the first of them.
        """
        found = [p for p in self.policies if np.isfinite(self.estimate(p, metric).value)]
        return next((p for p in found if p not in self.clairvoyant), (found or self.policies)[0])

    @property
    def foreknown(self) -> str:
        """What clairvoyant entries know."""
        return "the arrivals to come" if self.scenario.has_fleet else "the true lengths"

    def signs(self, policy: str) -> str:
        """Return the signs behind the label of a policy: of its marks, and a star if it is clairvoyant."""
        marks = "".join(mark.sign for mark in self.marks.get(policy, ()))
        return "*" * (policy in self.clairvoyant) + marks

    @property
    def has_targets(self) -> bool:
        """Whether requests have SLOs, so that attainment has a value."""
        return any(not np.isnan(run.metrics.get("slo_attainment", np.nan)) for run in self.runs)

    def errors(self) -> dict[str, str]:
        """Return the first error of each policy that failed."""
        found: dict[str, str] = {}
        for run in self.runs:
            if run.error:
                found.setdefault(run.policy, f"seed {run.seed}: {run.error}")
        return found

    def to_frame(self) -> Frame:
        """Return one row per policy and seed."""
        return Frame.from_rows(
            {"policy": r.policy, "seed": r.seed, "error": r.error, "wall_time": r.wall_time}
            | {name: r.metrics.get(name, float("nan")) for name in metric_names()}
            for r in self.runs
        )

    def worker_frame(self) -> Frame:
        """Return one row per policy, seed and worker; empty for single workers."""
        return Frame.from_rows(
            {"policy": r.policy, "seed": r.seed} | worker for r in self.runs for worker in r.workers
        )

    def worker_means(self, policy: str) -> list[dict[str, Any]]:
        """Return means over seeds for each worker of a cluster; empty for a single worker.

        Keys are worker, role and the names of :data:`kvgym.metrics.WORKER_METRICS`; NaN if a seed has no value.
        """
        runs = [run.workers for run in self.runs if run.policy == policy and run.workers]
        return [
            {"worker": same[0]["worker"], "role": same[0]["role"]}
            | {name: float(np.mean([worker[name] for worker in same])) for name in WORKER_METRICS}
            for same in zip(*runs, strict=True)
        ]

    def summary(self) -> dict[str, Any]:
        """Return means and intervals of all metrics by policy, JSON-able (NaN as None)."""
        names, found = metric_names(), {}
        for policy in self.policies:
            estimates = mean_intervals([self.values(policy, name) for name in names])
            found[policy] = {name: jsonable(vars(one)) for name, one in zip(names, estimates, strict=True)}
        return found

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``runs.csv``, ``summary.json`` and ``config.json`` into ``folder``; with PyArrow ``runs.parquet``.

        For a cluster also ``workers.csv``, with a row per policy, seed and worker.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        path = write_table(folder, "runs", self.to_frame())
        workers = self.worker_frame()
        if len(workers):
            workers.write_csv(path / "workers.csv")
        config = {
            "scenario": self.scenario.model_dump(mode="json"),
            "policies": self.hyperparameters,
            "seeds": list(self.seeds),
            "num_requests": list(self.num_requests),
            "workload": self.provenance,
            "notes": list(self.notes),
            **run_context(command),
        }
        write_json(path / "config.json", config)
        summary: dict[str, Any] = {"policies": self.summary(), "errors": self.errors()}
        summary["clairvoyant"] = sorted(self.clairvoyant)
        summary["marks"] = {policy: [mark.name for mark in found] for policy, found in self.marks.items()}
        summary["loads"] = self.loads
        if self.bounds:
            summary["bound"] = {
                "metric": BOUNDED,
                "by_seed": {str(s): b.value for s, b in zip(self.seeds, self.bounds, strict=True)},
                "methods": sorted({b.method for b in self.bounds}),
                "at_most": {p: jsonable(self.at_most(p)) for p in self.policies},
            }
        write_json(path / "summary.json", summary)
        return path


@explained
def compare(
    scenario: str | Path | Scenario | None = None,
    policies: Sequence[str | Policy] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    routers: Sequence[str | Router] | None = None,
    together: bool = False,
    autoscalers: Sequence[str] | None = None,
    keep_examples: bool = False,
    bound: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run policies, or routers of a cluster, on the same workloads.

    Args:
        scenario: a scenario, its name or file; None = the default scenario.
        policies: policies or specs; None = those of the scenario.
        seeds: number of seeds (0, 1, …) or the seeds; None = as in the scenario.
        routers: routers or specs to compare, each with every policy; None = the scenario's. Results are labelled by
            router, or with several policies by both, ``"fcfs via round_robin"``.
        together: of separate prefill and decode workers, also run everything on the same workers together, each of
            which then serves whole requests; labels name both, ``"fcfs, 1 prefill 2 decode"`` and
            ``"fcfs, 3 together"``.
        autoscalers: autoscalers of a fleet to compare, by their specs, each with every policy and router; None = the
            scenario's. :func:`~kvgym.experiments.budget_comparison.compare_fleets` adds the best fixed size.
        keep_examples: keep the first seed's results with per-iteration logs.
        bound: also find a lower bound for any scheduler, and run the clairvoyant reference, see docs/bounds.md.
        folder: folder that saves each run when it finishes, in ``unfinished.jsonl``; equal runs of a stopped call are
            taken from there. None = not saved.
        jobs: processes to run on, see :func:`kvgym.utils.execution.make_executor`; any number gives the same result.
            Unless it is 1, a script must call this under ``if __name__ == "__main__":``.
        ray: run on a Ray cluster instead, see the same function.
        progress: called with a line of text after each run.

    Returns:
        All runs. A policy that livelocks or makes an impossible decision has an error in its record, with a
        RuntimeWarning, and the other policies still run.

    Raises:
        KVGymError: the scenario, a policy or the workload is wrong; nothing has been run.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    system, workload = chosen.make_system(), chosen.make_workload()
    chosen = chosen.resolved()
    made = [make_policy(p) for p in (policies if policies is not None else chosen.policies)]
    if not made:
        raise ConfigError("no policies to compare; name at least one")
    if bound and chosen.window is not None:
        raise ConfigError("bounds are on means over whole runs; omit warm_up and cool_down")
    if bound:  # loads SciPy's optimisers
        from kvgym.theory.hindsight.bounds import REFERENCE, unbeatable

        if all(policy.info.name != REFERENCE for policy in made):
            made.append(make_policy(REFERENCE))
    numbers = check_seeds(chosen.seeds if seeds is None else seeds)
    player = Player()
    first, table = player.requests(chosen, numbers[0])
    made = [resolve_policy(policy, first, table) for policy in made]
    pairs, settings = in_settings(_pairs_by_label(chosen, made, routers), chosen, together)
    if autoscalers is not None:
        pairs, settings = with_autoscalers(pairs, settings, autoscalers)
    labels = list(pairs)
    tables: list[RequestTable] = []
    bounds: list[Bound] = []
    notes: list[tuple[int, str]] = []
    for seed in numbers:
        own, table = player.requests(chosen, seed)
        for policy in made:
            check_needs(policy, table)
        own.check_fits(table)
        tables.append(table)
        if bound:
            bounds.append(unbeatable(table, own, BOUNDED, effort=BOUND_EFFORT))
        notes += [(seed, note) for note in chosen.notes(table)]
    runs = [
        PlannedRun(settings[label], policy, router, seed, label, log=kept, measure=measure_marks, keep=kept)
        for seed in numbers
        for kept in [keep_examples and seed == numbers[0]]
        for label, (policy, router) in pairs.items()
    ]
    backlogs = Backlogs(
        {label: (settings[label], pairs[label][0]) for label in labels},
        first,
        tables,
        workload.mean_rate,
        numbers[0],
    )
    played: dict[tuple[str, int], Played] = {}
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        for place, found in play([*runs, *backlogs.runs]):
            if place >= len(runs):
                backlogs.record(place - len(runs), found)
                continue
            played[runs[place].label, runs[place].seed] = found
            if progress is not None:
                progress(f"{runs[place].label}, seed {runs[place].seed}")
    for run in runs:
        record = played[run.label, run.seed].record
        if not record.error and not record.completed_once:
            notes.append((run.seed, f"{run.label} {not_finished(record.metrics, system.horizon)}."))
    failed = [(run, error) for run in runs if (error := played[run.label, run.seed].record.error)]
    if failed:
        warnings.warn(
            f"{len(failed)} of {len(runs)} runs failed, see Comparison.errors(); the first is "
            f"{failed[0][0].label}, seed {failed[0][0].seed}: {failed[0][1]}",
            RuntimeWarning,
            stacklevel=3,  # the decorator adds a frame
        )
    loads = backlogs.loads()
    by_label = {label: [with_load(played[label, s], loads.get(label)) for s in numbers] for label in labels}
    examples = {label: result for label in labels if (result := played[label, numbers[0]].result) is not None}
    return Comparison(
        scenario=chosen,
        policies=tuple(labels),
        seeds=numbers,
        runs=tuple(played[label, seed].record for label in labels for seed in numbers),
        num_requests=tuple(map(len, tables)),
        examples=examples,
        notes=(
            *mark_notes({label: [each] for label, each in by_label.items()}, {p: pairs[p][0] for p in pairs}),
            *load_note(workload.mean_rate, loads, by_label),
            *merge_notes(notes, len(numbers)),
            *rule_notes((policy.info for policy in made), chosen),
            *budget_note(made, first, ADVICE if len(made) > 1 else ""),
        ),
        provenance=workload.provenance(),
        hyperparameters={
            label: all_hyperparameters(policy) if routers is None else both_described(policy, router)
            for label, (policy, router) in pairs.items()
        },
        clairvoyant=frozenset(
            label
            for label, (policy, _) in pairs.items()
            if policy.info.clairvoyant or foresees(settings[label].autoscaler)
        ),
        bounds=tuple(bounds),
        marks={label: marks for label, each in by_label.items() if (marks := find_marks(each))},
        loads={label: load for label, load in loads.items() if not np.isnan(load)},
    )


def _pairs_by_label(
    scenario: Scenario, policies: Sequence[Policy], routers: Sequence[str | Router] | None
) -> dict[str, tuple[Policy, Router | None]]:
    """Return the pairs of policy and router to compare, by label."""
    if routers is not None and (scenario.workers == 1 or not routers):
        raise ConfigError(
            f"routers {list(map(str, routers))} on {scenario.workers} worker(s); expected at least one router, and "
            "a scenario with several workers"
        )
    chosen = [scenario.make_router()] if routers is None else [make_router(router) for router in routers]
    pairs = [(policy, router) for policy in policies for router in chosen]

    def label(policy: Policy, router: Router | None) -> str:
        if routers is None or router is None:
            return label_of(policy)
        return label_of(router) if len(policies) == 1 else f"{label_of(policy)} via {label_of(router)}"

    found: dict[str, tuple[Policy, Router | None]] = {}
    for pair in pairs:
        if label(*pair) in found:
            what = "policy" if routers is None else "router"
            raise ConfigError(f"{what} {label(*pair)} is listed twice; results need different labels")
        found[label(*pair)] = pair
    return found
