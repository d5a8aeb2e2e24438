"""`mugrpo publish`: a run's model, and its rollouts, on the Hugging Face Hub.

What is sent is collected first, as names with files or contents. A dry run writes exactly that into
a folder. Of a checkpoint only weights, configs and the tokenizer are taken, never code or logs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import DatasetCard

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.config.toml import is_absolute
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import SUMS, publish_folder, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.seal import require_metrics
from mugrpo.extensions.exchange.exporting import export_rollouts
from mugrpo.processes.stopping import StopFlag
from mugrpo.report.read import RunData, lines_by_kind
from mugrpo.run.opening import run_as_it_is
from mugrpo.run.progress import Progress
from mugrpo.run.trust import require_known
from mugrpo.run.weights import NOT_THE_MODEL
from mugrpo.tools.card import CURVE, Subject, hub_base, learning_curve, model_card
from mugrpo.tools.merge import merge
from mugrpo.tools.repository import STAMP, Files, look, require_name, send

_SENT = re.compile(r"(additional_chat_templates/)?[\w.-]+\.(json|safetensors|jinja|txt|model)")
_FOLDER = re.compile(r"[\\/]*[^\\/]+[\\/]+[^\\/]")
_BASE = "base_model_name_or_path"


@dataclass(frozen=True)
class Publication:
    """What is to be published of the run at `root`, and how."""

    root: Path
    name: str  # OWNER/NAME of the model's repository
    update: int | None = None  # the newest checkpoint if None
    merged: bool = False  # the whole model instead of the adapter
    base_model: str | None = None  # hub id of the model before the first update
    license: str | None = None
    rollouts: str | None = None  # OWNER/NAME of the rollouts' repository, if they are published
    public: bool = False
    replace: bool = False  # what a repository holds of something else
    trust: bool = False


def publish(
    wanted: Publication,
    dry_run: Path | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    stop: StopFlag | None = None,
) -> None:
    """Send the model and the rollouts to the Hub, or write both to the folder `dry_run`.

    Raises UsageError if the run has no such checkpoint, if it names what the user
    has neither used nor approved, and as `merge`, `run_as_it_is` and `look` do; RunStopped if a
    file of the run is damaged, or if the Hub cannot be reached.
    """
    stop = stop or StopFlag()
    names = {"model": wanted.name} | ({"dataset": wanted.rollouts} if wanted.rollouts else {})
    for name in filter(None, [*names.values(), wanted.base_model]):
        require_name(name)
    run, stored, config, update = _verified(wanted, say)
    identity, how = stored.get("id"), {"public": wanted.public, "replace": wanted.replace}
    places = {k: look(k, n, identity, **how) for k, n in names.items()} if not dry_run else {}
    with TemporaryDirectory(prefix="mugrpo-publish-") as scratch, _in_place(run.checkpoint(update)):
        parts: dict[str, Files] = {}
        if wanted.rollouts:
            parts["dataset"] = _rollouts(
                wanted, run, config, update, Path(scratch) / "rollouts", stop
            )
        parts["model"] = _model(wanted, run, stored, config, update, Path(scratch) / "model", say)
        for kind, files in parts.items():
            stamp = {"mugrpo": version("mugrpo"), "run": identity, "update": update}
            text = json.dumps({**stamp, "files": sorted([*files, STAMP])}, indent=1) + "\n"
            parts[kind] = {**files, STAMP: text.encode()}
        if dry_run:
            _write(parts, dry_run)
            say(f"{dry_run} has what would be sent: {', '.join(sorted(parts))}")
        for kind in parts if not dry_run else ():  # the data first: the model's card links to it
            stop.check()
            title = f"{'Rollouts' if kind == 'dataset' else 'Model'} after update {update}"
            say(send(places[kind], parts[kind], title, public=wanted.public))


def _verified(
    wanted: Publication, say: Callable[[str], None]
) -> tuple[RunDir, dict[str, Any], RunConfig, int]:
    """Return the run with its config.json, config and update, after checking what will be sent."""
    run = RunDir(wanted.root)
    stored = run.read_config()
    if stored is None:
        raise UsageError(f"{run.root} is not a run; name a run's directory")
    config = build_config(stored["config"] | run.read_private(), str(run.config))
    require_known(stored, config, run.root, say, trust=wanted.trust)
    require_metrics(run)
    updates = run.checkpoint_updates()
    update = max(updates, default=0) if wanted.update is None else wanted.update
    if update not in updates:
        raise UsageError(
            f"update {update} has no checkpoint; choose one of {updates}"
            if updates
            else f"{run.root} has no checkpoint yet; train it first with `mugrpo train {run.root}`"
        )
    with _in_place(checkpoint := run.checkpoint(update)):
        if fault := sealed_folder_fault(checkpoint):
            raise RunStopped(f"{checkpoint} {fault}; `mugrpo repair {run.root}` sets it aside")
    if wanted.merged and not config.lora.rank:
        raise UsageError("--merged is for runs with lora.rank; leave it out")
    return run, stored, config, update


def _model(
    wanted: Publication,
    run: RunDir,
    stored: dict[str, Any],
    config: RunConfig,
    update: int,
    scratch: Path,
    say: Callable[[str], None],
) -> Files:
    """Return the model's files, its card and its learning curve."""
    source = run.checkpoint(update)
    names = list(json.loads((source / SUMS).read_bytes()))  # what was verified, and nothing beside
    if wanted.merged:
        source = _merged(source, scratch, say)
        names = [path.relative_to(source).as_posix() for path in source.rglob("*")]
    base = wanted.base_model or hub_base(config)
    files: dict[str, Path | bytes] = {}
    for name in sorted(names):
        if _SENT.fullmatch(name) and not name.startswith(NOT_THE_MODEL):
            path = source / name
            files[name] = _without_paths(path, base) if name.endswith("config.json") else path
    lines = lines_by_kind(run, [])
    data = RunData(
        name="",
        config=stored["config"],
        provenance=stored["provenance"],
        refreshes=[line for line in lines["refresh"] if line["update"] < update],
        updates=[line for line in lines["update"] if line["update"] <= update],
        evaluations=[line for line in lines["evaluation"] if line["update"] <= update],
    )
    adapter = bool(config.lora.rank) and not wanted.merged
    curve = learning_curve(data)
    named = (wanted.license, wanted.rollouts)
    subject = Subject(config, data, update, wanted.name, adapter, base, *named, curve)
    files["README.md"] = model_card(subject).encode()
    return {**files, CURVE: curve} if curve else files


