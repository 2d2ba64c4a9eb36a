"""Workers needed for a load: equation (1), simulation, and the tool that does both for any load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.studies.capacity.estimates import OBVIOUS, SOUND
from kvgym.studies.capacity.provisioned import Provisioning
from kvgym.studies.capacity.provisioning import provision
from kvgym.theory.stability import provision as workers_for
from papers.stab.queues import QueueRun, estimates, most, play
from papers.stab.setting import BATCH_TIME, FCFS, SLACK, rate_of, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIO = "stab-1-1"
LOAD = 24.0  # requests per second
TARGET = "ttft_p99<2"
UTILISATION = 0.9  # Section 4


def run(scale: Scale) -> Outcome:
    """Plan 24 requests per second of 1:1 by (1), simulate around that number, and compare with the tool.

    ⌈λ/μ⌉ is reproduced if the queues do not grow, by a thousandth of λ, with that many workers, and do with one fewer.
    """
    service = rate_of(RATIO, BATCH_TIME)
    enough = workers_for(LOAD, service)
    with_slack = workers_for(LOAD, service, slack=SLACK)
    target = workers_for(LOAD, service, utilisation=UTILISATION)
    seeds, requests = scale.number_of_seeds(5, 1), scale.pick(56_000, 800)
    counts = (enough - 1, enough, enough + 1)
    tasks = [QueueRun(RATIO, LOAD, requests, seed, workers=n) for n in counts for seed in range(seeds)]
    played = scale.do_all(play, tasks)
    runs = {n: played[k * seeds : (k + 1) * seeds] for k, n in enumerate(counts)}
    found = {n: estimates(queues) for n, queues in runs.items()}
    rows = [
        (
            str(n),
            f"{LOAD / (n * service):.3f}",
            signed(e["slope"]),
            f"{e['mean'].value:.1f}",
            str(most(runs[n])),
        )
        for n, e in found.items()
    ]
    head = ("workers", "λ/(nμ)", "slope of waiting, 1/s", "mean waiting", "most waiting")
    few, just = found[enough - 1]["slope"].value, found[enough]["slope"].value
    tools = {label: _tool(scenario, policy, scale) for label, (scenario, policy) in _systems(scale).items()}
    findings = [
        Finding(
            f"{LOAD:g} requests/s need ⌈λ/μ⌉ workers",
            "an accurate lower bound (Sections 5.3 and 6)",
            f"⌈λ/μ⌉ = {enough}: slope {just:+.4f} /s; with {enough - 1}: {few:+.2f} /s",
            Verdict.REPRODUCED if abs(just) < 1e-3 * LOAD < few else Verdict.NOT_REPRODUCED,
            f"μ = {service:.3f} /s; Theorem 2, λ < nμ(1 − δ), needs {with_slack}.",
        ),
        Finding(
            f"a target utilisation of {UTILISATION:.0%} needs λ/(μρ)",
            "approximately λ/(μρ) (Section 4)",
            f"{target}: mean waiting {found[enough + 1]['mean'].value:.1f}, not {found[enough]['mean'].value:.1f}",
            Verdict.REPRODUCED
            if target == enough + 1 and found[enough + 1]["mean"].value < found[enough]["mean"].value
            else Verdict.NOT_REPRODUCED,
        ),
        *(_tool_finding(label, result) for label, result in tools.items()),
    ]
    tables = [
        Table(head, rows, f"{LOAD:g} requests/s of 1:1, batches of {BATCH_TIME} s, {requests:,} requests:"),
        _tool_table(tools),
    ]
    data = {
        "lines": [[f"{n} workers", runs[n][0].times, runs[n][0].waiting] for n in counts],
    }
    return Outcome(findings, tables, data)


def _systems(scale: Scale) -> dict[str, tuple[Scenario, str]]:
    """Return the paper's model and its engine on calibrated hardware, with their schedulers, under the load."""
    workload = {"preset": RATIO, "rate": LOAD, "num_requests": scale.pick(20_000, 300)}
    slots, engine = (load_scenario(name).override(workload=workload) for name in (RATIO, "vllm-v1"))
    return {f"batches of {BATCH_TIME} s, FCFS": (slots, FCFS), "calibrated, vLLM V1": (engine, "vllm_v1")}


def _tool(scenario: Scenario, policy: str, scale: Scale) -> Provisioning:
    return provision(scenario, TARGET, [policy], routers=["round_robin"], jobs=scale.jobs, ray=scale.ray)


def _tool_finding(label: str, result: Provisioning) -> Finding:
    plan, own = result.plans[0], result.workers[0]
    sound, ours, error = own.find(*SOUND), own.error, float("inf")
    if sound is not None:
        error = abs(sound.error)
        ours = (
            f"μ {sound.service:.3f} /s, {sound.error:+.1%} of a saturated worker; ⌈λ/μ⌉ = {plan.by_theory}, "
        )
        ours += f"{plan.simulated} hold {TARGET} s"
    return Finding(
        f"(1) from requests alone, as `kvgym capacity provision` uses it ({label})",
        "gaps within 10 %; ⌈λ/μ⌉ workers",
        ours,
        Verdict.REPRODUCED if error <= 0.1 and plan.by_theory == plan.simulated else Verdict.CONDITIONS,
        "b̄ is the mean of a run with all requests present from the start.",
        condition="for the service rate; the objective on TTFT needs a worker more than ⌈λ/μ⌉",
    )


def _tool_table(tools: Mapping[str, Provisioning]) -> Table:
    rows = []
    for label, result in tools.items():
        plan, own = result.plans[0], result.workers[0]
        cells = [own.find(*which) for which in (SOUND, OBVIOUS)]
        texts = ("–" if e is None else f"{e.service:.3f} ({e.error:+.1%})" for e in cells)
        counts = (plan.by_theory, plan.obvious, plan.simulated)
        rows.append((label, *texts, f"{own.measured:.3f}", *("–" if n is None else str(n) for n in counts)))
    head = (
        "system", "μ, mean b̄, saturated", "μ, median b̄ of the unmodified load", "saturated worker", "⌈λ/μ⌉",
        "with the median", f"simulated, {TARGET} s",
    )  # fmt: skip
    return Table(
        head, rows, "Results of `kvgym capacity provision` for the load, requests per second and workers:"
    )


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the number waiting over time by number of workers."""
    figure, (axes,) = new_figure()
    for colour, (label, times, waiting) in zip(palette(len(data["lines"])), data["lines"], strict=True):
        axes.plot(times, waiting, color=colour, linewidth=1, label=label)
    axes.set(xlabel="time (s)", ylabel="requests waiting", xlim=(0, None), ylim=(0, None))
    axes.legend(fontsize=8)
    return figure


PROVISIONING = Experiment(
    name="provisioning",
    title="Provisioning",
    source="Sections 4, 5.3 and 6",
    run=run,
    draw=draw,
)
