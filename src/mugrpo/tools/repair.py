"""Check everything that a run has written, restore what can be restored, set the rest aside.

A number that was changed never becomes the truth: what is not as a checkpoint sealed it is restored
from the seal, or set aside, and made again by the next command.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import encoded, read_metrics
from mugrpo.disk.publishing import (
    publish_file,
    publish_json,
    read_summed,
    sealed_folder_fault,
    set_aside,
)
from mugrpo.disk.run_dir import RunDir, refuse_links_out
from mugrpo.disk.seal import confirmed, overruled, require_metrics, unsealed_lines
from mugrpo.disk.shards import ShardSet
from mugrpo.rollouts.statistics import contradicted

Say = Callable[[str], None]
_LOOSE = ("samples/*.json", "nonfinite/*.json")


def repair(run_dir: RunDir, say: Say) -> int:
    """Restore or set aside what is damaged, for `train` to make it again. Return how much was.

    A checkpoint restores config.json, and tells which lines of metrics.jsonl are kept. A damaged
    file gets the ending `.bad`, and a damaged shard is removed from its manifest. If a rollout
    shard that is made again differs from the old one, it is also scored again. Raises UsageError if
    the folder is no run, or if its config.json is lost.
    """
    if not (run_dir.config.exists() or run_dir.checkpoint_updates()):
        raise UsageError(f"{run_dir.root} is not a run; name a run's directory")
    refuse_links_out(run_dir.root)
    with run_dir.locked() as notices:
        for notice in notices:
            say(notice)
        bad = _bad_checkpoints(run_dir, say)  # first: those that are left tell of the rest
        bad += _bad_config(run_dir, say)
        for pattern in _LOOSE:
            bad += sum(_bad_file(file, say) for file in sorted(run_dir.root.glob(pattern)))
        for stage in run_dir.stages():
            manifests = sorted(run_dir.stage(stage).glob("*/manifest.json"))
            bad += sum(_bad_shards(manifest.parent, say) for manifest in manifests)
        return bad + _bad_evaluations(run_dir, say) + _bad_metrics(run_dir, say)


def _bad_checkpoints(run_dir: RunDir, say: Say) -> int:
    """Set the damaged checkpoints aside. Return how many."""
    bad, newest = 0, max(run_dir.checkpoint_updates(), default=0)
    for update in run_dir.checkpoint_updates():
        folder = run_dir.checkpoint(update)
        if fault := sealed_folder_fault(folder):
            set_aside(folder)
            after = "an earlier one will be used" if update == newest else "a later one is used"
            say(f"{folder} {fault}; {after}")
            bad += 1
    return bad


def _bad_config(run_dir: RunDir, say: Say) -> int:
    """Restore a config.json that is not as the newest checkpoint knows it from there.

    Raises UsageError if no checkpoint has a copy.
    """
    try:
        run_dir.read_config()
    except RunStopped as error:
        for update in reversed(run_dir.checkpoint_updates()):
            if kept := run_dir.sealed_config(update):
                set_aside(run_dir.config, copy=True)
                publish_json(run_dir.config, kept)
                fault = f"{error}".partition(";")[0]
                say(f"{fault}; it is restored from {run_dir.checkpoint(update)}")
                return 1
        raise UsageError(
            f"{error.args[0].partition(';')[0]}, and no checkpoint has a copy of it; begin the run "
            "again in a new --run-dir"
        ) from None
    return 0


def _bad_file(file: Path, say: Say) -> int:
    """Set a small file aside if it is damaged. Return 1 if it is."""
    try:
        read_summed(file)
    except RunStopped as error:
        set_aside(file)
        say(f"{error}".partition(";")[0] + "; the run goes on without it")
        return 1
    return 0


def _bad_shards(folder: Path, say: Say) -> int:
    """Set the damaged shards of `folder` aside, or its manifest. Return how many."""
    try:
        shards = ShardSet(folder, folder.name)
    except (RunStopped, UsageError) as error:
        set_aside(folder / "manifest.json")
        say(f"{error}".partition(";")[0] + "; it is set aside, and its shards are made again")
        return 1
    bad = 0
    for shard in shards.numbers():
        if fault := shards.fault(shard):
            path = shards.path(shard)
            shards.forget(shard)
            set_aside(path)
            say(f"{path} {fault}; it will be made again")
            bad += 1
    return bad


def _bad_evaluations(run_dir: RunDir, say: Say) -> int:
    """Set the damaged evaluations aside. Return how many."""
    bad = 0
    for folder in run_dir.evaluation_folders():
        if fault := _evaluation_fault(folder):
            set_aside(folder)
            say(f"{folder} {fault}; `mugrpo evaluate` makes it again")
            bad += 1
    return bad


def _evaluation_fault(folder: Path) -> str | None:
    """Return what is wrong with an evaluation, or None."""
    try:
        sets = [ShardSet(folder / kind, kind) for kind in ("rollouts", "scores")]
    except (RunStopped, UsageError) as error:
        return f"has a bad list ({error})"
    for shards in sets:
        if not shards.numbers():
            return f"has no {shards.kind}"
        for shard in shards.numbers():
            if fault := shards.fault(shard):
                return f"has a {shards.path(shard).name} that {fault}"
    return None


def _bad_metrics(run_dir: RunDir, say: Say) -> int:
    """Keep the lines of metrics.jsonl that a checkpoint and evaluations confirm, if one is wrong.

    Lines after the newest checkpoint that are well-formed may stay: a resumed run makes them again.
    Return 1 if others had to go.
    """
    path = run_dir.metrics
    try:
        require_metrics(run_dir)
        lines, tail = list(read_metrics(path)), unsealed_lines(run_dir)
        wrong = set(contradicted(run_dir, tail))
    except RunStopped as error:
        return _cut(run_dir, f"{error}".partition(";")[0], say)
    if not wrong:
        return 0
    del lines[len(lines) - len(tail) :]
    lines += [line for line in tail if line["kind"] != "evaluation" or line["update"] not in wrong]
    _replace(path, encoded(lines))
    say(
        f"{path} has evaluations that are not what their shards say, of updates {sorted(wrong)}; "
        "their lines are dropped, and `mugrpo evaluate` makes them again"
    )
    return 1


def _cut(run_dir: RunDir, fault: str, say: Say) -> int:
    """Keep the beginning of metrics.jsonl that a checkpoint confirms. Return 1."""
    kept = confirmed(run_dir)
    ending = overruled(run_dir, kept)
    _replace(run_dir.metrics, kept + (encoded([ending]) if ending["replaces"] else b""))
    lines = [line for line in read_metrics(run_dir.metrics) if line["kind"] == "update"]
    made = max(run_dir.checkpoint_updates(), default=0)
    lines_kept = kept.count(b"\n")
    lost = made - len({line["update"] for line in lines})
    say(
        f"{fault}; its first {lines_kept} lines are confirmed and kept, and those of "
        f"{lost} of {made} updates are lost: reports lack them, but no weights need them. `mugrpo "
        "score` and `mugrpo evaluate` compute those of refreshes and evaluations again"
    )
    return 1


def _replace(path: Path, data: bytes) -> None:
    set_aside(path, copy=True)
    with publish_file(path) as file:
        file.write(data)
