"""Check everything that a run has written, restore what can be restored, set the rest aside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.journal_lines import marks_in
from mugrpo.disk.links import refuse_links_out
from mugrpo.disk.metrics import confirmed_lines, write_metrics
from mugrpo.disk.publishing import (
    keep_copy,
    publish_json,
    rename_aside,
    sealed_folder_fault,
    set_aside,
)
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet

Say = Callable[[str], None]


def repair(run_dir: RunDir, say: Say) -> int:
    """Restore or set aside what is damaged, for `train` to make it again. Return how much was.

    The journal restores config.json and the manifests of stages. If it is lost too, a checkpoint
    restores config.json. A damaged file gets the ending
    `.bad`, and a damaged shard is removed from its manifest. If a rollout shard that is made again
    differs from the old one, it is also scored again. Files that nothing lists are reported and
    left alone. Raises UsageError if the folder is no run, or if its config.json is lost.
    """
    known = any(map(os.path.lexists, (run_dir.config, run_dir.journal.path)))
    if not (known or run_dir.checkpoint_updates()):
        raise UsageError(f"{run_dir.root} is not a run; name a run's directory")
    refuse_links_out(run_dir.root)
    with run_dir.locked() as notices:
        for notice in notices:
            say(notice)
        bad = _mend_recorded(run_dir, say)
        run_dir.read_config()
        bad += sum(_bad_shards(folder, kind, say) for folder, kind in run_dir.shard_folders())
        return bad + _bad_checkpoints(run_dir, say) + _bad_evaluations(run_dir, say)


def _mend_recorded(run_dir: RunDir, say: Say) -> int:
    """Mend the journal, and the files that are not as it says. Return how many were damaged."""
    journal, bad = run_dir.journal, 0
    try:
        if not journal.exists():
            bad = _restore_config(run_dir, say)
            run_dir.read_config()  # raises unless the run is older than journals
            return bad + _mend_metrics(run_dir, "", say)
        entries, faults = journal.entries(), journal.faults()
    except RunStopped as error:
        bad = bad or _restore_config(run_dir, say)
        bad += _mend_metrics(run_dir, "", say)
        if journal.exists():
            rename_aside(journal.path)
        journal.begin()
        say(f"{error}. This is done, but what was changed before cannot be told")
        return bad + 1
    bad = _mend_metrics(run_dir, faults.pop(run_dir.metrics.name, ""), say)
    for name, fault in sorted(faults.items()):
        path, last = run_dir.root / name, entries[name].last
        if name.startswith(("checkpoints/", "evaluations/")):
            set_aside(run_dir.root.joinpath(*Path(name).parts[:2]))
            outcome = "what it belongs to is set aside"
        elif last and last.can_be_restored():
            keep_copy(path)
            for folder in [p for p in path.parents if p.is_file()]:
                rename_aside(folder)
            publish_json(path, last.content)
            outcome = "it is restored"
        else:
            set_aside(path)
            outcome = "the run goes on without it"
        say(f"{path} {fault}; {outcome}")
    return bad + len(faults)


def _restore_config(run_dir: RunDir, say: Say) -> int:
    """Restore a config.json that cannot be read from a checkpoint, as the journal is lost too."""
    if isinstance(run_dir.config_as_stored(), dict):
        return 0
    for update in reversed(run_dir.checkpoint_updates()):
        folder = run_dir.checkpoint(update)
        if not sealed_folder_fault(folder) and (kept := run_dir.config_kept(update)):
            keep_copy(run_dir.config)
            publish_json(run_dir.config, kept)
            say(f"{run_dir.config} cannot be read; it is restored from {folder}")
            return 1
    return 0


def _mend_metrics(run_dir: RunDir, fault: str, say: Say) -> int:
    """Keep the lines of metrics.jsonl that a checkpoint or the journal confirms.

    Nothing else tells a number from a false one. Return 1 if the file has a `fault`: lines that a
    killed run appended after its last checkpoint are none.
    """
    path, journal = run_dir.metrics, run_dir.journal
    marks = journal.marks(path.name)
    for folder in map(run_dir.checkpoint, run_dir.checkpoint_updates()):
        marks += [] if sealed_folder_fault(folder) else marks_in(folder)
    lines, unreadable, others = confirmed_lines(path, marks)
    fault = fault or ("has lines that cannot be read" if unreadable else "")
    if not fault and not others:
        return 0
    keep_copy(path)
    write_metrics(path, lines)
    made = max(run_dir.checkpoint_updates(), default=0)
    kept = {line["update"] for line in lines if line["kind"] == "update"}
    lost = made - len(kept & set(range(1, made + 1)))
    say(
        f"{path} {fault or 'has lines that no checkpoint confirms'}; its first {len(lines)} lines "
        f"are confirmed and kept, {others} others are dropped, and those of {lost} of {made} "
        "updates are lost: reports lack them, but no weights need them. `mugrpo score` and `mugrpo "
        "evaluate` compute those of refreshes and evaluations again"
    )
    return 1 if fault else 0


def _bad_shards(folder: Path, kind: str, say: Say) -> int:
    """Set the damaged shards of `folder` aside, or its manifest. Return how many."""
    try:
        shards = ShardSet(folder, kind)
    except (RunStopped, UsageError) as error:
        set_aside(folder / "manifest.json")
        say(f"{error}. It is set aside, so that its shards are made again")
        return 1
    for stranger in shards.strangers():
        say(f"{stranger} is not in its manifest, so it is ignored")
    bad = 0
    for shard in shards.numbers():
        if fault := shards.fault(shard):
            path = shards.path(shard)
            shards.forget(shard)
            set_aside(path)
            say(f"{path} {fault}; it will be made again")
            bad += 1
    return bad


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
        for shard in shards.numbers():
            if fault := shards.fault(shard):
                return f"has a {shards.path(shard).name} that {fault}"
    return None
