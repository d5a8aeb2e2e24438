"""The floors of docs/architecture.md: imports only go down, and the limits on size hold."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = "mugrpo"
MAX_FILE, MAX_FUNCTION = 500, 60  # lines
MAX_ROOM = 14  # files in a folder
HOUSE = Path(__file__).parents[1] / "src" / "mugrpo"
FILES = sorted(HOUSE.rglob("*.py"))

# From the ground up. A room (a package or a root module) imports only rooms on lower floors.
FLOORS = (
    "disk",
    "config",
    "processes",
    "model rewards",
    "engines environments tasks optimize report",
    "rollouts",
    "run",
    "stages",
    "pipeline",
    "tools",
    "arguments",
    "cli",
    "extensions",
    "__init__ __main__",
)
NEVER = {("rollouts", "optimize")}
WITHOUT_TORCH = {"disk", "config", "arguments"}

# The mathematics imports nothing else of mugrpo.
MATHEMATICS = [
    "mugrpo.model.attention",
    "mugrpo.model.logprobs",
    "mugrpo.model.shaping",
    "mugrpo.model.shared_prompts",
    "mugrpo.optimize.advantages",
    "mugrpo.optimize.bound",
    "mugrpo.optimize.objectives",
    "mugrpo.optimize.ratios",
]

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


def module_of(file: Path) -> str:
    return ".".join((PACKAGE, *file.relative_to(HOUSE).with_suffix("").parts))


def room_of(module: str) -> str:
    """Return the package below mugrpo, or the module directly in it."""
    return module.split(".")[1] if "." in module else "__init__"


@cache
def parsed(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def imports(source: str, module: str) -> Iterator[str]:
    """Yield the dotted names that `source` imports, even in functions; `from a import b` is a.b."""
    for node in parsed(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def faults(source: str, module: str) -> list[str]:
    """Return the imports of `source` that the floors forbid to `module`."""
    found = []
    room = room_of(module)
    for name in imports(source, module):
        top, target = name.split(".")[0], room_of(name)
        if top in ("torch", "transformers") and room in WITHOUT_TORCH:
            found.append(f"{module} imports {top}")
        if top != "mugrpo" or target == room:
            down = True
        else:
            down = FLOOR[target] < FLOOR[room] and (room, target) not in NEVER
        if not down:
            found.append(f"{module} imports {name}")
        elif top == "mugrpo" and mathematics(module) and not mathematics(name):
            found.append(f"{module} imports {name}, which is not mathematics")
    return found


def mathematics(name: str) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in MATHEMATICS)


def graph() -> dict[str, set[str]]:
    """Map each module to the modules of mugrpo that it imports, even in functions."""
    modules = {module_of(file): file for file in FILES}
    found: dict[str, set[str]] = {}
    for module, file in modules.items():
        named = (_named(name, modules) for name in imports(file.read_text(), module))
        found[module] = {name for name in named if name} - {module}
    return found


def _named(name: str, modules: Collection[str]) -> str | None:
    """Return the module that an imported name is or is in. A package is its __init__."""
    home = name.rpartition(".")[0]
    candidates = (name, f"{name}.__init__", home, f"{home}.__init__")
    return next((candidate for candidate in candidates if candidate in modules), None)


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


def long_functions(file: Path) -> list[tuple[str, str, int]]:
    """Return (module, function, lines) of the functions that are too long."""
    lengths = [
        (module_of(file), node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in parsed(file.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [found for found in lengths if found[2] > MAX_FUNCTION]


def test_a_room_has_few_files():
    counts = Counter(file.parent for file in FILES)
    assert {str(room): count for room, count in counts.items() if count > MAX_ROOM} == {}


def test_imports_go_down_only():
    assert [line for file in FILES for line in faults(file.read_text(), module_of(file))] == []


def test_no_module_imports_itself_through_others():
    list(TopologicalSorter(graph()).static_order())  # raises CycleError, which names the cycle


def test_the_core_imports_no_extension():
    extensions = f"{PACKAGE}.extensions."
    assert [
        (module, name)
        for module, names in graph().items()
        for name in names
        if f"{name}.".startswith(extensions) and not f"{module}.".startswith(extensions)
    ] == []


def test_files_and_functions_stay_small():
    assert {module_of(file): n for file in FILES if (n := lines_of(file)) > MAX_FILE} == {}
    assert [found for file in FILES for found in long_functions(file)] == []


FORBIDDEN = (
    ("mugrpo.rollouts.sampler", "from mugrpo.optimize.trainer import Trainer"),
    ("mugrpo.optimize.trainer", "from mugrpo.rollouts.score import Scorer"),
    ("mugrpo.optimize.trainer", "from mugrpo.engines.base import Engine"),
    ("mugrpo.optimize.trainer", "def f():\n    import mugrpo.pipeline"),
    ("mugrpo.optimize.trainer", "from ..rollouts import score"),
    ("mugrpo.optimize.trainer", "if TYPE_CHECKING:\n    from mugrpo.run.opening import Run"),
    ("mugrpo.disk.shards", "import torch"),
    ("mugrpo.config.run", "from torch.nn import functional"),
    ("mugrpo.optimize.objectives.grpo", "from mugrpo.config.run import RunConfig"),
    ("mugrpo.optimize.ratios", "from .trainer import Trainer"),
)
PERMITTED = (
    ("mugrpo.pipeline", "from mugrpo.stages import score\nimport mugrpo.optimize.trainer"),
    ("mugrpo.optimize.trainer", "import torch\nfrom . import loss\nfrom ..disk import shards"),
    ("mugrpo.optimize.objectives.topr", "from mugrpo.optimize.ratios import log_ratios"),
    ("mugrpo.disk.shards", "import numpy, pyarrow"),
)


def test_forbidden_imports_are_caught_and_permitted_ones_pass():
    assert [len(faults(source, module)) for module, source in FORBIDDEN] == [1] * len(FORBIDDEN)
    assert [faults(source, module) for module, source in PERMITTED] == [[]] * len(PERMITTED)
