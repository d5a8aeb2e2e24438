"""A comparison of several methods, trained from one checkpoint on the same stored rollouts.

RUN/bakeoff/stage-000/METHOD is a run like any other: it can be moved, resumed, evaluated and
reported. Its rollouts, scores, plan, and the checkpoints up to the stage's start, are the files of
RUN under a second name (hard links). Its updates use the same batches in the same order, with the
same learning rates.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import EVALUATION, UPDATE, number, read_metrics, rewrite, seconds_of
from mugrpo.disk.publishing import (
    publish_file,
    publish_folder,
    publish_json,
    read_checked,
    with_checksum,
)
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet
from mugrpo.extensions.lab.methods import configs_of
from mugrpo.hosts.reader import ONCE_A_STAGE
from mugrpo.hosts.weights import weights_at
from mugrpo.pipeline import evaluate, optimize
from mugrpo.report import write_report
from mugrpo.report.readable import markdown
from mugrpo.rollouts.evaluation import headline, value_text
from mugrpo.run.opening import OpenRun, open_run
from mugrpo.run.provenance import config_document, provenance_of
from mugrpo.run.stage import Stage
from mugrpo.run.trust import remember

_SAMPLED = ("rollouts", "scores")

Line = dict[str, Any]


def bakeoff(run: OpenRun, stage: int, methods: Sequence[str], *, force: bool = False) -> Path:
    """Train each of `methods` on the rollouts of `stage` of `run`, and write a table and a report.

    A method (see `configs_of`) sets the parts of the update; everything else is taken from `run`.
    Returns the path of the table. Raises UsageError for an unknown method, two methods with the
    same name, a stage without rollouts or scores, and a method that was trained on other rollouts
    or with other options before.
    """
    configs = {
        name: _on_one_stage(run, config) for name, config in configs_of(run, methods).items()
    }
    the_stage = Stage.of(run, stage)
    first = the_stage.first_update
    the_stage.require("rollouts", "scores")
    weights_at(run.folder, run.config.model, first)  # raises if the checkpoint is gone
    _evaluate(run, first)
    home = run.folder.root / "bakeoff" / f"stage-{stage:03d}"
    for place, (name, config) in enumerate(configs.items(), start=1):
        run.progress.say(f"{name} ({place} of {len(configs)})")
        _begin(run, stage, home / name, config)
        with open_run(home / name, force=force, stop=run.stop) as arm:
            optimize(arm, stage)
            _give_back(arm, run, stage)
            _evaluate(arm, arm.config.schedule.first_update(stage + 1))
    lines = {name: list(read_metrics(RunDir(home / name).metrics)) for name in configs}
    with publish_file(home / "table.md") as file:
        file.write((table(lines, first) + "\n").encode())
    write_report([home / name for name in configs], home / "report.html")
    return home / "table.md"


def _evaluate(run: OpenRun, update: int) -> None:
    """Measure the policy after `update` updates, unless that is done or nothing is held out."""
    if run.eval_problems and not run.journal.has(EVALUATION, update):
        evaluate(run, update)


def table(methods: dict[str, list[Line]], first: int) -> str:
    """Return a Markdown table of methods from their metrics lines, by descending accuracy.

    `first` is the update that all methods start from. Accuracy, or the mean reward if nothing says
    what is right, is followed by the 95 % interval of its evaluation. Shares and times are those of
    the updates after `first`.
    """
    evaluations = [x for lines in methods.values() for x in lines if x["kind"] == "evaluation"]
    by = headline(*evaluations)
    rows = [_row(name, lines, first, by) for name, lines in methods.items()]
    rows.sort(key=lambda row: (-float(row[0]), row[1]))
    head = ["method", f"{by} before", "after", "KL(β‖π) at the end", "tv_token at the end"]
    head += ["largest ratio at A below 0", "tokens that it marks", "seconds per update"]
    return markdown(head, [row[1:] for row in rows])


def _row(name: str, lines: list[Line], first: int, by: str) -> list[str]:
    """Return the accuracy or reward to sort by, followed by the row's cells."""
    evaluations = {line["update"]: line for line in lines if line["kind"] == "evaluation"}
    updates = [line for line in lines if line["kind"] == UPDATE and line["update"] > first]
    last = updates[-1] if updates else {}
    after = evaluations.get(last.get("update", first), {})
    shares = [[number(u, key) or 0.0 for key in u if key.endswith("_fraction")] for u in updates]
    left_out = [sum(each) for each in shares]
    ratios = [r for u in updates if (r := u.get("ratio/negative/max")) is not None]
    seconds = [seconds_of(update, "optimize") for update in updates]
    return [
        f"{after.get(by) or 0:.9f}",
        name,
        value_text(evaluations.get(first, {}), by),
        value_text(after, by),
        _number(last.get("kl_behavior")),
        _number(last.get("tv_token")),
        _number(max(ratios, default=None)),
        f"{sum(left_out) / len(left_out):.1%}" if left_out else "",
        _number(fmean(seconds) if seconds else None),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _on_one_stage(run: OpenRun, config: RunConfig) -> RunConfig:
    """Return `config` for training on one stage of scored rollouts."""
    raw = config.model_dump(mode="json")
    own = run.config.checkpoint
    raw |= {"sinks": {}, "checkpoint": {"every": own.every, "minutes": own.minutes}}
    return build_config(raw, "bakeoff")


def _begin(run: OpenRun, stage: int, folder: Path, config: RunConfig) -> None:
    """Create the run in `folder`, which shares the files of `run` that it uses.

    Do nothing if it exists already. Raises UsageError if it exists with other rollouts, scores or
    options.
    """
    resolved = config.model_dump(mode="json")
    origin = {"rests_on": _origin(run, stage), "config": resolved}
    if folder.exists():
        if read_checked(RunDir(folder).origin) != origin:
            raise UsageError(
                f"{folder} was made with other rollouts, scores or options; remove it to train it "
                "again"
            )
        return
    first = run.config.schedule.first_update(stage)
    run_dir = run.folder
    with publish_folder(folder) as unfinished:
        new = RunDir(unfinished)
        for past in range(stage):  # so that the new run never generates them
            _share(run_dir.stage(past), new.stage(past))
        for name in (*_SAMPLED, *ONCE_A_STAGE):
            _share(run_dir.shards(stage, name), new.shards(stage, name))
        for update in run_dir.checkpoint_updates():  # lasting ones, and the arm's beginning
            if update == first or (update < first and not run_dir.is_temporary(update)):
                _share(run_dir.checkpoint(update), new.checkpoint(update))
        provenance = provenance_of(config, run.problems, run.eval_problems)
        document = config_document(resolved, provenance)
        publish_json(new.config, with_checksum(document))
        publish_json(new.origin, with_checksum(origin))
        if run_dir.metrics.exists():
            shutil.copyfile(run_dir.metrics, new.metrics)
            rewrite(new.metrics, first)
    remember(document, build_config(resolved, "bakeoff"))  # as it is stored


def _share(source: Path, target: Path) -> None:
    """Make `target` a folder of the same files as `source`, if that exists.

    Files are replaced as a whole when they change, so neither side sees what the other does.
    """
    if source.is_dir():
        unfinished = shutil.ignore_patterns("*.tmp.*", "*.bad*")
        shutil.copytree(source, target, ignore=unfinished, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _give_back(arm: OpenRun, run: OpenRun, stage: int) -> None:
    """Let the next arms have the logprobs of the behavior or reference policy that `arm` needed."""
    for name in ONCE_A_STAGE:
        made, kept = (one.folder.shards(stage, name) for one in (arm, run))
        if made.is_dir() and not kept.exists():
            with publish_folder(kept) as unfinished:
                unfinished.rmdir()
                _share(made, unfinished)


def _origin(run: OpenRun, stage: int) -> str:
    """Return a hash of the rollouts and their scores."""
    sets = [ShardSet(run.folder.shards(stage, name), name) for name in _SAMPLED]
    sums = [entry["sha256"] for shards in sets for entry in shards.entries()]
    return hashlib.sha256("".join(sums).encode()).hexdigest()
