"""What a run's numbers depend on, and whether it is still the same when the run resumes."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from mugrpo.config.base import TaskOptions
from mugrpo.config.load import changes, on_resume, with_newer_options
from mugrpo.config.options import NamedOptions
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import MixtureOptions, datasets_in, parts_of
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import sha256_of
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import FORMAT, RunDir
from mugrpo.model.hardware import arithmetic
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.processes.lifetime import passed_on
from mugrpo.run.progress import Progress

_MUST_AGREE = {
    "problems_sha256": "the problems",
    "model_sha256": "the model",
    "template_sha256": "the chat template",
    "rewards_sha256": "a reward function's file",
    "environment_sha256": "the environment's file",
    "objective_sha256": "the objective's file",
    "code_sha256": "mugrpo's code",
}


HOME = Path(__file__).parents[1]
_SHOWS = {"report", "tools"}  # folders of code that decides no number


def settled_config(
    folder: RunDir, config: RunConfig, provenance: dict[str, Any], force: bool, progress: Progress
) -> tuple[dict[str, Any] | None, bool]:
    """Compare a resumed run's config with the one that it was started with.

    Returns the config.json to store (None if it is stored already), and whether `force` accepted a
    change of something that decides the run's numbers. Raises UsageError if a change is refused.
    """
    resolved = json.loads(config.model_dump_json())
    stored = folder.read_config()
    document = config_document(resolved, provenance, folder, stored)
    if stored is None or folder.is_untouched():
        return document, False
    differences = changes(with_newer_options(stored["config"]), resolved)
    texts = {name: f"{name}: {a!r} -> {b!r}" for name, a, b in differences}
    refused = [texts[name] for name in texts if on_resume(name) != "harmless"]
    for name, words in _MUST_AGREE.items():
        if stored["provenance"].get(name) != provenance[name]:
            refused.append(f"{words} changed ({name} does not match)")
    fixed = [name for name in texts if on_resume(name) == "fixed"]
    if fixed or (refused and not force):
        remedy = (
            f"The shards on disk depend on {', '.join(fixed)}: undo that or choose a new --run-dir"
            if fixed
            else "Undo that, choose a new --run-dir, or continue anyway with --force"
        )
        raise UsageError(f"{folder.root} was started differently: {'; '.join(refused)}. {remedy}")
    for text in texts.values():
        progress.say(f"changed since the run began: {text}")
    for name in sorted(provenance.keys() - _MUST_AGREE.keys() - {"git_revision"}):
        if (old := stored["provenance"].get(name)) != provenance[name]:
            progress.say(
                f"{name} was {old}, is now {provenance[name]}: the resumed run may differ in the "
                "last bits"
            )
    return (document if differences or refused else None), bool(refused)


def config_document(
    resolved: dict[str, Any],
    provenance: dict[str, Any],
    folder: RunDir,
    stored: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the config.json of the run in `folder`, whose config.json is `stored` until now.

    A run gets its id when it begins and keeps it. `replaces` names the config.json of the newest
    checkpoint, and all that were named before, as an earlier checkpoint may become the newest.
    """
    before = (stored or {}).get("replaces", [])
    kept = [folder.sealed_config(update) for update in folder.checkpoint_updates()[-1:]]
    return {
        "format": FORMAT,
        "config": resolved,
        "provenance": provenance,
        "id": stored["id"] if stored else uuid4().hex,
        "replaces": list(dict.fromkeys([*before, *(one["sha256"] for one in kept if one)])),
    }


