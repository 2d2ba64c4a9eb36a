"""Experiments: a paper's claims, the code that checks them, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from harness.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Verdict(Enum):
    """Verdict on a claim."""

    REPRODUCED = "reproduced"
    CONDITIONS = "with conditions"  # the finding names them
    CONSTRUCTION = "by construction"  # the setting is made from the published figure: no evidence
    COMPUTED = "computed"  # arithmetic on published figures, which repeats them: no evidence either
    NOT_REPRODUCED = "not reproduced"
    REFUTED = "refuted"  # with a certificate: an instance, a schedule or a proof that anyone can check
    NOT_RUN = "not run"  # the reason says what is missing


@dataclass(frozen=True)
class Finding:
    """One row of the matrix: a claim, our result, and the verdict.

    Attributes:
        claim: the claim, in a few words.
        published: the published figure or statement.
        ours: our result, with its interval if it is an estimate.
        verdict: the verdict.
        reason: the reason; one or two sentences.
        condition: where the claim holds, to follow "Holds": ``"for few batches"``. A claim that holds with conditions
            needs one; any other verdict drops it.
        seeds: the number of seeds behind the verdict; empty: as many as the experiment requested, ``–`` without chance.

    Raises:
        ValueError: a claim that holds with conditions names none.
    """

    claim: str
    published: str
    ours: str
    verdict: Verdict
    reason: str = ""
    condition: str = ""
    seeds: str = ""

    def __post_init__(self) -> None:
        """Check that a claim that holds with conditions names them, and drop the condition of any other."""
        if self.verdict is not Verdict.CONDITIONS:
            object.__setattr__(self, "condition", "")
        elif not self.condition:
            raise ValueError(f"{self.claim}: no condition is named")

    @property
    def why(self) -> str:
        """The condition, if there is one, and the reason."""
        holds = f"Holds {self.condition}." if self.condition else ""
        return " ".join(filter(None, (holds, self.reason)))


@dataclass(frozen=True)
class Table:
    """A table of a page; cells are texts (Markdown)."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment gives.

    Attributes:
        findings: rows of the matrix, at least one.
        tables: for the page of the paper.
        data: the data of the figure: JSON values by name.
        code: the digest of the code that made it; empty until it is stored.
    """

    findings: Sequence[Finding]
    tables: Sequence[Table] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        name: within the paper, in kebab-case: ``table-1``, ``figure-3``, ``theorem-4-1``.
        title: the headline.
        source: its place in the paper.
        run: runs it at a scale.
        draw: draws its figure from the data of the outcome; ``None`` where nothing is drawn.
        covers: the paper's figures, tables and theorems that it answers: ``("Figure 2", "Table 1", "Theorem 2")``.
        cheap: takes seconds in full, so that a test compares the page with what comes out.
    """

    name: str
    title: str
    source: str
    run: Callable[[Scale], Outcome]
    draw: Callable[[Mapping[str, Any]], Figure] | None = None
    covers: Sequence[str] = ()
    cheap: bool = False


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments.

    Attributes:
        name: on the command line: ``mc_sf``.
        title: author and title, as in the list of references.
        page: the file in docs/reproductions.
        experiments: in the order of the page.
        figures: every figure and table of results in the paper; each must be covered by an experiment.
        theorems: every theorem, proposition, lemma, remark and example with a claim; each must be covered as well.
    """

    name: str
    title: str
    page: str
    experiments: Sequence[Experiment]
    figures: Sequence[str] = ()
    theorems: Sequence[str] = ()
