"""Search for hyperparameters of a policy on training seeds, so that learned agents are compared with tuned baselines.

The value of the best trial on its training seeds is optimistic: compare it on other seeds, e.g. with
:func:`kvgym.experiments.comparison.compare`. Its seeds start at 0, and training seeds at :data:`FIRST_SEED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvgym.errors import ConfigError, KVGymError, shown
from kvgym.experiments.journal import kept_runs
from kvgym.experiments.marks import exact_notes
from kvgym.experiments.notes import merge_notes
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.metrics.attainment import check_targets
from kvgym.metrics.catalogue import metric_info, metric_names
from kvgym.policies.policy import REFERENCE_ONLY, Policy
from kvgym.policies.runner import check_needs
from kvgym.studies.capacity.targets import Target, parse_targets
from kvgym.studies.sweeping.plan import grid_points
from kvgym.studies.tuning.optuna_search import counts_finished_only, import_optuna, optuna_points
from kvgym.studies.tuning.result import Trial, TuningResult
from kvgym.studies.tuning.search_space import Space, plan_search
from kvgym.studies.tuning.trial_runs import Points, Progress, TrialRunner
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seeds
from kvgym.workloads.base import IntRange

FIRST_SEED = 1000
"""The default first training seed; ``compare`` starts at 0, so the seeds differ."""

OPTUNA_TRIALS = 50


@explained
def tune(
    policy: str | Policy,
    scenario: str | Path | Scenario | None = None,
    *,
    space: Space | None = None,
    metric: str = "e2e_latency_mean",
    also: Iterable[str] = (),
    subject_to: str | Iterable[str | Target] = (),
    seeds: int | Iterable[int] = 5,
    search: str = "grid",
    trials: int | None = None,
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Search the hyperparameters of a policy for the best mean of a metric over training seeds.

    The policy as given is always the first trial, so the best trial is never worse on these seeds. A trial that fails
    on a seed (a livelock, an impossible decision, no value) is disqualified and keeps its error. Latencies
    and some other metrics (evictions, fairness) ignore unfinished requests. For these, a trial is also
    disqualified if it finished fewer requests by the horizon, over all seeds, than another trial. If runs end
    at a horizon, use a metric such as ``goodput`` or ``token_throughput``.

    Args:
        policy: policy or spec; the hyperparameters that it gives stay fixed.
        scenario: a scenario, its name or file; None = the default scenario.
        space: values to search by hyperparameter; None = those that its hyperparameters declare.
        metric: the metric to optimise, see :mod:`kvgym.metrics`, which also defines the direction.
        also: further metrics to report, which decide nothing.
        subject_to: bounds on other metrics, as in ``"e2e_latency_mean<10,ttft_p99<1"``: a trial that misses one
            on the mean over seeds is disqualified. With ``metric="token_throughput"`` this is problem (3) of Ao et al.,
            "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints". Latencies cover only
            finished requests, so bound ``unfinished`` as well if runs end at a horizon.
        seeds: number of seeds (from :data:`FIRST_SEED` on) or the seeds; their workloads are sampled once.
        search: ``"grid"``, every point, or ``"optuna"``, a tree of Parzen estimators (TPE, seed 0) on it.
        trials: maximum number of configurations in addition to the policy as given. A larger grid is sampled without
            replacement, with a fixed seed. None = the whole grid; with ``"optuna"`` 50.
        folder: folder that saves each run when it finishes, see :func:`kvgym.experiments.comparison.compare`.
        jobs: processes to run on, see :func:`kvgym.utils.execution.make_executor`; any number gives the same result.
            Unless it is 1, a script must call this under ``if __name__ == "__main__":``.
        ray: run on a Ray cluster instead, see the same function.
        progress: called after each run with its configuration, the number of completed runs, and the maximum number.

    Raises:
        ConfigError: an argument is wrong, or optuna is not installed.
        KVGymError: the workload cannot be served, or every trial failed or misses a bound.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    plan = plan_search(policy, space)
    _check_metric(metric)
    others = tuple(also)
    for name in others:
        metric_info(name)
    targets = parse_targets(subject_to)
    if search not in ("grid", "optuna"):
        raise ConfigError(f"search = {shown(search)}; expected grid or optuna")
    if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int) or trials < 1):
        raise ConfigError(f"trials = {shown(trials)}; expected a whole number ≥ 1")
    if search == "optuna":
        import_optuna()
    numbers = check_seeds(seeds, FIRST_SEED)
    if isinstance(chosen.kv_capacity, IntRange):  # one system for all seeds
        chosen = chosen.override(kv_capacity=chosen.make_system().kv_capacity)
    player, workload, system = Player(tables=len(numbers)), chosen.make_workload(), chosen.make_system()
    tables = tuple(player.requests(chosen, seed)[1] for seed in numbers)
    given = plan.make({})
    for table in tables:
        check_needs(given, table)
        system.check_fits(table)
        check_targets([metric, *others, *(t.metric for t in targets)], table)
    plan = plan.settle(resolve_policy(given, system, tables[0]))
    notes = [
        *merge_notes(
            [(s, note) for s, table in zip(numbers, tables, strict=True) for note in chosen.notes(table)],
            len(numbers),
        )
    ]
    notes += exact_notes({plan.spec({}): given}, tables[0])
    if given.info.clairvoyant:
        notes.append(f"{plan.spec({})} is {REFERENCE_ONLY}.")
    if workload.spec.replays:
        notes.append("Every seed replays the same trace: evaluate the result on another trace.")
    if not plan.space:
        notes.append(f"{plan.spec({})} has nothing to search.")
    sizes = tuple(map(len, tables))
    if search == "grid":
        if trials is not None and trials < plan.size:
            notes.append(f"{trials:,} of the grid's {plan.size:,} points, drawn at random (seed 0).")
        grid = [plan.start, *(p for p in grid_points(plan.space, trials) if p != plan.start)]
        most, source = len(grid), _at_once(grid)
    else:
        limit = trials or OPTUNA_TRIALS
        most = 1 + min(limit, plan.size - plan.on_grid)
        source = optuna_points(plan, metric, sum(sizes), most - 1, 20 * limit)
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        runner = TrialRunner(
            chosen, numbers, plan, metric, play, targets=targets, also=others, progress=progress
        )
        found = runner.follow(source, most)
    fair = _fair(found, metric)
    missing = [t for t in found if t.excess]
    if all(t.error for t in fair) and missing:
        near = min(missing, key=lambda t: t.excess)
        raise KVGymError(
            f"{plan.spec({})}: no trial meets every bound; the closest, {near.spec}, {near.error}"
        )
    if all(t.error for t in fair):
        raise KVGymError(f"{plan.spec({})}: every trial failed; the first, {fair[0].spec}: {fair[0].error}")
    unfair = [new for old, new in zip(found, fair, strict=True) if new.error and not old.error]
    broken = [t for t in found if t.error and not t.excess]
    reasons = ((broken, "failed"), (missing, "missed a bound"), (unfair, "left more requests unfinished"))
    for out, why in reasons:
        if out:
            what = f"{len(out):,} of {len(found):,} trials {why}"
            notes.append(f"{what}; the first, {out[0].spec}: {out[0].error}")
    result = TuningResult(
        policy=plan.spec({}),
        metric=metric,
        scenario=chosen,
        seeds=numbers,
        trials=tuple(fair),
        space=plan.space,
        search=search,
        num_requests=sizes,
        notes=tuple(notes),
        provenance=workload.provenance(),
        subject_to=tuple(map(str, targets)),
    )
    return replace(result, hyperparameters=plan.defaults | plan.fixed | result.best.hyperparameters)


def _at_once(points: Sequence[dict[str, Any]]) -> Points:
    """Yield all points at once."""
    yield points


def _check_metric(name: str) -> None:
    if metric_info(name).lower_is_better is None:
        judged = [m for m in metric_names() if metric_info(m).lower_is_better is not None]
        raise ConfigError(
            f"metric {name}: neither more nor less of it is better; choose one of {', '.join(judged)}"
        )


def _fair(trials: list[Trial], metric: str) -> list[Trial]:
    """Disqualify trials that finished fewer requests than another trial, if that improves the metric."""
    if not counts_finished_only(metric):
        return trials
    most = max((sum(t.finished) for t in trials if not t.error), default=0)
    return [
        replace(t, error=f"finished {done:,} requests, another trial {most:,}; {metric} ignores the rest")
        if not t.error and (done := sum(t.finished)) < most
        else t
        for t in trials
    ]