def _merged(checkpoint: Path, target: Path, say: Callable[[str], None]) -> Path:
    try:
        return merge(checkpoint, target, say=say)
    except UsageError as error:  # what it advises are options that mean something else here
        reason = str(error).partition("; ")[0]
        raise UsageError(f"{reason}; make it with `mugrpo merge`, or publish the adapter") from None


@contextmanager
def _in_place(checkpoint: Path) -> Iterator[None]:
    """Explain the failures that come of a run that removes its checkpoints meanwhile."""
    try:
        yield
    except Exception:
        if checkpoint.is_dir():
            raise
        reason = f"the run has removed {checkpoint} meanwhile; publish again"
        raise RunStopped(reason) from None


def _without_paths(file: Path, base: str | None) -> bytes:
    """Return a config without the places on this machine that libraries write into it."""
    config = json.loads(file.read_bytes())
    kept = _kept(config)
    if _BASE in config:
        kept[_BASE] = base
    return json.dumps(kept, indent=2).encode() + b"\n"


def _kept(value: Any) -> Any:
    """Return `value` without the places in its dicts and lists."""
    if isinstance(value, dict):
        return {key: _kept(entry) for key, entry in value.items() if not _is_place(entry)}
    if isinstance(value, list):
        return [_kept(entry) for entry in value if not _is_place(entry)]
    return value


def _is_place(value: Any) -> bool:
    """Return whether `value` is a path with a folder in it: "/" and "/think" may be tokens."""
    if not isinstance(value, str):
        return False
    return value.startswith("~/") or (is_absolute(value) and bool(_FOLDER.match(value)))


def _rollouts(
    wanted: Publication, run: RunDir, config: RunConfig, update: int, folder: Path, stop: StopFlag
) -> Files:
    """Return the files of the data set: the rollouts sampled before `update`. Uses `folder`."""
    assert wanted.rollouts
    with run_as_it_is(run, config, Progress(), stop) as opened:
        export_rollouts(
            opened,
            folder,
            called=wanted.rollouts,
            model=wanted.base_model,
            before=update,
            reasons=False,
        )
    card = DatasetCard((folder / "README.md").read_text())
    if wanted.license:
        card.data["license"] = wanted.license
    paths = {
        path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.parquet"))
    }
    return {**paths, "README.md": str(card).encode()}


def _write(parts: dict[str, Files], target: Path) -> None:
    """Write what would be sent to a new folder. Raises UsageError if there is one already."""
    if target.exists():
        raise UsageError(f"{target} exists already; name a new folder")
    with publish_folder(target, replace=False) as folder:
        for kind, files in parts.items():
            for name, source in files.items():
                path = folder / kind / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(source, bytes):
                    path.write_bytes(source)
                else:
                    shutil.copyfile(source, path)
