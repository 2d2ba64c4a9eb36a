"""Section 3: what the resource planner may do beyond choosing a node on arrival."""

from __future__ import annotations

from harness import Experiment, Finding, Outcome, Scale, Verdict


def run(scale: Scale) -> Outcome:
    """Nothing is run: routers choose a worker once."""
    finding = Finding(
        "the planner may reassign waiting requests and migrate partly processed ones",
        "part of the model; no experiment",
        "–",
        Verdict.NOT_RUN,
        "Routers choose a worker when a request comes, and are not asked again. The theorems need no more "
        "(Section 4.1), and Section 7 has one node.",
    )
    return Outcome([finding])


PLANNER = Experiment("planner", "The resource planner", "Section 3", run, cheap=True)
