"""docs/reliability.md and the tests cite each other: no row without a test, and no other tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
_ROW = re.compile(r"^\| `([\w ]+)` \|.* \| (.*) \|$", re.MULTILINE)
_TEST = re.compile(r"`([\w/.]+)::(\w+)`")


def in_table() -> set[tuple[str, str, str]]:
    """Return (row, file, test) for every test that the table names."""
    rows = _ROW.findall(PAGE.read_text())
    assert len({row for row, _ in rows}) == len(rows) > 20
    assert all(_TEST.findall(tests) for _, tests in rows)
    return {(row, *test) for row, tests in rows for test in _TEST.findall(tests)}


def in_tests() -> Iterator[tuple[str, str, str]]:
    """Yield (row, file, test) for every test with the mark `promise`."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.promise(" not in (text := file.read_text()):
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in (d for d in node.decorator_list if isinstance(d, ast.Call)):
                if ast.unparse(call.func) == "pytest.mark.promise":
                    (row,) = map(ast.literal_eval, call.args)
                    yield row, str(file.relative_to(ROOT)), node.name


def test_every_promise_names_its_tests_and_they_name_it():
    assert in_table() == set(in_tests())
