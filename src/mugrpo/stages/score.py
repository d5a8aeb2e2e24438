"""The phase that publishes a stage's missing scores."""

from mugrpo.rollouts.statistics import refresh_metrics, refresh_text
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage, surplus_text


def score(run: OpenRun, stage: Stage, *, again: bool = False) -> None:
    """Publish the stage's missing score shards, or all of them if `again`. Log its refresh."""
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")
    scorer = run.scorer(run.problems, stage.number)
    if shards := rollouts.numbers() if again else stage.unscored():
        run.progress.begin(stage.heading("score"), "shards", len(shards))
        for shard in shards:
            scorer.make_shard(rollouts, scores, shard)
            run.progress.advance(1)
        run.progress.end()
    refresh = {"stage": stage.number, **refresh_metrics(rollouts, scores)}
    if run.journal.put("refresh", stage.first_update, **refresh):
        run.progress.say(refresh_text(refresh, run.config.rollouts.max_new_tokens))
        if text := surplus_text(stage):
            run.progress.say(text)
