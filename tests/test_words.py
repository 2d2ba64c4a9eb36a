"""Words of plain English: no Python file and no page of the project uses a word that has a plainer one."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agents", "baselines", "configs", "docs", "kvgym", "scripts", "tests", ".github")

# A word as a regular expression, and what to write instead. Underscores separate words, so that names count as well.
INSTEAD = {
    "who|whom|whose|whoever": "the noun (a request that, the worker's)",
    "nobody": "no request, no policy, none",
    "everybody": "every request, all policies",
    "somebody": "the noun (a request, another user)",
    "anew": "again",
    "lest": "so that … not",
    "canary|canaries": "guard bytes",
    "agenda": "event queue",
    "entrants?": "benchmark, contestant, entry",
    'contenders?(?!")': "scheduler, policy",
    "look at|looks at|looked at|looking at": "read, check, examine",
    "told|tells": "report, return, expose, say what",
    r"tell (?!is\b|if\b|and\b|or\b|else\b)(?=[a-z`])": "report, return, expose, say what",
    "so many": "a number of, the plain noun",
    "in vain": "wasted",
    "let be": "leave unchanged",
    "what of": "what, which part of",
    "of what is": "the noun",
}
# Names stay: file.tell(), strategy.tell(), ask/tell, `tell`, an argument called tell, the JSON key "contender".
BEFORE, AFTER = r"(?<![A-Za-z])(?<![.`/-])", r"(?![A-Za-z])(?!`)"
WORDS = "|".join(
    rf"(?P<w{n}>{words}){'' if words.endswith('`])') else AFTER}" for n, words in enumerate(INSTEAD)
)
PATTERN = re.compile(f"{BEFORE}(?:{WORDS})", re.IGNORECASE)


def files(root: Path) -> list[Path]:
    """Return Python files and pages, without links, generated tables and this file."""
    found = [*root.glob("*.md"), *root.glob("*.py")]
    for folder in FOLDERS:
        found += [path for kind in ("*.py", "*.md") for path in (root / folder).rglob(kind)]
    skipped = {"generated", "__pycache__"}
    return [
        path
        for path in sorted(set(found))
        if not skipped & set(path.relative_to(root).parts)
        and not path.name.endswith("_tables.md")
        and path.name != "test_words.py"
    ]


def findings(root: Path) -> list[str]:
    """Return ``file:line: word -> use instead`` of every such word."""
    found = []
    for path in files(root):
        names = path.name == "CHANGELOG.md"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if names and line.startswith("|"):  # the table of old and new names
                continue
            for match in PATTERN.finditer(line):
                instead = list(INSTEAD.values())[int(match.lastgroup[1:])]
                found.append(f"{path.relative_to(root)}:{number}: {match[0]} -> {instead}")
    return found


def test_words_are_plain():
    found = findings(ROOT)
    assert not found, f"{len(found)} words to replace:\n" + "\n".join(found)


def test_words_are_found_and_others_are_not(tmp_path):
    (tmp_path / "page.md").write_text(
        "Whoever looks at it is told so.\n"
        "file.tell() and `tell`, intelligence, ask/tell, if tell is None\nTell the user\n"
    )
    (tmp_path / "CHANGELOG.md").write_text("| `agenda` | `events` |\nan agenda\n")
    words = [line.rpartition(": ")[2].partition(" ->")[0] for line in findings(tmp_path)]
    assert words == ["agenda", "Whoever", "looks at", "told", "Tell "]
