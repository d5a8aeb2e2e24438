"""The floors of docs/architecture.md: imports only go down, and the house stays small."""

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_FILE, MAX_FUNCTION = 500, 60  # lines
MAX_CORE = 27601  # lines

HOUSE = Path(__file__).parents[1] / "src" / "mugrpo"
FILES = sorted(HOUSE.rglob("*.py"))

# From the ground up. A room (a package or a root module) imports only rooms on lower floors.
FLOORS = (
    *("disk", "config", "processes", "model rewards", "engines tasks optimize", "rollouts", "run"),
    *("hosts report", "stages", "pipeline", "tools", "arguments", "cli", "extensions"),
    "__init__ __main__",
)
NEVER = {("rollouts", "optimize")}
WITHOUT_TORCH = {"disk", "config", "arguments"}

# The mathematics imports nothing else of mugrpo.
_MODEL = "attention compiled logprobs rows shaping shared_prompts varlen"
_OPTIMIZE = "advantages corrections learning_rate masks objectives ratios reduction reference"
MATHEMATICS = [
    *(f"mugrpo.model.{name}" for name in _MODEL.split()),
    *(f"mugrpo.optimize.{name}" for name in _OPTIMIZE.split()),
]

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


def module_of(file: Path) -> str:
    return ".".join(("mugrpo", *file.relative_to(HOUSE).with_suffix("").parts))


def room_of(module: str) -> str:
    """Return the package below mugrpo, or the module directly in it."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(file: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, even in functions; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module_of(file).split(".")[: -node.level] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


def mathematics(name: str) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in MATHEMATICS)


def faults(module: str, name: str) -> Iterator[str]:
    """Yield what the floors forbid about an import of `name` in `module`."""
    top, room, target = name.split(".")[0], room_of(module), room_of(name)
    if top in ("torch", "transformers") and room in WITHOUT_TORCH:
        yield f"{module} imports {top}"
    up = target != room and (FLOOR.get(target, 0) >= FLOOR[room] or (room, target) in NEVER)
    if top == "mugrpo" and up:
        yield f"{module} imports {name}"
    if top == "mugrpo" and mathematics(module) and not mathematics(name):
        yield f"{module} imports {name}, which is not mathematics"


def test_imports_go_down_only():
    found = ((module_of(file), name) for file in FILES for name in imports(file))
    assert [fault for module, name in found for fault in faults(module, name)] == []
    assert [*faults("mugrpo.disk.shards", "torch.nn")] and [
        *faults("mugrpo.rollouts.sampler", "mugrpo.optimize.trainer")
    ]


def test_every_room_and_module_that_a_rule_names_exists():
    modules = {module_of(file).removesuffix(".__init__") for file in FILES}
    rooms = {room_of(module_of(file)) for file in FILES}
    assert FLOOR.keys() == rooms
    assert set(MATHEMATICS) - modules == set()
    assert WITHOUT_TORCH.union(*NEVER) - rooms == set()


def test_files_functions_and_the_core_stay_small():
    lines = {module_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {module: n for module, n in lines.items() if n > MAX_FILE} == {}
    functions = (
        (module_of(file), node.name, (node.end_lineno or 0) - node.lineno + 1)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert [found for found in functions if found[2] > MAX_FUNCTION] == []
    assert sum(n for module, n in lines.items() if room_of(module) != "extensions") < MAX_CORE
