"""What a run's numbers depend on, and whether it is still the same when the run resumes."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from mugrpo.config.base import NamedOptions, TaskOptions
from mugrpo.config.load import changes, on_resume, with_newer_options
from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import MixtureOptions, datasets_in, parts_of
from mugrpo.disk.errors import UsageError, absent
from mugrpo.disk.publishing import sha256_of
from mugrpo.disk.records import Problem
from mugrpo.disk.run_dir import FORMAT, RunDir
from mugrpo.model.hardware import arithmetic
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.processes.functions import files_of_code
from mugrpo.run.progress import Progress
from mugrpo.run.trust import suites_named

_MUST_AGREE = {
    "problems_sha256": "the problems",
    "model_sha256": "the model",
    "template_sha256": "the chat template",
    "rewards_sha256": "a reward function's file",
    "environment_sha256": "the environment's file",
    "objective_sha256": "the objective's file",
    "advantage_sha256": "the advantages' file",
    "code_sha256": "mugrpo's code",
}
_SUITES = "suites_sha256"  # of each file, as evaluation.suites may change
_PACKAGE = Path(__file__).parents[1]
_SHOWS = {"report", "tools"}  # folders of code that decides no number


def checked_config(
    folder: RunDir,
    config: RunConfig,
    provenance: dict[str, Any],
    force: bool,
    progress: Progress,
    *,
    apart: bool = False,
) -> tuple[dict[str, Any] | None, bool]:
    """Compare a resumed run's config with the one that it was started with.

    Returns the config.json to store (None if it is stored already), and whether `force` accepted a
    change of something that decides the run's numbers. A process `apart` changes nothing,
    even before there are results. Raises UsageError if a change is refused.
    """
    resolved = json.loads(config.model_dump_json())
    stored = folder.read_config()
    document = config_document(resolved, provenance, stored)
    if stored is None or (not apart and folder.is_untouched()):
        return document, False
    differences = changes(with_newer_options(stored["config"]), resolved)
    texts = {name: f"{name}: {a!r} -> {b!r}" for name, a, b in differences}
    refused = [texts[name] for name in texts if on_resume(name) != "harmless"]
    for name, words in _MUST_AGREE.items():
        if stored["provenance"].get(name) != provenance[name]:
            refused.append(f"{words} changed ({name} does not match)")
    before, now = (p.get(_SUITES, {}) for p in (stored["provenance"], provenance))
    changed = [file for file in now if before.get(file, now[file]) != now[file]]
    refused += [f"a suite's file changed ({file})" for file in changed]  # others may come and go
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
    for name in sorted(provenance.keys() - _MUST_AGREE.keys() - {_SUITES}):
        if (old := stored["provenance"].get(name)) != provenance[name]:
            progress.say(
                f"{name} was {old}, is now {provenance[name]}: the resumed run may differ in the "
                "last bits"
            )
    return (document if differences or refused else None), bool(refused)


def config_document(
    resolved: dict[str, Any],
    provenance: dict[str, Any],
    stored: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the config.json of a run whose config.json is `stored` until now.

    A run gets its id when it begins and keeps it.
    """
    return {
        "format": FORMAT,
        "config": resolved,
        "provenance": provenance,
        "id": stored["id"] if stored else uuid4().hex,
    }


def provenance_of(config: RunConfig, *problem_sets: Sequence[Problem]) -> dict[str, Any]:
    """Return what a run's numbers depend on besides its config.

    Raises UsageError if the file of the chat template or of the user's own parts does not exist.
    """
    template, own = config.prompt.chat_template, config.own_files
    for option, file in {"prompt.chat_template": template, **own}.items():
        if file is not None and not Path(file).is_file():
            raise UsageError(f"{option}: {absent(file)}")
    sums = {option: sha256_of(file) for option, file in own.items()}
    packages = ["mugrpo", "torch", "transformers", "numpy"] + ["peft"] * bool(config.lora.rank)
    packages += ["bitsandbytes"] * bool(config.lora.quantize)
    packages += [package for part in parts_of(config.task) for package in part.packages]
    return {
        "problems_sha256": problems_sha256(*problem_sets),
        "model_sha256": model_fingerprint(config.model),
        "template_sha256": template and sha256_of(Path(template)),
        "rewards_sha256": _sums(_rewards(config.task)),
        "environment_sha256": _sums(config.environment.code) or None,
        "objective_sha256": sums.get("objective.path"),
        "advantage_sha256": sums.get("advantage.path"),
        _SUITES: _suites(config),
        "code_sha256": code_sha256(_PACKAGE),
        **{name: metadata.version(name) for name in packages},
        "threads": torch.get_num_threads(),
        "arithmetic": arithmetic(),
    }


def problems_sha256(*problem_sets: Sequence[Problem]) -> str:
    """Return a hash of the problems, in their order."""
    problems = hashlib.sha256()
    for problem in (problem for problems in problem_sets for problem in problems):
        content = [problem.id, problem.prompt, problem.reference, problem.columns]
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
    """Return name -> hash of its files, for code named as "file.py:name" or "module:name".

    A file that it imports is not covered: what a file's imports load is only known by running it.
    """
    files = {one.rpartition(":")[0]: files_of_code(one) for one in sorted(code)}
    sums = {name: [sha256_of(file) for file in found] for name, found in files.items()}
    return {name: " ".join(each) for name, each in sums.items() if each}


def _suites(config: RunConfig) -> dict[str, str]:
    """Return file -> hash of what decides the numbers of evaluation.suites: suites, data, judges.

    A data set on the hub has no file. Raises UsageError if a suite cannot be read.
    """
    files: dict[str, Path] = {}
    for use in config.evaluation.suites:
        for suite in suites_named(use):
            task, template = suite.options.task, suite.options.prompt.chat_template
            code = [file for one in _rewards(task) for file in files_of_code(one)]
            places = [suite.file, Path(use.data or task.data), *code]
            places += [Path(template)] if template else []
            files |= {str(place) if use.file else place.name: place for place in places}
    return {name: sha256_of(file) for name, file in files.items() if file.is_file()}


def judge_fingerprint(config: RunConfig, problems: Sequence[Problem]) -> str:
    """Return a hash of all that decides a score: rewards, limits, files, references, truncation."""
    task = config.task
    judge = {
        **_judging(task),
        "workers": config.workers.model_dump(mode="json") | {"count": None},
        "files": sorted(_sums(_rewards(task)).values()),
        "truncated": config.rewards.truncated,
        "overlong": [config.rewards.overlong_buffer, config.rollouts.max_new_tokens],
        "references": [[problem.id, problem.reference, problem.columns] for problem in problems],
    }
    if isinstance(task, MixtureOptions):
        judge["sources"] = {source.source: _judging(source) for source in task.sources}
    return hashlib.sha256(json.dumps(judge, sort_keys=True, default=str).encode()).hexdigest()


def _judging(task: NamedOptions) -> dict[str, Any]:
    """Return the options of `task` that decide a score."""
    options = task.model_dump(mode="json")
    return {"task": options["name"], "rewards": options.get("rewards")}
