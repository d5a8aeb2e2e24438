"""What a run's numbers depend on, and whether it is still the same when the run resumes."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from mugrpo.config.extensions import used_by
from mugrpo.config.load import changes, on_resume, with_newer_options
from mugrpo.config.mixture import MixtureOptions, parts_of
from mugrpo.config.options import NamedOptions
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import FORMAT, RunDir
from mugrpo.model.hardware import arithmetic
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.processes.starting import passed_on
from mugrpo.run.named import named_by
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
_DECIDES = (
    "config",
    "disk",
    "engines",
    "environments",
    "model",
    "optimize",
    "pipeline.py",
    "processes",
    "rewards",
    "rollouts",
    "run/opened.py",
    "run/opening.py",
    "run/target.py",
    "run/weights.py",
    "stages",
    "tasks",
)


def settled_config(
    folder: RunDir, config: RunConfig, provenance: dict[str, Any], force: bool, progress: Progress
) -> tuple[dict[str, Any] | None, bool]:
    """Compare a resumed run's config with the one that it was started with.

    Returns the config.json to store (None if it is stored already), and whether `force` accepted a
    change of something that decides the run's numbers. Raises UsageError if a change is refused.
    """
    resolved = json.loads(config.model_dump_json())
    stored = folder.read_config()
    document = config_document(resolved, provenance, stored)
    if stored is None or folder.is_untouched():
        return document, False
    differences = changes(with_newer_options(stored["config"]), resolved)
    texts = {name: f"{name}: {a!r} -> {b!r}" for name, a, b in differences}
    texts |= {name: f"{name}, which is private" for name in _privately(folder, config)}
    refused = [texts[name] for name in texts if on_resume(name) != "harmless"]
    for name, words in _MUST_AGREE.items():
        if stored["provenance"].get(name) != provenance[name]:
            refused.append(f"{words} changed ({name} does not match)")
    fixed = [name for name in texts if on_resume(name) == "fixed"]
    if fixed or (refused and not force):
        way_out = (
            f"The shards on disk depend on {', '.join(fixed)}: undo that or choose a new --run-dir"
            if fixed
            else "Undo that, choose a new --run-dir, or continue anyway with --force"
        )
        raise UsageError(f"{folder.root} was started differently: {'; '.join(refused)}. {way_out}")
    for text in texts.values():
        progress.say(f"changed since the run began: {text}")
    for name in sorted(provenance.keys() - _MUST_AGREE.keys() - {"git_revision"}):
        old = stored["provenance"].get(name, provenance[name])  # earlier versions kept fewer
        if old != provenance[name]:
            progress.say(
                f"{name} was {old}, is now {provenance[name]}: the resumed run may differ in the "
                "last bits"
            )
    renewed = differences or refused or stored["format"] != FORMAT
    return (document if renewed else None), bool(refused)


def private_groups(config: RunConfig) -> dict[str, Any]:
    """Return the groups of options that have private values, with these."""
    shown, revealed = config.model_dump(mode="json"), config.revealed()
    return {group: revealed[group] for group in revealed if revealed[group] != shown[group]}


def _privately(folder: RunDir, config: RunConfig) -> list[str]:
    """Return the options whose private values alone have changed since the run was stored."""
    shown, revealed, stored = (
        config.model_dump(mode="json"),
        config.revealed(),
        folder.read_private(),
    )
    private = {name for name, *_ in changes(shown, revealed)}
    now = {group: revealed.get(group) for group in stored}
    return [name for name, *_ in changes(stored, now) if name in private]


def config_document(
    resolved: dict[str, Any], provenance: dict[str, Any], stored: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the config.json of a run whose config.json is `stored` now, or of a new run.

    A run gets its id when it begins and keeps it. Runs of earlier versions never get one.
    """
    document = {"format": FORMAT, "config": resolved, "provenance": provenance}
    if stored is None:
        document["id"] = uuid4().hex
    elif "id" in stored:
        document["id"] = stored["id"]
    return document


def provenance_of(config: RunConfig, *problem_sets: Sequence[Problem]) -> dict[str, Any]:
    """Return what a run's numbers depend on besides its config.

    Raises UsageError if the chat template's file does not exist.
    """
    template = config.prompt.chat_template
    if template is not None and not Path(template).is_file():
        raise UsageError(f"prompt.chat_template = {template!r}: there is no such file")
    packages = ["mugrpo", "torch", "transformers", "numpy"] + ["peft"] * bool(config.lora.rank)
    packages += [package for part in parts_of(config.task) for package in part.packages]
    return {
        "problems_sha256": problems_sha256(*problem_sets),
        "model_sha256": model_fingerprint(config.model),
        "template_sha256": _only(_sums(config, "prompt.chat_template")),
        "rewards_sha256": _sums(config, "task.rewards"),
        "environment_sha256": _sums(config, "environment") or None,
        "objective_sha256": _only(_sums(config, "objective.path")),
        "code_sha256": code_sha256(HOME, *used_by(config)),
        **{name: metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "arithmetic": arithmetic(config.model),
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
def code_sha256(home: Path, *extensions: Path) -> str:
    """Return a hash of the code that decides a run's numbers: below `home`, and of extensions.

    Comments, docstrings and layout do not count, and neither does code that only shows numbers.
    """
    files = [file for place in _DECIDES for file in (home / place).rglob("*.py")]
    files += [home / place for place in _DECIDES if place.endswith(".py")]
    named = {file.relative_to(home).as_posix(): file for file in files}
    for place in extensions:
        for file in place.rglob("*.py") if place.is_dir() else [place]:
            named[f"{place.stem}/{file.relative_to(place).as_posix()}"] = file
    code = hashlib.sha256()
    for name, file in sorted(named.items()):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                body[:] = [child for child in body if not _is_text(child)]
        code.update(f"{name}\0{ast.dump(tree)}\0".encode())
    return code.hexdigest()


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a lone string: a docstring."""
    lone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return lone and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def _sums(config: RunConfig, option: str) -> dict[str, str]:
    """Return file or module -> hash for the code that `option` names."""
    return {named.text: named.sha256 or "" for named in named_by(config) if named.option == option}


def _only(sums: dict[str, str]) -> str | None:
    return next(iter(sums.values()), None)


def judge_fingerprint(config: RunConfig, problems: Sequence[Problem]) -> str:
    """Return a hash of all that decides a score: rewards, limits, files, references, truncation."""
    task = config.task
    judge = {
        **_judging(task),
        "files": sorted(_sums(config, "task.rewards").values()),
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
    judging = {"task": options["name"]}
    judging |= {name: options.get(name) for name in ("rewards", "right_at")}
    return {**judging, "workers": options.get("workers", {}) | {"count": None}}


def _git_revision(folder: Path) -> str | None:
    """Return the commit that `folder` is checked out at, or None if git does not track its files.

    Another project's checkout may have the folder in it, as a part of a virtual environment.
    """
    asked = ["ls-files", "--error-unmatch", "__init__.py"], ["rev-parse", "HEAD"]
    run = partial(subprocess.run, env=passed_on(), capture_output=True, text=True, check=True)
    try:
        _, process = [run(["git", "-C", str(folder), *words]) for words in asked]
    except (OSError, subprocess.CalledProcessError):
        return None
    return str(process.stdout.strip())
