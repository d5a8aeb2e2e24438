"""The phase that makes a stage's updates, with evaluations in between."""

from mugrpo.hosts.host import Generation, Host, needs_engines
from mugrpo.hosts.reader import publish_logprobs
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage
from mugrpo.run.suites import measuring_due
from mugrpo.stages.evaluate import evaluate_if_due
from mugrpo.stages.score import log_refresh


def optimize(
    run: OpenRun,
    stage: Stage,
    host: Host,
    *,
    until: int | None = None,
    generation: Generation | None = None,
) -> None:
    """Make the stage's missing updates up to `until`, by default its end, and measure what is due.

    With `generation`, its shards may still be arriving. An evaluation waits for all of them if it
    needs the same engines.
    """
    start = max(run.folder.newest_update(), stage.first_update)
    end = stage.end if until is None else min(stage.end, until)
    if start >= stage.end:
        _measure_finished(run, stage, host, start)
        return
    evaluate_if_due(run, host, start)
    if generation and run.config.needs and run.config.distributed.processes > 1:
        generation.wait()  # ranks compute logprobs for whole stages
        generation = None
    if not needs_engines(generation):
        host.sleep()
    if generation is None:
        log_refresh(run, stage)
        publish_logprobs(stage, host.logprobs, run.progress)
    for stop in range(start + 1, end + 1):
        if stop < end and not measuring_due(run.config, stop):
            continue
        host.update(stage, stop, generation)
        if generation and generation.uses_engines:
            generation.wait()
        evaluate_if_due(run, host, stop)
    if generation and not stage.unscored():
        log_refresh(run, stage)


def _measure_finished(run: OpenRun, stage: Stage, host: Host, update: int) -> None:
    """Measure what a kill after the last update of a stage may have left out."""
    run.progress.say(f"stage {stage.number}: all updates are made")
    if not stage.unscored():
        log_refresh(run, stage)
    if update == stage.end:
        evaluate_if_due(run, host, update)