def provenance_of(config: RunConfig, *problem_sets: Sequence[Problem]) -> dict[str, Any]:
    """Return what a run's numbers depend on besides its config.

    Raises UsageError if the file of the chat template or the objective does not exist.
    """
    template, objective = config.prompt.chat_template, config.objective_file
    for option, file in (("prompt.chat_template", template), ("objective.path", objective)):
        if file is not None and not Path(file).is_file():
            raise UsageError(f"{option} = {str(file)!r}: there is no such file")
    packages = ["mugrpo", "torch", "transformers", "numpy"] + ["peft"] * bool(config.lora.rank)
    packages += [package for part in parts_of(config.task) for package in part.packages]
    return {
        "problems_sha256": problems_sha256(*problem_sets),
        "model_sha256": model_fingerprint(config.model),
        "template_sha256": template and sha256_of(Path(template)),
        "rewards_sha256": _sums(_rewards(config.task)),
        "environment_sha256": _sums(config.environment.code) or None,
        "objective_sha256": objective and _sum(with_imports(objective, [objective.parent])),
        "code_sha256": code_sha256(HOME),
        **{name: metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "arithmetic": arithmetic(),
        "git_revision": _git_revision(HOME),
    }


def problems_sha256(*problem_sets: Sequence[Problem]) -> str:
    """Return a hash of the problems, in their order."""
    problems = hashlib.sha256()
    for problem in (problem for problems in problem_sets for problem in problems):
        content = [problem.id, problem.prompt, problem.answer, problem.columns]
        problems.update(json.dumps(content, sort_keys=True, default=str).encode() + b"\n")
    return problems.hexdigest()


@cache
def code_sha256(home: Path) -> str:
    """Return a hash of the code below `home`, without what only shows numbers."""
    code = hashlib.sha256()
    for file in sorted(home.rglob("*.py")):
        if (name := file.relative_to(home)).parts[0] not in _SHOWS:
            code.update(f"{name.as_posix()}\0{sha256_of(file)}\0".encode())
    return code.hexdigest()


def _rewards(task: TaskOptions) -> list[str]:
    """Return the rewards of `task` that are functions, as it names them."""
    rewards = [reward for one in datasets_in(task) for reward in one.rewards]
    return [reward.function for reward in rewards if isinstance(reward, FunctionOptions)]


def _sums(code: Sequence[str]) -> dict[str, str]:
    """Return file or module -> hash for code that options name, as `file.py:name` or `module:name`.

    A hash covers a file with the modules beside it that it imports.
    """
    named = {one: one.rpartition(":")[0] for one in code if not one.startswith("<")}
    # One worker loads all of them in order, so that each can import from the folders of all.
    folders = [
        Path(name).resolve().parent if name.endswith(".py") else Path.cwd()
        for name in named.values()
    ]
    sums = {}
    for one, name in named.items():
        if not name.endswith(".py"):
            sums[one] = _sum(_module_files(name, folders))
        elif Path(name).is_file():
            sums[name] = _sum(with_imports(Path(name).resolve(), folders))
    return sums


def _sum(files: Sequence[Path]) -> str:
    """Return a hash of the contents of `files`, in their order."""
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def _module_files(name: str, folders: Sequence[Path]) -> list[Path]:
    """Return the files of the package of the module `name`, and what they import from `folders`."""
    if local := _local(name, folders):
        return [found for file in local for found in with_imports(file, folders)]
    spec = find_spec(name.partition(".")[0])  # of a top level, which imports nothing
    if spec is None:
        return []
    places = spec.submodule_search_locations or filter(None, [spec.origin])
    return [file for place in map(Path, places) for file in _files(place)]


def with_imports(file: Path, folders: Sequence[Path]) -> list[Path]:
    """Return `file` and the files below `folders` that its imports can load: whole packages."""
    found, pending = dict[Path, None](), [file]
    while pending:
        if (source := pending.pop()) not in found:
            found[source] = None
            pending += [path for name in _imports(source) for path in _local(name, folders)]
    return list(found)


def _local(module: str, folders: Sequence[Path]) -> list[Path]:
    """Return the files in `folders` of the top level that `module` is in."""
    name = module.partition(".")[0]
    return [
        file
        for folder in folders
        for place in (folder / f"{name}.py", folder / name)
        for file in _files(place)
    ]


def _files(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place] * place.is_file()


def _imports(source: Path) -> Iterator[str]:
    """Yield the modules that a file names in its imports. Relative ones are in its package."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return  # it cannot be imported either
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def judge_fingerprint(config: RunConfig, problems: Sequence[Problem]) -> str:
    """Return a hash of all that decides a score: rewards, limits, files, references, truncation."""
    task = config.task
    judge = {
        **_judging(task),
        "workers": config.workers.model_dump(mode="json") | {"count": None},
        "files": sorted(_sums(_rewards(task)).values()),
        "truncated": config.rewards.truncated,
        "overlong": [config.rewards.overlong_buffer, config.rollouts.max_new_tokens],
        "references": [[problem.id, problem.answer, problem.columns] for problem in problems],
    }
    if isinstance(task, MixtureOptions):
        judge["sources"] = {source.source: _judging(source) for source in task.sources}
    return hashlib.sha256(json.dumps(judge, sort_keys=True, default=str).encode()).hexdigest()


def _judging(task: NamedOptions) -> dict[str, Any]:
    """Return the options of `task` that decide a score."""
    options = task.model_dump(mode="json")
    return {"task": options["name"], "rewards": options.get("rewards")}


def _git_revision(folder: Path) -> str | None:
    """Return the commit that `folder` is checked out at, or None if git does not track it."""
    # `ls-files` fails in a virtual environment inside of somebody's own project.
    asked = ["ls-files", "--error-unmatch", "__init__.py"], ["rev-parse", "HEAD"]
    run = partial(subprocess.run, env=passed_on(), capture_output=True, text=True, check=True)
    try:
        _, process = [run(["git", "-C", str(folder), *words]) for words in asked]
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(process.stdout.strip())
