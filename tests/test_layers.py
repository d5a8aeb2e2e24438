"""Imports go down only: generation and optimization meet on disk, never in a call.

The table below is the architecture. A new module has to be given its place in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted((SOURCE / "mugrpo").rglob("*.py"))

LAYER_0 = {
    "arguments",
    "attention",
    "config",
    "errors",
    "frames",
    "metrics",
    "processes",
    "progress",
    "publishing",
    "records",
    "run_dir",
    "schedule",
    "shards",
    "stopping",
}
LAYER_1 = {"tasks", "pretrained", "policy", "engines", "cluster", "memory", "ranks", "sharded"}
BELOW_3 = LAYER_0 | LAYER_1 | {"rollouts", "optimize"}

# What each module or package directly under mugrpo may import, besides itself.
MAY_IMPORT = {
    **dict.fromkeys(LAYER_0, LAYER_0),
    "tasks": LAYER_0,
    "pretrained": LAYER_0,
    "memory": LAYER_0,
    "ranks": LAYER_0,
    "sharded": LAYER_0 | {"ranks"},
    "policy": LAYER_0 | {"pretrained", "memory", "ranks", "sharded"},
    "cluster": LAYER_0,
    "engines": LAYER_0 | {"cluster", "policy", "memory"},
    "rollouts": LAYER_0 | LAYER_1,
    "optimize": LAYER_0 | LAYER_1,
    "repair": LAYER_0,
    "store": LAYER_0,
    "summary": LAYER_0,
    "catalog": LAYER_0 | {"optimize"},
    "dry_run": LAYER_0 | {"optimize", "policy"},
    "report": LAYER_0,
    "provenance": LAYER_0 | {"policy"},
    "sinks": LAYER_0,
    "weights": LAYER_0 | {"policy"},
    "run": BELOW_3 | {"provenance", "sinks", "weights"},
    "opening": BELOW_3 | {"run", "provenance"},
    "evaluate": BELOW_3 | {"run"},
    "ray_ranks": BELOW_3 | {"run"},
    "launch": BELOW_3 | {"run", "evaluate", "ray_ranks"},
    "saving": BELOW_3 | {"run"},
    "canary": BELOW_3 | {"run"},
    "other_policies": BELOW_3 | {"run"},
    "planning": BELOW_3 | {"run"},
    "experience": BELOW_3 | {"run", "other_policies"},
    "generation": BELOW_3 | {"run", "canary", "planning"},
    "overlap": BELOW_3 | {"run", "generation", "planning"},
    "optimization": BELOW_3
    | {"run", "evaluate", "experience", "generation", "launch", "other_policies", "saving"},
    "pipeline": BELOW_3
    | {
        "run",
        "evaluate",
        "generation",
        "optimization",
        "other_policies",
        "overlap",
        "planning",
        "saving",
    },
    "bakeoff": BELOW_3
    | {"opening", "run", "evaluate", "pipeline", "planning", "provenance", "report"},
    "study": BELOW_3 | {"opening", "run", "pipeline", "planning", "report"},
    "__main__": {"cli"},
    "cli": BELOW_3
    | {
        "opening",
        "run",
        "evaluate",
        "pipeline",
        "repair",
        "summary",
        "report",
        "store",
        "catalog",
        "dry_run",
        "bakeoff",
        "study",
    },
}

# The mathematics: of mugrpo, these import each other and nothing else.
PURE = (
    "mugrpo.attention",
    "mugrpo.optimize.advantages",
    "mugrpo.optimize.bound",
    "mugrpo.optimize.corrections",
    "mugrpo.optimize.cut",
    "mugrpo.optimize.hidden_states",
    "mugrpo.optimize.logprobs",
    "mugrpo.optimize.lr",
    "mugrpo.optimize.masks",
    "mugrpo.optimize.objectives",
    "mugrpo.optimize.ratios",
    "mugrpo.optimize.reduction",
    "mugrpo.optimize.reference",
)


def module_of(file: Path) -> tuple[str, bool]:
    """(dotted name, whether it is a package) of a file below SOURCE."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if package else parts), package


