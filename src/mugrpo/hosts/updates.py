"""What is kept of updates beside their metrics: samples to read, and those not applied."""

from collections.abc import Mapping
from typing import Any

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import publish_json, with_checksum
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.samples import Recorder
from mugrpo.optimize.trainer import Trainer
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage

SAMPLES = 4  # kept of an update or evaluation, for people to read
_NONFINITE_LIMIT = 3  # updates in a row that are not applied: one may be an overflow
_SAMPLE_EVERY = 16  # updates; some of their rollouts are kept


def samples_due(stage: Stage, update: int) -> bool:
    """Return whether rollouts of update number `update` (from 1) are kept for the report."""
    return update % _SAMPLE_EVERY == 0 or update in (stage.first_update + 1, stage.end)


def keep_samples(
    run: OpenRun, stage: Stage, update: int, experience: Experience, recorder: Recorder
) -> None:
    """Publish a few of an update's rollouts with what the objective did to each token."""
    samples = recorder.chosen(
        experience.rollouts, experience.scores, SAMPLES, run.prompts.tokenizer
    )
    ids = {sample["problem_id"] for sample in samples}
    references = {problem.id: problem.reference for problem in run.problems if problem.id in ids}
    for sample in samples:
        sample["reference"] = references[sample["problem_id"]]
    document = {
        "update": update,
        "stage": stage.number,
        "staleness": update - 1 - stage.first_update,
        "samples": samples,
    }
    publish_json(run.folder.samples(update), with_checksum(document))


def report_nonfinite(
    run: OpenRun, experience: Experience, line: Mapping[str, Any], trainer: Trainer
) -> None:
    """Record an update that was not applied because loss, gradient or learning rate was not finite.

    Raises RunStopped after too many in a row.
    """
    update, in_a_row = trainer.update, trainer.nonfinite_in_a_row
    path = run.folder.nonfinite(update)
    groups = dict.fromkeys(rollout.group for rollout in experience.rollouts)
    document = {
        "update": update,
        "loss": str(line["loss"]),
        "grad_norm": str(line["grad_norm"]),
        "groups": [[key.problem_id, key.occurrence] for key in groups],
    }
    if run.ranks.first:
        publish_json(path, with_checksum(document))
    run.progress.say(
        f"update {update} had loss {line['loss']}, gradient norm {line['grad_norm']} and learning "
        f"rate {line['lr']}, so it was not applied; its groups are in {path}"
    )
    if in_a_row >= _NONFINITE_LIMIT:
        raise RunStopped(
            f"{in_a_row} updates in a row had a non-finite loss or gradient; see {path.parent}; a "
            "lower --optimizer.lr (with --force) may help"
        )
