"""The evaluation before training, which cells of a study share.

Cells that differ only in how they train begin with the same policy, and all evaluations draw the
same random numbers. So what the first such cell has measured before training is, to the bit, what
the others would.

    WORK/starts/KEY/line.json      the line of metrics
    WORK/starts/KEY/evaluation/    its rollouts and scores, with their checksums
    WORK/starts/KEY/samples.json   those that people read
"""

import hashlib
import json
import shutil
from pathlib import Path

from mugrpo.config.run import METHOD
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.metrics import EVALUATION, read_metrics
from mugrpo.disk.publishing import publish_folder, publish_json, read_checked, with_checksum
from mugrpo.disk.run_dir import RunDir
from mugrpo.rollouts.evaluation import evaluated
from mugrpo.run.opening import OpenRun

# What an evaluation before training does not depend on.
_TRAINING = (*METHOD, "preset", "schedule", "optimizer", "distributed", "overlap", "checkpoint")
_SHOWING = ("sinks",)
_METHODS_FILES = ("objective_sha256", "advantage_sha256", "threads")  # threads are the cell's


def keep_start(starts: Path, folder: RunDir, threads: int) -> None:
    """Store what the finished run in `folder` has measured before training, unless it is there."""
    made = folder.evaluation(0)
    kept = starts / _key(folder, threads)
    lines = [
        line
        for line in read_metrics(folder.metrics)
        if (line["kind"], line["update"]) == (EVALUATION, 0)
    ]
    if kept.exists() or not made.exists() or not lines:
        return
    with publish_folder(kept) as new:
        shutil.copytree(made, new / "evaluation")
        shutil.copyfile(folder.samples(0, EVALUATION), new / "samples.json")
        publish_json(new / "line.json", with_checksum(lines[-1]))


def take_start(starts: Path, run: OpenRun, threads: int) -> bool:
    """Give a new run what an equal one has measured before training. Return whether there was any.

    Raises RunStopped if it is damaged.
    """
    kept = starts / _key(run.folder, threads)
    if run.folder.metrics.exists() or not kept.exists():
        return False
    line = read_checked(kept / "line.json")
    measured = evaluated(kept / "evaluation", [problem.source for problem in run.eval_problems])
    if any(line[name] != value for name, value in measured.items()):
        raise RunStopped(f"{kept} holds other responses than its line.json says; remove it")
    with publish_folder(run.folder.evaluation(0)) as new:
        shutil.copytree(kept / "evaluation", new, dirs_exist_ok=True)
    run.folder.samples(0, EVALUATION).parent.mkdir(exist_ok=True)
    shutil.copyfile(kept / "samples.json", run.folder.samples(0, EVALUATION))
    about = ("kind", "update", "sha256")
    run.journal.put(EVALUATION, 0, **{k: v for k, v in line.items() if k not in about})
    run.journal.close()
    return True


def _key(folder: RunDir, threads: int) -> str:
    """Return a hash of all that decides an evaluation before training."""
    stored = folder.read_config() or {}
    options, made_with = stored["config"], stored["provenance"]
    decides = {
        "config": {k: v for k, v in options.items() if k not in (*_TRAINING, *_SHOWING)},
        "provenance": {k: v for k, v in made_with.items() if k not in _METHODS_FILES},
        "threads": threads,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
