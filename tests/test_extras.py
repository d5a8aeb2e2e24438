"""Each extra of pyproject.toml works alone: what its modules import is in it or in the base."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from mugrpo.model import pretrained
from tests.test_layers import FILES, HOUSE

PROJECT = tomllib.loads((HOUSE.parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: listed
    for name, listed in PROJECT["optional-dependencies"].items()
    if name not in ("test", "bench")
}
# Imported package -> the extra that has it. They are imported where they are used, or by name.
OF_EXTRAS = {
    "latex2sympy2_extended": "math",
    "math_verify": "math",
    "datasets": "hub",
    "peft": "lora",
    "accelerate": "qlora",
    "bitsandbytes": "qlora",
    "ray": "ray",
    "reasoning_gym": "reasoning-gym",
    "tensorboard": "tensorboard",
    "textual": "view",
    "trl": "trl",
    "wasmtime": "wasm",
}
# In the environment of another interpreter, or of who trains with them; httpx comes with verifiers.
ELSEWHERE = {"vllm", "verifiers", "httpx", "verl", "prime_rl"}
OURS = {"mugrpo", "mugrpo_vllm", "messages"}  # the last by its path, without the package
# Imported themselves only where they are used; they need this extra.
LAZY = {
    "rewards/mathematics.py": "math",
    "rewards/reading.py": "math",
    "rewards/reasoning_gym.py": "reasoning-gym",
    "rewards/strictness.py": "math",
    "tools/view.py": "view",
    "trl.py": "trl",
}


def distribution(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return name[0].lower().replace("_", "-")


BASE = {distribution(requirement) for requirement in PROJECT["dependencies"]}


def third_party(file: Path, *, outside_functions: bool = False) -> Iterator[str]:
    """Yield the packages that are neither Python's nor ours and that a file imports."""
    nodes: list[ast.AST] = list(ast.parse(file.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef) and outside_functions:
            continue
        nodes += ast.iter_child_nodes(node)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        tops = {name.split(".")[0] for name in names}
        yield from tops - sys.stdlib_module_names - OURS


@cache
def in_base(package: str) -> bool:
    """Return whether a package is of the base, or one that a package of the base requires."""
    names = {name.lower().replace("_", "-") for name in DISTRIBUTIONS.get(package, ())}
    required = {
        distribution(requirement)
        for name in BASE
        for requirement in metadata.requires(name) or ()
        if "extra ==" not in requirement
    }
    return bool(names & (BASE | required))


DISTRIBUTIONS = metadata.packages_distributions()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(HOUSE)))
def test_a_file_imports_packages_of_the_base_and_those_of_an_extra_only_where_it_uses_them(
    file: Path,
):
    everywhere = {p for p in third_party(file) if not in_base(p)}
    assert everywhere <= OF_EXTRAS.keys() | ELSEWHERE
    at_once = {p for p in third_party(file, outside_functions=True) if not in_base(p)}
    if "extension" in file.parts:
        assert at_once <= ELSEWHERE  # only the other interpreter imports it
    elif name := LAZY.get(str(file.relative_to(HOUSE))):
        listed = {distribution(requirement) for requirement in EXTRAS[name]}
        assert {p.replace("_", "-") for p in everywhere} <= listed
    else:
        assert not at_once


def test_a_lazy_file_is_imported_only_where_it_is_used():
    modules = {f"mugrpo.{path.removesuffix('.py').replace('/', '.')}" for path in LAZY}
    for file in FILES:
        if str(file.relative_to(HOUSE)) in LAZY:
            continue
        nodes = ast.parse(file.read_text()).body
        imported = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
        assert not imported & modules, file


def test_every_extra_has_what_is_imported_and_a_message_that_names_it():
    """The sinks' message and that of packaged models are written for any name."""
    for package, extra in OF_EXTRAS.items():
        assert package.replace("_", "-") in {distribution(r) for r in EXTRAS[extra]}
    source = "".join(file.read_text() for file in FILES)
    named = set(re.findall(r"pip install 'mugrpo\[([\w-]+)\]'", source))
    others = {"site", "tensorboard", "trackio", "wandb"}
    assert named | others | {*pretrained.PACKAGED} == EXTRAS.keys()


def test_a_packaged_model_asks_for_every_package_of_its_extra(monkeypatch: pytest.MonkeyPatch):
    listed = {distribution(requirement) for requirement in EXTRAS["smollm2"]}
    asked = []
    monkeypatch.setenv("MUGRPO_CACHE", "/nonexistent")

    def find(name: str) -> object:
        asked.append(name)
        return object()

    monkeypatch.setattr(pretrained.importlib.util, "find_spec", find)
    monkeypatch.setattr(pretrained, "_only_one", lambda *_: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        pretrained.convert("smollm2")
    assert set(asked) == listed
