"""All mutations of a module, and a repeatable sample of them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
from collections import defaultdict
from dataclasses import dataclass

_OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "-")),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*", "/")),
    ast.Mod: ("%", ("*",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
"""Text of each operator, and its replacements."""

_OPPOSITES = {
    "min": "max",
    "any": "all",
    "minimum": "maximum",
    "fmin": "fmax",
    "floor": "ceil",
    "argmin": "argmax",
}
_OPPOSITES |= {opposite: name for name, opposite in _OPPOSITES.items()}
"""Functions and methods that replace each other."""


@dataclass(frozen=True)
class Mutation:
    """A piece of source text and its replacement.

    Attributes:
        function: qualified name of the function.
        line: number of the line where the change begins.
        start: offset of the piece in the source, characters.
        end: offset of its end.
        text: the replacement.
        before: the changed line or lines, stripped.
        after: the same after the change.
    """

    function: str
    line: int
    start: int
    end: int
    text: str
    before: str
    after: str

    def apply(self, source: str) -> str:
        """Return the source with the change made."""
        return source[: self.start] + self.text + source[self.end :]


def all_mutations(source: str) -> list[Mutation]:
    """Return all mutations of the functions of a module, in the order of the source."""
    tree, finder = ast.parse(source), _Finder(source)
    finder.visit(tree)
    whole, kept = ast.dump(tree), dict[str, Mutation]()
    for mutation in finder.found:
        changed = mutation.apply(source)
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(changed)) != whole:
                kept.setdefault(changed, mutation)
    return sorted(kept.values(), key=lambda m: (m.start, m.end, m.text))


def sample(mutations: list[Mutation], number: int, seed: int) -> list[Mutation]:
    """Return ``number`` mutations, taken from all functions in turn.

    An edit of one function does not change the order in the others.
    """
    by_function: dict[str, list[tuple[str, Mutation]]] = defaultdict(list)
    repeats: dict[tuple[str, str, str], int] = defaultdict(int)
    for mutation in mutations:
        change = (mutation.function, mutation.before, mutation.after)
        key = hashlib.sha256(repr((seed, change, repeats[change])).encode()).hexdigest()
        repeats[change] += 1
        by_function[mutation.function].append((key, mutation))
    ordered = [[m for _, m in sorted(found, key=lambda pair: pair[0])] for found in by_function.values()]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*ordered))
    chosen = list(itertools.islice((m for m in turns if m is not None), number))
    return sorted(chosen, key=lambda m: (m.start, m.end, m.text))


class _Finder(ast.NodeVisitor):
    """Collects the mutations inside functions; skips docstrings, annotations, decorators and texts of errors."""

    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._names: list[str] = []
        self._functions = 0
        self._lines = source.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(len(line) for line in self._lines)]

    # ------------------------------------------------------------ places in the source

    def _offset(self, line: int, column: int) -> int:
        """Return an offset in characters; Python counts columns in bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _segment(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)]

    def _add(self, start: int, end: int, text: str) -> None:
        if not self._functions:
            return
        first = self._source.rfind("\n", 0, start) + 1
        last = self._source.find("\n", end)
        last = len(self._source) if last < 0 else last
        self.found.append(
            Mutation(
                function=".".join(self._names),
                line=self._source.count("\n", 0, start) + 1,
                start=start,
                end=end,
                text=text,
                before=" ".join(self._source[first:last].split()),
                after=" ".join((self._source[first:start] + text + self._source[end:last]).split()),
            )
        )

    def _replace_between(self, left: ast.expr, right: ast.expr, operator: ast.AST, suffix: str = "") -> None:
        """Replace the operator between two operands."""
        written, others = _OPERATORS.get(type(operator), ("", ()))
        start, end = self._end(left), self._start(right)
        gap = self._source[start:end]
        at = gap.find(written + suffix)
        if "#" not in gap and at >= 0:
            for other in others:
                self._add(start + at, start + at + len(written), other)

    # ------------------------------------------------------------ functions

    def _visit_named(self, node: ast.FunctionDef | ast.ClassDef, functions: int) -> None:
        self._names.append(node.name)
        self._functions += functions
        for statement in node.body:
            self.visit(statement)
        self._functions -= functions
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_named(node, 1)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_named(node, 0)

    # ------------------------------------------------------------ statements

    def _drop(self, node: ast.stmt) -> None:
        self._add(self._start(node), self._end(node), "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [
            part
            for target in node.targets
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._drop(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self._replace_between(node.target, node.value, node.op, suffix="=")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._drop(node)
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._drop(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._drop(node)

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return  # visit_Compare replaces its operator
        self._add(self._start(test), self._end(test), f"(not ({self._segment(test)}))")

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    # ------------------------------------------------------------ expressions

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, (left, right) in zip(node.ops, itertools.pairwise(operands), strict=True):
            self._replace_between(left, right, operator)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self._replace_between(left, right, node.op)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._replace_between(node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        written = {ast.Not: "not", ast.USub: "-", ast.Invert: "~"}.get(type(node.op), "")
        self._add(self._start(node), self._start(node) + len(written), "")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if (
            getattr(node.value, "attr", "") != "shape"
        ):  # most arrays have one dimension: the last is the first
            self.visit(node.slice)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name in _OPPOSITES:
            end = self._end(function)
            self._add(end - len(name), end, _OPPOSITES[name])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            others = [str(not value)]
        elif isinstance(value, int):
            others = [str(value + 1), str(value - 1)]
        elif isinstance(value, float):
            others = [str(value + 1.0)]
        else:
            others = []
        for other in others:
            self._add(self._start(node), self._end(node), other)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # texts
