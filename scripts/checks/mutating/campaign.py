"""Mutation campaign over several modules: resumes from saved results, prints survivors and a table."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mutating.mutations import Mutation, all_mutations, sample
from mutating.trying import run_tests

KILLED, SURVIVED, EQUIVALENT = "killed", "survived", "equivalent"

NEAREST_SECONDS = 120
"""Time limit for the nearest tests of a module, seconds."""

Modules = dict[str, tuple[str, ...]]
Equivalent = dict[tuple[str, str, str, str], str]


def read_modules(path: Path) -> Modules:
    """Return the nearest tests of each module: arguments of pytest, the most specific tests first."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {module: tuple(tests) for module, tests in found.items()}


def read_equivalent(path: Path) -> Equivalent:
    """Return the reasons why mutations change no result, by module, function, line before and line after."""
    found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return {
        (module, function, " ".join(entry["before"].split()), " ".join(entry["after"].split())): entry["why"]
        for module, functions in found.items()
        for function, entries in functions.items()
        for entry in entries
    }


@dataclass
class Campaign:
    """Mutations of modules, tried one after another.

    Attributes:
        root: folder of modules and tests.
        modules: their nearest tests, by paths relative to the root.
        equivalent: reasons why mutations change no result.
        results: file of results, one JSON object per line.
        seconds: time of each module's nearest tests without a mutation, if they ran.
    """

    root: Path
    modules: Modules
    equivalent: Equivalent
    results: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, number: int, seed: int) -> int:
        """Try ``number`` mutations of each module, print survivors and a table; return the number of survivors."""
        kept, rows, survivors = self._kept(), list[tuple[str, Counter[str]]](), 0
        for module, tests in self.modules.items():
            source = (self.root / module).read_text(encoding="utf-8")
            every = all_mutations(source)
            chosen, counts = sample(every, number, seed), Counter[str]()
            keys = self._keys(module, source, tests)
            todo = [m for m in chosen if not self._is_known(module, m, keys, kept)]
            print(f"{module}: {len(chosen)} mutations of {len(every)}, {len(todo)} to try", flush=True)
            if todo:
                self._try_unchanged(module, source, tests)
            for mutation in todo:
                result = self._try(module, source, tests, mutation)
                kept[self._change(module, mutation)] = result | keys
                self._keep(kept[self._change(module, mutation)])
            for mutation in chosen:
                outcome, text = self._outcome(module, mutation, kept)
                counts[outcome] += 1
                if outcome != KILLED:
                    print(
                        f"{outcome}: {module}:{mutation.line} in {mutation.function}\n  - {mutation.before}"
                    )
                    print(f"  + {mutation.after}{text}", flush=True)
            self._print_outdated(module, every)
            survivors += counts[SURVIVED]
            rows.append((module, counts))
        self._print_table(rows)
        return survivors

    def _keys(self, module: str, source: str, tests: tuple[str, ...]) -> dict[str, str]:
        """Return the hashes of a module and of its nearest tests."""
        digest = hashlib.sha256(repr(tests).encode())
        for name in sorted({test.partition("::")[0] for test in tests}):
            path = self.root / name
            digest.update(path.read_bytes() if path.is_file() else b"")
        return {"source": hashlib.sha256(source.encode()).hexdigest(), "tests": digest.hexdigest()}

    def _change(self, module: str, mutation: Mutation) -> tuple[Any, ...]:
        return module, mutation.start, mutation.end, mutation.text

    def _is_known(
        self,
        module: str,
        mutation: Mutation,
        keys: dict[str, str],
        kept: dict[tuple[Any, ...], dict[str, Any]],
    ) -> bool:
        """Whether a mutation needs no new try: additional tests cannot revive a killed one."""
        if self._why(module, mutation) is not None:
            return True
        found = kept.get(self._change(module, mutation))
        if found is None or found["source"] != keys["source"]:
            return False
        return bool(found["outcome"] == KILLED or found["tests"] == keys["tests"])

    def _why(self, module: str, mutation: Mutation) -> str | None:
        return self.equivalent.get((module, mutation.function, mutation.before, mutation.after))

    def _outcome(
        self, module: str, mutation: Mutation, kept: dict[tuple[Any, ...], dict[str, Any]]
    ) -> tuple[str, str]:
        """Return the outcome of a mutation, and the reason if it is equivalent."""
        why = self._why(module, mutation)
        if why is not None:
            return EQUIVALENT, f"\n  {why}"
        return kept[self._change(module, mutation)]["outcome"], ""

    def _try_unchanged(self, module: str, source: str, tests: tuple[str, ...]) -> None:
        """Run the nearest tests on the unchanged module: they must pass, within two minutes."""
        verdict = run_tests(self.root, module, source, tests)
        if verdict.noticed:
            raise SystemExit(f"{module}: its nearest tests fail without a mutation\n{verdict.output}")
        self.seconds[module] = verdict.seconds
        slow = f", more than {NEAREST_SECONDS} s" if verdict.seconds > NEAREST_SECONDS else ""
        print(f"  its nearest tests take {verdict.seconds:.0f} s{slow}", flush=True)

    def _try(self, module: str, source: str, tests: tuple[str, ...], mutation: Mutation) -> dict[str, Any]:
        verdict = run_tests(self.root, module, mutation.apply(source), tests)
        outcome = KILLED if verdict.noticed else SURVIVED
        print(f"  {outcome} in {verdict.seconds:.1f} s: line {mutation.line}: {mutation.after}", flush=True)
        return {
            "module": module,
            "function": mutation.function,
            "line": mutation.line,
            "start": mutation.start,
            "end": mutation.end,
            "text": mutation.text,
            "before": mutation.before,
            "after": mutation.after,
            "outcome": outcome,
            "by": verdict.by,
            "seconds": round(verdict.seconds, 2),
        }

    def _kept(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the latest result of each mutation, skipping truncated lines."""
        kept: dict[tuple[Any, ...], dict[str, Any]] = {}
        if self.results.exists():
            for line in self.results.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                kept[row["module"], row["start"], row["end"], row["text"]] = row
        return kept

    def _keep(self, row: dict[str, Any]) -> None:
        """Append a result to the file on a new line, even if the last line is truncated."""
        self.results.parent.mkdir(parents=True, exist_ok=True)
        with self.results.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(row).encode() + b"\n")

    def _print_outdated(self, module: str, every: list[Mutation]) -> None:
        there = {(module, m.function, m.before, m.after) for m in every}
        for _, function, before, _ in (
            key for key in self.equivalent if key[0] == module and key not in there
        ):
            print(f"outdated reason: {module}, {function} no longer has this line\n  - {before}")

    def _print_table(self, rows: list[tuple[str, Counter[str]]]) -> None:
        print("\n| module | mutations | killed | survived | equivalent | nearest tests |")
        print("|---|---|---|---|---|---|")
        for module, counts in rows:
            seconds = f"{self.seconds[module]:.0f} s" if module in self.seconds else "not run"
            numbers = (counts.total(), *(counts[outcome] for outcome in (KILLED, SURVIVED, EQUIVALENT)))
            print(f"| {module} | {' | '.join(map(str, numbers))} | {seconds} |", flush=True)
