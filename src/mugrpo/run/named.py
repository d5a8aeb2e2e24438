"""What a config names that runs or is connected to, with a hash of the files behind each."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from itertools import product
from pathlib import Path
from typing import Any

from mugrpo.config.engines import VLLMOptions, VLLMServerOptions
from mugrpo.config.mixture import datasets_in
from mugrpo.config.private import Private
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.links import regular
from mugrpo.disk.publishing import sha256_of
from mugrpo.processes.messages import printable


@dataclass(frozen=True)
class Named:
    """Code, a command or an address that an option of a config names."""

    option: str
    text: str  # a file's absolute path, or what else the option says
    sha256: str | None  # of the files behind it, or None if they are found only when it runs
    place: str = ""  # the file of a module

    def __str__(self) -> str:
        found = f" of {self.place}" * bool(self.place)
        if self.sha256 is None:
            found = " (found only when it runs; name its file)"
        return f"{self.option} = {self.text}{found}"


def named_by(config: RunConfig) -> list[Named]:
    """Return what `config` names that runs or is connected to, without files that do not exist.

    A hash covers a Python file with the modules beside it that it imports, an interpreter with its
    environment's `pyvenv.cfg`, and the files among a command's words. Raises UsageError if a name
    is none that a file can have.
    """
    try:
        return list(dict.fromkeys([*_code(config), *_commands(config), *_addresses(config)]))
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = printable(f"{error}", 200)
        raise UsageError(f"the config names a file that cannot be looked at: {reason}") from None


def _code(config: RunConfig) -> Iterator[Named]:
    if (objective := config.objective_file) and objective.is_file():
        yield _of("objective.path", str(objective), _with_imports(objective, [objective.parent]))
    template = config.prompt.chat_template
    if template and Path(template).is_file():
        yield _of("prompt.chat_template", template, [Path(template)])
    yield from _imported_code("environment", config.environment.code)
    for data_set in datasets_in(config.task):
        yield from _rewards(data_set)
    for use in config.evaluation.suites:
        if use.name.endswith(".toml"):  # it may name rewards of its own
            yield _of("evaluation.suites", use.name, [Path(use.name)])


def _rewards(options: DatasetOptions) -> Iterator[Named]:
    functions = [reward for reward in options.rewards if isinstance(reward, FunctionOptions)]
    yield from _imported_code("task.rewards", [reward.function for reward in functions])
    for reward in options.rewards:
        for option, address in reward.addresses.items():
            yield _private(f"task.rewards.{option}", address)


def _imported_code(option: str, code: Sequence[str]) -> Iterator[Named]:
    """Yield files and modules among `code`, each "file.py:name" or "module:name"."""
    places = [(one, one.rpartition(":")[0]) for one in code if not one.startswith("<")]
    files = list(dict.fromkeys(Path(place) for _, place in places if place.endswith(".py")))
    files = [file for file in files if file.is_file()]
    modules = [(one, place) for one, place in places if not place.endswith(".py")]
    # One worker loads all of them in order, so that each can import from the folders of all.
    folders = [
        Path(place).resolve().parent if place.endswith(".py") else Path.cwd() for _, place in places
    ]
    for file in files:
        yield _of(option, str(file), _with_imports(file.resolve(), folders))
    for one, module in modules:
        named = _module_files(module, folders)
        if named is None:
            yield Named(option, one, None)
        else:  # the same name elsewhere is another module
            place = str(named[0]) if named else ""
            yield replace(_of(option, one, named), place=place)


def _commands(config: RunConfig) -> Iterator[Named]:
    engine = config.engine
    if isinstance(engine, VLLMOptions):
        if engine.python:
            yield _interpreter("engine.python", engine.python)
        if engine.arguments:  # some of them name classes, which vLLM imports
            text = json.dumps(engine.arguments, sort_keys=True, default=str)
            yield _of("engine.arguments", text, [])
    environment = config.environment
    if environment.python:
        yield _interpreter("environment.python", environment.python)
    if environment.kind:
        yield _of("environment.name", f"{environment.name}", [])
    if environment.kwargs:  # approved code may do anything with them
        yield _private("environment.kwargs", environment.kwargs)


def _addresses(config: RunConfig) -> Iterator[Named]:
    """Yield whom a run sends something. Ray and torchrun also unpickle, so execute, what they get.

    The hub is not among them: a user's environment says which one it is.
    """
    backend, engine = config.backend, config.engine
    for option, address in backend.addresses.items():
        yield _private(f"backend.{option}", address)
    if config.distributed.address:
        yield Named("distributed.address", config.distributed.address, "")
    if isinstance(engine, VLLMServerOptions):
        yield from (_private("engine.urls", url) for url in engine.urls)
    for name in ("trackio", "wandb"):
        if project := getattr(config.sinks, name):
            yield Named(f"sinks.{name}", project, "")


def _private(option: str, private: Private[Any]) -> Named:
    """Return an option with all of its value, as nobody can approve what is hidden from them."""
    text = _words(private.shown)
    with suppress(UsageError):  # a copy of a run has no more
        text = _words(private.value)
    return Named(option, text, "")


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _interpreter(option: str, python: str) -> Named:
    file = Path(shutil.which(python) or python)
    files = [file, file.parent.parent / "pyvenv.cfg"]
    return _of(option, str(file), [one for one in files if one.is_file()])


def _of(option: str, text: str, files: Sequence[Path]) -> Named:
    sums = [sha256_of(file) for file in files]
    if len(sums) == 1:
        return Named(option, text, sums[0])
    lines = "".join(f"{file} {sha256}\n" for file, sha256 in zip(files, sums, strict=True))
    return Named(option, text, hashlib.sha256(lines.encode()).hexdigest())


def _module_files(name: str, folders: Sequence[Path]) -> list[Path] | None:
    """Return the files of the module `name`, which is searched for as a reward worker does.

    For a module in one of `folders`, these are also those in all of them that it imports. Return
    None if there is no such module: what runs first may have it imported from anywhere.
    """
    parts = name.split(".")
    installed = [place for place in sys.path if place not in ("", os.getcwd())]
    where = [*installed, *map(str, folders)]
    files: list[Path] = []
    for length in range(1, len(parts) + 1):
        inner = ".".join(parts[:length])
        # Packages that pip has installed as editable have finders of their own.
        specs = (
            finder.find_spec(inner, where if length > 1 or finder is PathFinder else None)
            for finder in sys.meta_path
        )
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        if spec.has_location and spec.origin and os.path.isfile(spec.origin):
            files.append(Path(spec.origin))
        where = list(spec.submodule_search_locations or ())
    if files and any(
        files[0].parent == root or root / parts[0] in files[0].parents for root in folders
    ):
        files = [found for file in files for found in _with_imports(file, folders)]
    return list(dict.fromkeys(files))


def _with_imports(file: Path, folders: Sequence[Path]) -> list[Path]:
    """Return `file` and the files below `folders` that its `import` statements load, in order."""
    found = {file: None}
    pending = [file]
    while pending:
        for path in _imported(source := pending.pop(), folders):
            if path not in found and path != source and path.is_file():
                found[path] = None
                pending.append(path)
    return list(found)


def _imported(source: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths in `folders` that the imports of `source` could load. Not all exist."""
    try:
        tree = ast.parse(regular(source).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it cannot be imported either
    for node in ast.walk(tree):
        places, names = folders, list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            places = [source.parents[node.level - 1]] if node.level else folders
            names = [".".join(filter(None, [node.module, alias.name])) for alias in node.names]
        for folder, name in product(places, names):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                place = folder.joinpath(*parts[:length])
                for ending in (".py", *EXTENSION_SUFFIXES):
                    yield place.parent / f"{place.name}{ending}"
                    yield place / f"__init__{ending}"