def imports(source: str, module: str, package: bool) -> Iterator[str]:
    """Dotted names that `source` imports anywhere in it, functions included, relative ones too.

    `from a import b` gives a.b: b may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + package]
                base = ".".join([*parents, base] if base else parents)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def faults(source: str, module: str, package: bool = False) -> list[str]:
    """The imports of `source` that the architecture forbids to `module`."""
    found = []
    unit = module.split(".")[1] if "." in module else ""
    for name in imports(source, module, package):
        top, _, rest = name.partition(".")
        if top == "mugrpo":
            target = rest.partition(".")[0]
            if target != unit and target not in MAY_IMPORT.get(unit, set()):
                found.append(f"{module} imports {name}")
            elif any(within(module, pure) for pure in PURE) and not any(
                within(name, pure) for pure in PURE
            ):
                found.append(f"{module} imports {name}, which is not mathematics")
        elif unit in LAYER_0 and top in ("torch", "transformers"):
            found.append(f"{module} is in layer 0 and imports {top}")
    return found


def test_there_are_files_to_check():
    assert len(FILES) > 30


def test_every_module_has_its_place():
    units = {module_of(file)[0].split(".")[1] for file in FILES if file.parent != SOURCE / "mugrpo"}
    units |= {f.stem for f in (SOURCE / "mugrpo").glob("*.py")} - {"__init__"}
    assert units == set(MAY_IMPORT)


def test_no_two_units_may_import_each_other():
    layer_0 = {frozenset((a, b)) for a in LAYER_0 for b in LAYER_0}
    for unit, allowed in MAY_IMPORT.items():
        for other in allowed - {unit}:
            pair = frozenset((unit, other))
            assert unit not in MAY_IMPORT[other] or pair in layer_0, f"{unit} and {other}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: module_of(file)[0])
def test_imports_go_down_only(file):
    assert faults(file.read_text(), *module_of(file)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mugrpo.rollouts.generate", "from mugrpo.optimize.trainer import Trainer"),
        ("mugrpo.optimize.trainer", "from mugrpo.rollouts.score import score_shard"),
        ("mugrpo.optimize.trainer", "from mugrpo import pipeline"),
        ("mugrpo.optimize.trainer", "def f():\n    import mugrpo.pipeline"),
        ("mugrpo.optimize.trainer", "from ..rollouts import score"),
        ("mugrpo.optimize.trainer", "if TYPE_CHECKING:\n    from mugrpo.run import Run"),
        ("mugrpo.tasks.chain", "from mugrpo.engines.base import Engine"),
        ("mugrpo.tasks.chain", "from mugrpo.policy import Policy"),
        ("mugrpo.engines.hf", "from mugrpo.tasks.base import Task"),
        ("mugrpo.policy", "from mugrpo.engines import make_engine"),
        ("mugrpo.shards", "from mugrpo.policy import Policy"),
        ("mugrpo.shards", "import torch"),
        ("mugrpo.config.run", "from torch.nn import functional"),
        ("mugrpo.metrics", "def f():\n    import transformers"),
        ("mugrpo.summary", "from mugrpo.run import Run"),
        ("mugrpo.run", "from mugrpo.evaluate import evaluate"),
        ("mugrpo.optimize.objectives.grpo", "from mugrpo.config.run import RunConfig"),
        ("mugrpo.optimize.objectives.grpo", "from mugrpo.optimize import trainer"),
        ("mugrpo.optimize.objectives.topr", "from mugrpo.optimize.update_loss import UpdateLoss"),
        ("mugrpo.optimize.lr", "from .batching import collate"),
        ("mugrpo.optimize.masks", "from mugrpo.config.objectives import VetoOptions"),
        ("mugrpo.optimize.ratios", "from .stored import plain_batch"),
        ("mugrpo.optimize.stored", "from mugrpo.other_policies import StoredLogprobs"),
        ("mugrpo.newcomer", "from mugrpo.errors import UsageError"),
    ],
)
def test_forbidden_imports_are_caught(module, source):
    assert len(faults(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mugrpo.pipeline", "from mugrpo.rollouts import score\nimport mugrpo.optimize.trainer"),
        (
            "mugrpo.optimize.trainer",
            "import torch\nfrom . import lr\nfrom ..shards import ShardSet",
        ),
        ("mugrpo.optimize.objectives.topr", "from mugrpo.optimize.objectives import grpo"),
        ("mugrpo.optimize.objectives.topr", "from mugrpo.optimize.ratios import log_ratios"),
        ("mugrpo.optimize.masks", "from .ratios import log_ratios\nimport torch"),
        ("mugrpo.optimize.objectives.m2po", "from ..reduction import denominator\nimport torch"),
        ("mugrpo.engines.hf", "from mugrpo.policy import Policy\nimport transformers"),
        ("mugrpo.shards", "import numpy, pyarrow\nfrom mugrpo.config.run import RunConfig"),
    ],
)
def test_permitted_imports_pass(module, source):
    assert faults(source, module) == []


def test_relative_imports_of_a_package_start_at_itself():
    found = imports("from . import grpo\nfrom ..lr import learning_rate", "a.b", package=True)
    assert list(found) == ["a.b.grpo", "a.lr.learning_rate"]


@pytest.mark.parametrize(
    "file",
    FILES,
    ids=lambda file: module_of(file)[0],
)
def test_a_file_has_at_most_300_lines(file):
    assert len(file.read_text().splitlines()) <= 300
