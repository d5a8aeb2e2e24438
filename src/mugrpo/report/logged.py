"""Charts of each reward, and of what reward functions log, by stage."""

from __future__ import annotations

from collections.abc import Sequence

from mugrpo.report.axes import Axis
from mugrpo.report.charts import Trace, words
from mugrpo.report.figures import drawn, reward_steps, run_hue, run_label, update_chart
from mugrpo.report.markup import Markup
from mugrpo.report.read import RunData

_NOTE = "mean over each stage's rollouts that were judged"


def logged_figures(runs: Sequence[RunData]) -> list[Markup | None]:
    """Return charts of the mean of each reward, then of each metric that was logged.

    The rewards of a single run share a chart.
    """
    rewards = _names(runs, "rewards/", "/mean")
    metrics = _names(runs, "logged/", "")
    charts = (
        [("Rewards", rewards)]
        if len(runs) == 1
        else [(f"Reward {rewards[key]}", {key: ""}) for key in rewards]
    )
    charts += [(metrics[key], {key: ""}) for key in metrics]
    return [_chart(runs, words(title), keys) for title, keys in charts]


def _chart(runs: Sequence[RunData], title: str, keys: dict[str, str]) -> Markup | None:
    """Return a chart of the refresh lines' `keys`, which have labels."""
    traces = [
        Trace(
            *reward_steps(run, key),
            run_label(run, runs),
            words(label),
            run_hue(index if len(runs) > 1 else hue),
            "thick",
        )
        for index, run in reversed(list(enumerate(runs)))
        for hue, (key, label) in enumerate(keys.items())
    ]
    return drawn(title, _NOTE, update_chart(runs, Axis("mean"), traces))


def _names(runs: Sequence[RunData], prefix: str, suffix: str) -> dict[str, str]:
    """Return the keys with this prefix and suffix, each with what is between them."""
    keys = dict.fromkeys(key for run in runs for key in run.keys("refresh", prefix, suffix))
    return {key: key[len(prefix) : len(key) - len(suffix)] for key in keys}
