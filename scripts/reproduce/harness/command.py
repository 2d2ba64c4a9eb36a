"""The command line of the reproductions."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import __main__
from harness.experiment import Experiment, Outcome, Paper
from harness.figures import draw_to
from harness.pages import outcome_file, write_all
from harness.progress import progress
from harness.scale import Scale
from harness.store import ROOT, key_of, load, save
from kvgym.errors import ConfigError, KVGymError

PAPERS = ("mc_sf", "wait", "slai", "flow", "stab")


def load_paper(name: str) -> Paper:
    """Return a paper by its name.

    Raises:
        ConfigError: no such paper.
    """
    if name not in PAPERS:
        raise ConfigError(f"there is no paper {name!r}: {', '.join(PAPERS)}")
    paper: Paper = importlib.import_module(f"papers.{name}").PAPER
    return paper


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    args = _parser().parse_args(arguments)
    try:
        papers = [load_paper(name) for name in args.papers or PAPERS]
        chosen = [(paper, experiment) for paper in papers for experiment in _chosen(paper, args.only)]
        if args.list:
            for paper, experiment in chosen:
                kept = load(args.docs / outcome_file(paper, experiment))
                old = kept and kept.code != key_of(paper, experiment, Scale())["code"]
                print(
                    f"{paper.name:6} {experiment.name:24} {experiment.source}: {experiment.title}"
                    + (" (outcome of earlier code)" if old else "")
                )
            return
        if not chosen:
            raise ConfigError(f"no experiment {args.only!r}; --list shows all")
        _run(chosen, args)
    except KVGymError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _run(chosen: Sequence[tuple[Paper, Experiment]], args: argparse.Namespace) -> None:
    """Run experiments one after the other, and write pages after each."""
    writes = not (args.quick or args.no_pages)
    with progress(len(chosen)) as advance:
        for paper, experiment in chosen:
            folder = args.out / ("quick" if args.quick else "") / paper.name
            file = folder / f"{experiment.name}.json"
            scale = Scale(quick=args.quick, seeds=args.seeds, jobs=args.jobs, ray=args.ray)
            key = key_of(paper, experiment, scale)
            outcome = None if args.fresh else load(file, key)
            if args.kept and (outcome := load(args.docs / outcome_file(paper, experiment))) is None:
                raise ConfigError(f"{paper.name} {experiment.name} has no outcome: run it without --kept")
            if outcome is None:
                # Read back, so that pages and figures do not depend on whether it was stored.
                outcome = save(file, key, scale.count_seeds(experiment.run(scale)))
            _show(paper, experiment, outcome)
            if writes:
                write_all(args.docs, paper, experiment, outcome)
            elif experiment.draw is not None:
                draw_to(file.with_suffix(".png"), experiment.draw, outcome.data)
            advance(f"{paper.name} {experiment.name}")


def _chosen(paper: Paper, only: str | None) -> list[Experiment]:
    """Return a paper's experiments that ``--only`` names."""
    if only is None:
        return list(paper.experiments)
    names = only.split(",")
    return [experiment for experiment in paper.experiments if experiment.name in names]


def _show(paper: Paper, experiment: Experiment, outcome: Outcome) -> None:
    for row in outcome.findings:
        print(
            f"{paper.name} {experiment.name}: {row.claim}: published {row.published}; here {row.ours}: "
            f"{row.verdict.value}",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python scripts/reproduce",
        description=__main__.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("papers", nargs="*", metavar="PAPER", help=f"{', '.join(PAPERS)}; all, if none is named")
    add("--only", metavar="NAMES", help="experiments by name, with commas")
    add(
        "--list",
        action="store_true",
        help="show papers and experiments, and which outcomes earlier code made",
    )
    add(
        "--quick", action="store_true", help="a second or two each; figures mean nothing, pages do not change"
    )
    add("--seeds", type=_positive, help="seeds instead of each experiment's own number")
    add(
        "--jobs",
        type=int,
        help="processes; 0 = one for each core; default: cores, where runs take long enough",
    )
    add("--ray", help="run on Ray: local, auto, or the address of a cluster")
    add("--fresh", action="store_true", help="ignore stored outcomes")
    add("--kept", action="store_true", help="rewrite pages from their own outcomes, whatever code made them")
    add("--no-pages", action="store_true", help="do not change the documentation")
    add("--out", type=Path, default=ROOT / "results" / "reproduce", help="folder of outcomes")
    add("--docs", type=Path, default=ROOT / "docs", help="folder of the documentation")
    return parser


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return value
