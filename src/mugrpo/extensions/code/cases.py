"""The tests of a problem, read from its reference answer. They have one of three forms:

- {"inputs": [...], "outputs": [...]}: what is printed for each stdin; also a list of
  {"input": ..., "output": ...};
- the same with "fn_name": what a function, or a method of the class Solution, returns for a list of
  arguments (APPS, TACO), or for text with an argument as JSON on each line (LiveCodeBench; in its
  list, a test has "testtype": "functional" and "metadata": {"func_name": ...});
- a list of assert statements, or {"asserts": [...]} (MBPP).

A table may have "setup", Python code that comes before the program. Expected results stay here:
only inputs, arguments, and the parts of an assert that need the program are sent into a sandbox.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mugrpo.extensions.code.asserts import Assertion, read_assert
from mugrpo.extensions.code.comparing import same_text, same_value, value_of
from mugrpo.extensions.code.sandbox import Outcome

_FORMS = (
    'write {"inputs": [...], "outputs": [...]}, with "fn_name" for a function, or a list of '
    "assert statements"
)


@dataclass(frozen=True)
class Printed:
    """A test of what a program prints."""

    job: Mapping[str, Any]
    expected: str

    def passed(self, outcome: Outcome) -> bool:
        assert outcome.output is not None
        return same_text(outcome.output, self.expected)


@dataclass(frozen=True)
class Returned:
    """A test of what a function returns. If `listed`, [x] stands for x too, as in APPS."""

    job: Mapping[str, Any]
    expected: Any
    listed: bool = True

    def passed(self, outcome: Outcome) -> bool:
        assert outcome.output is not None
        value, expected = value_of(outcome.output), self.expected
        if self.listed and isinstance(expected, list) and len(expected) == 1:
            return any(same_value(value, each) for each in (expected, expected[0]))
        return same_value(value, expected)


Case = Printed | Returned | Assertion


@dataclass(frozen=True)
class Tests:
    """The tests of a problem, and the code that comes before the program."""

    cases: Sequence[Case]
    setup: str = ""


def read_tests(reference: str) -> Tests:
    """Return the tests that a reference answer holds as JSON. Raises ValueError if it has none."""
    try:
        table = json.loads(reference)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tests are not JSON: {error}; {_FORMS}") from None
    if isinstance(table, list):
        table = _table_of(table)
    if not isinstance(table, dict):
        raise ValueError(f"the tests are neither a table nor a list; {_FORMS}")
    setup = table.get("setup") or ""
    names = _names_of(setup)
    if "asserts" in table:
        if "*" in names:
            raise ValueError("the setup of asserts imports *; import what they need by name")
        statements = _list_in(table, "asserts")
        return Tests([read_assert(n, text, names) for n, text in enumerate(statements, 1)], setup)
    inputs, outputs = _list_in(table, "inputs"), _list_in(table, "outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"there are {len(inputs)} inputs but {len(outputs)} outputs")
    name = table.get("fn_name")
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"fn_name is {name!r}, which is not a function's name")
    pairs = enumerate(zip(inputs, outputs, strict=True), 1)
    if name is None:
        printed = [Printed({"stdin": _text(n, given)}, _text(n, out)) for n, (given, out) in pairs]
        return Tests(printed, setup)
    return Tests([_returned(number, name, *pair) for number, pair in pairs], setup)


def _table_of(entries: list[Any]) -> Any:
    if entries and all(isinstance(entry, str) for entry in entries):
        return {"asserts": entries}
    if entries and all(isinstance(e, dict) and e.keys() >= {"input", "output"} for e in entries):
        inputs, outputs = ([e[side] for e in entries] for side in ("input", "output"))
        table = {"inputs": inputs, "outputs": outputs}
        if any(entry.get("testtype") == "functional" for entry in entries):
            table["fn_name"] = _function_of(entries[0].get("metadata"))
            if table["fn_name"] is None:
                raise ValueError(
                    "the tests are functional, but the first has no metadata with a func_name"
                )
        return table
    return None


def _function_of(metadata: Any) -> Any:
    """Return the function's name in LiveCodeBench's metadata (a table, or JSON text), or None."""
    with suppress(ValueError, RecursionError):
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    return metadata.get("func_name") if isinstance(metadata, dict) else None


def with_function(cell: Any, metadata: Any) -> Any:
    """Return a cell's tests, with the function's name if `metadata` beside the cell has it.

    LiveCodeBench has the tests in one column and the name in another. Other cells are unchanged.
    """
    name, tests = _function_of(metadata), cell
    with suppress(ValueError, RecursionError):
        tests = json.loads(cell) if isinstance(cell, str) else cell
    tables = isinstance(tests, list) and all(isinstance(test, dict) for test in tests)
    if name is None or not tables:
        return cell
    return [{**test, "metadata": {"func_name": name}} for test in tests]


def _list_in(table: Mapping[str, Any], name: str) -> list[Any]:
    entries = table.get(name)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"the tests have no list of {name}; {_FORMS}")
    return entries


def _text(number: int, lines: Any) -> str:
    """Return a text, or a list of lines as text, as some of APPS have it."""
    if isinstance(lines, list):
        return "\n".join(map(str, lines))
    if not isinstance(lines, str):
        raise ValueError(f"test {number} has {str(lines)[:40]!r} for a text")
    return lines


def _returned(number: int, name: str, arguments: Any, expected: Any) -> Returned:
    if isinstance(arguments, str) and isinstance(expected, str):
        try:
            values = [json.loads(line) for line in arguments.split("\n") if line.strip()]
            result = json.loads(expected)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"test {number} is not JSON: {error}") from None
        return Returned({"call": name, "arguments": values}, result, listed=False)
    if not isinstance(arguments, list):
        raise ValueError(f"test {number} has {str(arguments)[:40]!r} for a list of arguments")
    return Returned({"call": name, "arguments": arguments}, expected)


def _names_of(setup: Any) -> set[str]:
    """Return the names that the code before the program defines."""
    if not isinstance(setup, str):
        raise ValueError("the setup of the tests is not text")
    try:
        tree = ast.parse(setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the setup of the tests is not Python: {error}") from None
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
