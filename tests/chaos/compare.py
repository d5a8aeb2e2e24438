"""What two finished runs must have in common to the bit."""

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path

from mugrpo.disk.run_dir import RunDir
from mugrpo.run.faults import faults
from tests.runs import read_metrics

# Logs, what engines and ranks were handed; tables, pages, plans and results of suites with seconds;
# config.json has the threads and paths of the process that wrote it; suite.json the checksum of a
# checkpoint's checksums. The lines of the metrics have what suites measured.
_APART = re.compile(
    r"(^|/)(logs|ranks|handover)/"
    r"|(^|/)(config\.json|plan\.json|suite\.json|result\.json|lock|table\.md|\w+\.html)$"
)
_METRICS = "metrics.jsonl"
_ENTRY = re.compile(r"shard-\d+\.json")  # it has seconds
_CHECKPOINT = re.compile(r"(^|/)checkpoints/update-(\d+)/")
_SEALED = ("sha256.json", "stages.json")  # a checkpoint may be temporary in one run only


def contents(root: Path, *, in_order: bool = True, without: Collection[str] = ()) -> dict[str, str]:
    """Return the checksum of every file of a run that counts, and the lines of its metrics.

    The metrics `without` do not count. `in_order` says whether the order of the metrics' lines
    counts. Without it, neither does the reward of a stage's rollouts, which updates do not know yet
    if the stage is still generated.
    """
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if path.name == _METRICS:
            lines = [
                {key: value for key, value in line.items() if key not in without}
                for line in read_metrics(path.parent)
            ]
            if not in_order:
                for line in lines:
                    line.pop("behavior_reward", None)
                lines.sort(key=lambda line: (line["kind"], line["update"]))
            for number, line in enumerate(lines):
                found[f"{name}, line {number}"] = json.dumps(line)
        elif not (_APART.search(name) or _ENTRY.fullmatch(path.name) or path.name in _SEALED):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def differences(
    root: Path, reference: Path, *, in_order: bool = True, without: Collection[str] = ()
) -> list[str]:
    """Return how the run at `root` differs from the uninterrupted one.

    A run may have kept other checkpoints on the way, for example because it was asked to stop. The
    last one must be there, and all those that both runs have are compared.
    """
    ours, theirs = (
        contents(folder, in_order=in_order, without=without) for folder in (root, reference)
    )
    last = max((update for name in theirs if (update := _update(name)) is not None), default=0)
    differing = []
    for name in sorted(ours.keys() | theirs.keys()):
        actual, expected = ours.get(name), theirs.get(name)
        on_the_way = (update := _update(name)) is not None and update < last
        if actual != expected and not (on_the_way and None in (actual, expected)):
            what = "missing" if actual is None else "left over" if expected is None else "other"
            is_line = ", line " in name and actual and expected
            differing.append(f"{what}: {name}{f': {actual}, not {expected}' if is_line else ''}")
    return differing


def own_faults(root: Path) -> list[str]:
    """Return what is wrong with the run's files by the checks of the run itself."""
    return [fault.text for fault in faults(RunDir(root))]


def _update(name: str) -> int | None:
    """Return the update of the checkpoint that a file belongs to, or None."""
    match = _CHECKPOINT.search(name)
    return int(match[2]) if match else None
