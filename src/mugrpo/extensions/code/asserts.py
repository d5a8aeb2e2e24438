"""Assert statements as tests that a program cannot see.

The parts of an assert that call the program are evaluated in the sandbox, and what comes out is put
in their places. If the rest is a comparison with a literal, it is made here. Otherwise it is
evaluated in a second sandbox, in which the program is not:

    assert f(3) == 10               f(3) inside; here, is its value 10?
    assert abs(f(2) - .5) < 1e-6    f(2) inside; abs(__given__[0] - .5) < 1e-6 in a second one
"""

import ast
import builtins
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mugrpo.extensions.code.comparing import value_of
from mugrpo.extensions.code.inside import GIVEN
from mugrpo.extensions.code.sandbox import Outcome

# Not the whole statement in the sandbox: a response could read what is expected in its own frame.
_WITH_NAMES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


@dataclass(frozen=True)
class Assertion:
    """A test that an assert states. `check` is what a second sandbox evaluates, or None."""

    job: Mapping[str, Any]
    expected: Any = None
    check: str | None = None

    def passed(self, outcome: Outcome) -> bool:
        """Python's == decides, as in the statement. With a `check`, any output passes here."""
        assert outcome.output is not None
        return self.check is not None or bool(value_of(outcome.output) == self.expected)

    def checking(self, outcome: Outcome) -> Mapping[str, Any]:
        """Return the job of the second sandbox, given the outcome of the first."""
        assert outcome.output is not None
        return {"value": self.check, "given": outcome.output}


def read_assert(number: int, statement: Any, known: Collection[str]) -> Assertion:
    """Return the test that statement `number` states. `known` are names that it has from the setup.

    Raises ValueError if it states none that can be taken apart.
    """
    where = f"assert {number}"
    if not isinstance(statement, str):
        raise ValueError(f"{where} is {str(statement)[:40]!r}, not a statement")
    try:
        body = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where} is not Python: {error}") from None
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise ValueError(f"{where} is {statement.strip()[:60]!r}, not one assert statement")
    test = body[0].test
    others = {*known, *dir(builtins)}
    try:
        if missing := _modules(test) - others:
            raise ValueError(f'{where} needs the setup "import {min(missing)}"')
        if (simple := _comparison(test, known, others)) is not None:
            return simple
        taken = _Taken(where, others)
        rest = ast.unparse(taken.visit(test))
    except (RecursionError, MemoryError):
        raise ValueError(f"{where} is nested too deeply") from None
    if not taken.calls:
        raise ValueError(f"{where} calls nothing of the program")
    return Assertion({"value": f"({', '.join(taken.calls)},)"}, check=f"bool({rest})")


def _modules(test: ast.expr) -> set[str]:
    """Return the modules of the standard library that an expression takes attributes of."""
    taken = [each.value for each in ast.walk(test) if isinstance(each, ast.Attribute)]
    names = {value.id for value in taken if isinstance(value, ast.Name)}
    return (names & sys.stdlib_module_names) - _bound(test)


def _comparison(test: ast.expr, known: Collection[str], others: set[str]) -> Assertion | None:
    """Return the test that a comparison with a literal states, or None if it is something else."""
    if not isinstance(test, ast.Compare) or [type(op) for op in test.ops] != [ast.Eq]:
        return None
    for asked, literal in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        with suppress(ValueError, TypeError, SyntaxError):
            expected = ast.literal_eval(literal)
            # A function of the program may be named as a builtin: assert sum(10, 15) == 25
            foreign = others if _names(asked) - others else set(known)
            own = _first_name(asked)
            if own is not None and own not in foreign:
                return Assertion({"value": ast.unparse(asked)}, expected)
    return None


def _first_name(node: ast.AST) -> str | None:
    """Return the name that a chain such as A(1).b[2] begins with, or None."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    """Return the names that an expression takes from outside."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    return {name.id for name in names} - _bound(node)


def _bound(node: ast.AST) -> set[str]:
    """Return the names that an expression gives a value itself."""
    nodes = list(ast.walk(node))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.arg for n in nodes if isinstance(n, ast.arg)}


class _Taken(ast.NodeTransformer):
    """Takes the calls of the program's functions out of an expression, and notes them.

    `others` are the names that are not the program's.
    """

    def __init__(self, where: str, others: Collection[str]) -> None:
        self._where = where
        self._others = others
        self._own: set[str] = set()  # names of the comprehensions and lambdas around
        self.calls: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.NamedExpr):
            raise ValueError(f"{self._where} gives a name a value")
        if isinstance(node, _WITH_NAMES):
            outside, self._own = self._own, self._own | _bound(node)
            try:
                return super().visit(node)
            finally:
                self._own = outside
        name = _first_name(node)
        if name is None or name in self._others or name in self._own:  # it is not the program's
            return super().visit(node)
        if used := self._own & _names(node):
            raise ValueError(
                f"{self._where} calls {name} for each {', '.join(sorted(used))}; write an assert "
                "for each case"
            )
        self.calls.append(ast.unparse(node))
        return ast.parse(f"{GIVEN}[{len(self.calls) - 1}]", mode="eval").body
