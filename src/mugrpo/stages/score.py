"""The phase that publishes a stage's missing scores."""

from itertools import islice

from mugrpo.disk.records import WHOLE, Part, text_of
from mugrpo.disk.shards import ShardSet, read_rollouts, read_scores
from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage, surplus_text
from mugrpo.stages.work import working

_SHOWN = 8  # rollouts of a stage, in dashboards


def score(run: OpenRun, stage: Stage, part: Part = WHOLE) -> None:
    """Publish the missing score shards of a part of the stage."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    if not (unscored := stage.unscored(part)):
        return
    scorer = run.scorer(run.problems, stage.number)
    run.progress.begin(stage.heading("score"), "shards", len(unscored))
    with working(run, stage, "scores", part) as work:
        for free in work.rounds():
            for shard in free:
                scorer.make_shard(rollouts, scores, shard, work.holds, **work.about)
                work.done(shard)
                run.progress.advance(1)
    run.progress.end()


def score_again(run: OpenRun, stage: Stage) -> None:
    """Publish all score shards of the stage once more."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    scorer, shards = run.scorer(run.problems, stage.number), rollouts.numbers()
    run.progress.begin(stage.heading("score"), "shards", len(shards))
    for shard in shards:
        scorer.make_shard(rollouts, scores, shard)
        run.progress.advance(1)
    run.progress.end()


def log_refresh(run: OpenRun, stage: Stage) -> None:
    """Write the metrics line of a scored stage, if it has none or another one."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    refresh = {"stage": stage.number, **refresh_metrics(rollouts, scores)}
    if run.journal.put("refresh", stage.first_update, **refresh):
        run.progress.say(refresh_text(refresh, run.config.rollouts.max_new_tokens))
        if text := surplus_text(stage):
            run.progress.say(text)
        if run.journal.shown:
            columns = ("prompt", "response", "reward")
            run.journal.show(stage.first_update, columns, _first(run, rollouts, scores))


def _first(
    run: OpenRun, rollouts: ShardSet, scores: ShardSet
) -> list[tuple[str, str, float | None]]:
    """Return the first responses of a stage as people read them, with prompt and reward."""
    tokenizer, shard = run.prompts.tokenizer, rollouts.numbers()[0]
    pairs = zip(read_rollouts(rollouts, shard), read_scores(scores, shard), strict=True)
    return [
        (text_of(one.prompt_ids, tokenizer), text_of(one.response_ids, tokenizer), score.reward)
        for one, score in islice(pairs, _SHOWN)
    ]
