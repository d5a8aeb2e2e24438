"""Mend what `run.faults` finds: restore what can be restored, set the rest aside.

A damaged number never becomes the truth: it is set aside, or its line dropped, and made again by
the command that is named.
"""

from collections.abc import Callable
from functools import partial

from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import REPAIR, UPDATE, counting, rewrite, surveyed
from mugrpo.disk.publishing import publish_json, set_aside
from mugrpo.disk.run_dir import RunDir, refuse_links_out
from mugrpo.disk.shards import ShardSet
from mugrpo.run.faults import Fault, faults

Say = Callable[[str], None]


def repair(run_dir: RunDir, say: Say) -> int:
    """Restore or set aside what is damaged, for `train` to make it again. Return how much was.

    A checkpoint restores config.json. Of metrics.jsonl, the lines that are right are kept. A
    damaged file gets the ending `.bad`, and a damaged shard loses its entry. If a
    rollout shard that is made again differs from the old one, it is also scored again. Raises
    UsageError if the folder is no run, or if its config.json is lost.
    """
    if not (run_dir.config.exists() or run_dir.checkpoint_updates()):
        raise UsageError(f"{run_dir.root} is not a run; name a run's directory")
    refuse_links_out(run_dir.root)
    with run_dir.locked() as notices:
        for notice in notices:
            say(notice)
        bad, dropped = 0, set[tuple[str, int]]()
        for fault in faults(run_dir, older=True):
            say(f"{fault.text}; {_MEND[fault.kind](run_dir, fault)}")
            bad += 1
            dropped |= {fault.line} if fault.line else set()
        if dropped:
            _keep_right_lines(run_dir, dropped)
        return bad


def _checkpoint(run_dir: RunDir, fault: Fault) -> str:
    later = max(run_dir.checkpoint_updates()) > int(fault.path.name[7:])
    set_aside(fault.path)
    return "a later one is used" if later else "an earlier one will be used"


def _config(run_dir: RunDir, fault: Fault) -> str:
    """Restore config.json from the newest checkpoint that has it. Raises UsageError if none has."""
    for update in reversed(run_dir.checkpoint_updates()):
        if kept := run_dir.config_at(update):
            set_aside(run_dir.config, copy=True)
            publish_json(run_dir.config, kept)
            return f"it is restored from {run_dir.checkpoint(update)}"
    raise UsageError(
        f"{fault.text}, and no checkpoint has a copy of it; begin the run again in a new --run-dir"
    )


def _set_aside(then: str, _: RunDir, fault: Fault) -> str:
    set_aside(fault.path)
    return then


def _shard(_: RunDir, fault: Fault) -> str:
    ShardSet(fault.path.parent, fault.path.parent.name).forget(int(fault.path.stem[6:]))
    set_aside(fault.path)
    return "it will be made again"


def _metrics(run_dir: RunDir, _: Fault) -> str:
    """Keep the right lines up to the newest checkpoint; `train` makes later ones again."""
    before = surveyed(run_dir.metrics).lines
    _keep_right_lines(run_dir)
    after = surveyed(run_dir.metrics)
    made, kept = max(run_dir.checkpoint_updates(), default=0), after.lines
    lines = counting(run_dir.metrics, after, (UPDATE, REPAIR))
    kinds = [line["kind"] == REPAIR for line in lines]
    told, gaps = kinds.count(False), kinds.count(True)
    return (
        f"{kept - gaps:,} of {before:,} lines are right and kept, and those of {made - told:,} of "
        f"{made:,} updates are lost: reports lack them, but no weights need them. `mugrpo train` "
        "and `mugrpo evaluate` make those of refreshes and evaluations again"
    )


def _evaluation(run_dir: RunDir, fault: Fault) -> str:
    set_aside(fault.path)
    return f"it is set aside. {_dropped(run_dir, fault)}"


def _dropped(run_dir: RunDir, fault: Fault) -> str:
    """Say that a line is dropped, and what makes it again."""
    assert fault.line is not None
    kind, update = fault.line
    told = f"The line of kind {kind} and update {update:,} is dropped"
    if update in (0, *run_dir.checkpoint_updates()):
        return f"{told}; `mugrpo evaluate {run_dir.root} --update {update}` makes it again"
    return f"{told}, and lost: the checkpoint is gone"


def _keep_right_lines(run_dir: RunDir, without: set[tuple[str, int]] | None = None) -> None:
    set_aside(run_dir.metrics, copy=True)
    rewrite(run_dir.metrics, max(run_dir.checkpoint_updates(), default=0), without or ())


_MEND: dict[str, Callable[[RunDir, Fault], str]] = {
    "checkpoint": _checkpoint,
    "config": _config,
    "sample": partial(_set_aside, "the run goes on without it"),
    "entry": partial(_set_aside, "it is set aside, and its shard is made again"),
    "shard": _shard,
    "metrics": _metrics,
    "evaluation": _evaluation,
    "line": _dropped,
}
