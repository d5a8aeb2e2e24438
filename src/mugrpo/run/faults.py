"""What is wrong with a run's files: one check for `train`, `repair`, `report` and `card`.

Each file and each line has a checksum of its own, which finds accidents. Lines of updates come once
each, without a gap. The number of an evaluation is in its line and follows from its shards, so
either tells of damage to the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path

from mugrpo.config.base import imported, installed
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.metrics import EVALUATION, History, Line, counting, number, surveyed
from mugrpo.disk.publishing import read_checked, sealed_folder_fault
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.rollouts.evaluation import evaluated

_ROUNDING = 1e-9
_LOOSE = ("samples/*.json", "nonfinite/*.json", "stages/*/policy.json")
_REMEDIES = {  # what `repair` does
    "checkpoint": "sets it aside, and another one is used",
    "config": "restores it from a checkpoint",
    "sample": "sets it aside",
    "entry": "sets it aside, and its shard is made again",
    "shard": "sets it aside to have it made again",
    "metrics": "keeps the lines that are right, and says which are lost",
    "evaluation": "sets it aside with its line in metrics.jsonl, to have both made again",
    "line": "drops the line, to have it made again",
}


@dataclass(frozen=True)
class Fault:
    """Something wrong at `path`: what `text` says. `repair` mends it by its `kind`."""

    kind: str
    path: Path
    text: str
    line: tuple[str, int] | None = None  # kind and update of the metrics line that falls with it

    def sentence(self, run_dir: RunDir) -> str:
        """Return what is wrong, and the remedy."""
        return f"{self.text}; `mugrpo repair {run_dir.root}` {_REMEDIES[self.kind]}"


def faults(
    run_dir: RunDir,
    *,
    contents: bool = True,
    older: bool = False,
    history: History | None = None,
) -> Iterator[Fault]:
    """Yield what is wrong with a run's files, each after those on which it depends.

    A fault may be mended before the next one is asked for. Without `contents`, shards and
    checkpoints are not read, as whoever uses them checks them, but for the last evaluation's. The
    contents of checkpoints before the newest are read if `older`. `history` is what `surveyed` has
    found in metrics.jsonl.
    """
    updates = run_dir.checkpoint_updates() if contents else []
    for update in updates if older else updates[-1:]:
        if fault := sealed_folder_fault(folder := run_dir.checkpoint(update)):
            yield Fault("checkpoint", folder, f"{folder} {fault}")
    try:
        run_dir.read_config()
    except RunStopped as error:
        yield Fault("config", run_dir.config, _without_remedy(error))
    for pattern in _LOOSE if contents else ():
        for file in sorted(run_dir.root.glob(pattern)):
            try:
                read_checked(file)
            except RunStopped as error:
                yield Fault("sample", file, _without_remedy(error))
    for stage in run_dir.stages() if contents else ():
        for folder in sorted(path for path in run_dir.stage(stage).glob("*") if path.is_dir()):
            yield from _of_shards(ShardSet(folder, folder.name))
    history = history or surveyed(run_dir.metrics)
    if fault := _of_metrics(run_dir, history):
        yield Fault("metrics", run_dir.metrics, fault)
        history = surveyed(run_dir.metrics)
    yield from _of_evaluations(run_dir, history, contents)


def _without_remedy(error: Exception) -> str:
    return f"{error}".partition(";")[0]


def _of_shards(shards: ShardSet) -> Iterator[Fault]:
    """Yield what is wrong with a stage's shards of one kind."""
    for shard in shards.numbers():
        try:
            fault = shards.fault(shard)
        except (RunStopped, UsageError) as error:
            yield Fault("entry", shards.entry_path(shard), _without_remedy(error))
            continue
        if fault:
            yield Fault("shard", shards.path(shard), f"{shards.path(shard)} {fault}")


def _of_metrics(run_dir: RunDir, history: History) -> str | None:
    """Return what is wrong with the lines of metrics.jsonl, or None."""
    if history.fault:
        more = f" ({history.wrong - 1:,} more lines are wrong)" if history.wrong > 1 else ""
        return f"{history.fault}{more}"
    newest = max(run_dir.checkpoint_updates(), default=0)
    if history.made < newest:
        return (
            f"{run_dir.metrics} has no line of update {history.made + 1:,}, but there is "
            f"{run_dir.checkpoint(newest)}"
        )
    return None


def _of_evaluations(run_dir: RunDir, history: History, contents: bool) -> Iterator[Fault]:
    """Yield what is wrong with evaluations and suites, and where lines contradict them."""
    bad = set[tuple[str, int]]()
    for folder in run_dir.evaluation_folders() if contents else ():
        if fault := _evaluation_fault(folder):
            bad.add(of := (EVALUATION, int(folder.name[7:])))
            yield Fault("evaluation", folder, f"{folder} {fault}", of)
    witnesses = [place for one in installed().values() for place in one.witnesses]
    for line in counting(run_dir.metrics, history) if contents else history.newest.values():
        if (line["kind"], line["update"]) not in bad:
            places = [_of_line, *map(imported, witnesses)]
            yield from filter(None, (place(run_dir, line) for place in places))


def _evaluation_fault(folder: Path) -> str | None:
    """Return what is wrong with the shards of an evaluation, or None."""
    for shards in (ShardSet(folder / kind, kind) for kind in ("rollouts", "scores")):
        if not shards.numbers():
            return f"has no {shards.kind}"
        if fault := next(_of_shards(shards), None):
            return f"is damaged: {fault.text}"
    return None


def _of_line(run_dir: RunDir, line: Line) -> Fault | None:
    """Return why an evaluation's line and its shards cannot both be right, or None.

    An evaluation without a folder has its line alone.
    """
    update = line["update"]
    if line["kind"] != EVALUATION or not (folder := run_dir.evaluation(update)).is_dir():
        return None
    try:
        told = evaluated(folder)
    except (RunStopped, UsageError) as error:
        return Fault("evaluation", folder, _without_remedy(error), (EVALUATION, update))
    if agrees(line, told):
        return None
    text = f"{run_dir.metrics} has another evaluation of update {update:,} than {folder}"
    return Fault("line", run_dir.metrics, text, (EVALUATION, update))


def agrees(line: Line, told: Line) -> bool:
    """Return whether a line has the numbers that something else has told, up to rounding.

    Another machine or version may round otherwise, and know other numbers.
    """
    pairs = [(number(line, key), number(told, key)) for key in line.keys() & told.keys()]
    return all(
        a == b if a is None or b is None else isclose(a, b, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
        for a, b in pairs
    )
